"""Serving of trained models.

`load` binds a SavedModel to servers of its embedding tables, which `tfdist ps serve` starts, or to
rows in this process. `TableFollower` keeps a loaded model at the state of a running training.
"""

from tfdist.serving.follower import TableFollower
from tfdist.serving.load import load

__all__ = ["TableFollower", "load"]
