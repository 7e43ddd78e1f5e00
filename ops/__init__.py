"""Collectives as TensorFlow ops, and the communicator they run on."""

from tfdist.ops.collectives import all_gather, all_reduce, broadcast
from tfdist.ops.communicator import CommunicationStats, Communicator

__all__ = ["CommunicationStats", "Communicator", "all_gather", "all_reduce", "broadcast"]
