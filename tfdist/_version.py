"""This release's number, and the TensorFlow and Keras releases that it was tested with.

Both ends of a range are included.
"""

__version__ = "0.1.0"

MIN_TENSORFLOW = (2, 16)
MAX_TENSORFLOW = (2, 21)
MIN_KERAS = (3, 8)
MAX_KERAS = (3, 15)
