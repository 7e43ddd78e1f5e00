"""What the repairs ask about the workers."""

from __future__ import annotations

from tfdist import ops


def is_ours(strategy) -> bool:
    """Whether `strategy` is one of tfdist's, with other workers."""
    return getattr(strategy, "communicator", None) is not None


def communicator_of(model) -> ops.Communicator | None:
    """The workers that train `model`; `None` if there is one."""
    return getattr(model.distribute_strategy, "communicator", None)


def rank_of(model) -> int:
    """This process's rank among them."""
    communicator = communicator_of(model)
    return 0 if communicator is None else communicator.rank
