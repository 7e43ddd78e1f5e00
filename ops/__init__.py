"""Collectives as TensorFlow ops with their communicator, and what replicas of one process share."""

from tfdist.ops.collectives import all_gather, all_reduce, broadcast
from tfdist.ops.communicator import CommunicationStats, Communicator
from tfdist.ops.hand_over import hand_over
from tfdist.ops.local_reduce import local_reduce

__all__ = [
    "CommunicationStats",
    "Communicator",
    "all_gather",
    "all_reduce",
    "broadcast",
    "hand_over",
    "local_reduce",
]
