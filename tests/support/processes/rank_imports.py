"""The imports of the multi-process tests' fork server, once for all ranks; see ranks.py.

Nothing here starts a thread, which a fork would lose.
"""

import keras  # noqa: F401
import numpy  # noqa: F401
import pytest  # noqa: F401
import rank_process  # noqa: F401
import tensorflow  # noqa: F401

import tfdist.strategies  # noqa: F401
from tfdist.ops import library

library.c_api()
