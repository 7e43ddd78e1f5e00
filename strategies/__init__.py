"""The strategies, one per file."""

from tensorflow import distribute as _distribute

from tfdist.strategies.multi_worker_mirrored_strategy import MultiWorkerMirroredStrategy

CommunicationOptions = _distribute.experimental.CommunicationOptions

__all__ = ["CommunicationOptions", "MultiWorkerMirroredStrategy"]
