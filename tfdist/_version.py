"""The version of this release, and the tested releases of TensorFlow and Keras (inclusive)."""

__version__ = "0.2.0"

MIN_TENSORFLOW = (2, 16)
MAX_TENSORFLOW = (2, 22)
MIN_KERAS = (3, 8)
MAX_KERAS = (3, 16)
