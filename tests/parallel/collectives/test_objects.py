"""`tfdist.broadcast_object` and `tfdist.all_gather_object`."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from tfdist import ops


class Unreadable:
    """Can be pickled, and not read again."""

    def __reduce__(self):
        return int, ("not a number",)


class Unwritable:
    def __reduce__(self):
        raise OverflowError("too much of it")


@on_ranks(3)
def test_objects(ctx):
    """For any lengths, among all ranks and a group; all ranks hear what went wrong."""
    tfdist.init()
    rank = ctx.rank
    large = np.arange(100_000 * rank)
    for root in range(3):
        got = tfdist.broadcast_object({"of": rank, "large": large}, root)
        assert got["of"] == root and got["large"].tolist() == list(range(100_000 * root))
    # The other ranks need not have an object.
    assert tfdist.broadcast_object("mine" if rank == 1 else None, 1) == "mine"
    everything = tfdist.all_gather_object([rank, "x" * rank])
    assert everything == [[r, "x" * r] for r in range(3)]
    group = tfdist.new_group([2, 0])
    if group is not None:
        assert tfdist.broadcast_object(rank, 0, communicator=group) == 2
        assert tfdist.all_gather_object(rank, communicator=group) == [2, 0]

    problem = "'it': rank 1 of 3 cannot pickle its object: OverflowError: too much of it"
    bad = Unwritable() if rank == 1 else 1
    with pytest.raises(ValueError, match=problem) as raised:
        tfdist.broadcast_object(bad, 1, label="it")
    assert isinstance(raised.value.__cause__, OverflowError) == (rank == 1)
    with pytest.raises(ValueError, match=problem):
        tfdist.all_gather_object(bad, label="it")
    with pytest.raises(
        ValueError, match="rank 0 expects the object of rank 0, rank 1 expects .* rank 1"
    ):
        tfdist.broadcast_object(rank, rank)
    with pytest.raises(
        ValueError, match="rank 0 expects the object of rank 2, rank 1 gathers an object"
    ):
        tfdist.broadcast_object(1, 2) if rank != 1 else tfdist.all_gather_object(1, label="x")
    if rank == 2:
        assert isinstance(tfdist.broadcast_object(Unreadable(), 2), Unreadable)
    else:
        problem = f"rank {rank} of 3 cannot read what rank 2 sent: ValueError: invalid literal"
        with pytest.raises(pickle.UnpicklingError, match=problem):
            tfdist.broadcast_object(None, 2)

    if rank == 1:
        ops.join()
    else:
        assert tfdist.all_gather_object(rank) == [0, 2]
        with pytest.raises(ValueError, match="expected an object from rank 1, which has joined"):
            tfdist.broadcast_object(None, 1)
        ops.join()
    assert float(ops.all_reduce(tf.constant(1.0))) == 3.0
