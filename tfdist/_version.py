"""This release's number, and the TensorFlow releases it works with (both ends included)."""

__version__ = "0.1.0"

MIN_TENSORFLOW = (2, 16)
MAX_TENSORFLOW = (2, 21)
