"""Process groups: collectives among some of the ranks."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.patience import wait_until
from support.processes.ranks import on_ranks, start_ranks
from tfdist import ops


@on_ranks(4)
def test_groups_number_their_own_ranks(ctx):
    tfdist.init()
    rank = ctx.rank
    odd = tfdist.new_group([3, 1], name="odd")
    even = tfdist.new_group(range(0, 4, 2))
    alone = tfdist.new_group(np.array([2]))
    everybody = tfdist.new_group([0, 1, 2, 3])
    assert (odd is None) == (rank % 2 == 0) and (even is None) == (rank % 2 == 1)
    assert (alone is None) == (rank != 2)
    mine = odd if rank % 2 else even
    assert (mine.rank, mine.size) == ({0: 0, 2: 1, 3: 0, 1: 1}[rank], 2)
    x = tf.constant([1.0 + rank])
    np.testing.assert_array_equal(ops.all_reduce(x, mine), [6.0 if rank % 2 else 4.0])
    np.testing.assert_array_equal(ops.all_gather(x, mine), [4.0, 2.0] if rank % 2 else [1.0, 3.0])
    np.testing.assert_array_equal(ops.broadcast(x, mine, 1), [2.0 if rank % 2 else 3.0])
    np.testing.assert_array_equal(ops.all_reduce(x, everybody), [10.0])
    np.testing.assert_array_equal(ops.all_reduce(x), [10.0])
    if alone is not None:
        np.testing.assert_array_equal(ops.all_reduce(x, alone), x)
    # While the others are busy elsewhere, this continues.
    if rank % 2:
        for step in range(50):
            total = ops.all_reduce(tf.constant(float(rank * step)), odd)
            assert float(total) == 4 * step
    ops.barrier()


@on_ranks(4)
def test_ranks_trace_different_collectives_in_one_function(ctx):
    tfdist.init()
    rank = ctx.rank
    first = tfdist.new_group([0, 1, 2])
    second = tfdist.new_group([0, 3])

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            results = []
            if first is not None:
                results += [ops.all_reduce(x, first), ops.all_reduce(10.0 * x, first)]
            if second is not None:
                results += [ops.all_reduce(100.0 * x, second)]
            results += [ops.all_reduce(1000.0 * x)]
            value = tf.add_n(results)
        return value, tape.gradient(value, x)

    for turn in range(3):
        x = [1.0, 2.0, 3.0, 4.0]
        total = 1000.0 * sum(x)
        total += 11.0 * sum(x[:3]) if first is not None else 0.0
        total += 100.0 * (x[0] + x[3]) if second is not None else 0.0
        slope = 4000.0 + (33.0 if first is not None else 0.0)
        slope += 200.0 if second is not None else 0.0
        value, gradient = step(tf.constant(x[rank]))
        assert (float(value), float(gradient)) == (total, slope), turn


@on_ranks(3)
def test_what_ranks_get_wrong_is_named_on_all(ctx):
    tfdist.init()
    for ranks, message in (
        ([], "rank 0: expected at least one rank, received none"),
        ([0, 3], "rank 0: expected ranks from 0 to 2, received 3"),
        ([0, -1], "rank 0: expected ranks from 0 to 2, received -1"),
        ([2, 1, 2], "rank 0: expected every rank once, received 2 twice"),
        ([0, 1.5], "rank 0: expected numbers of ranks, received 1.5"),
        ([0, 1] if ctx.rank else [1, 0], r"rank 0 asks for \[1, 0\], rank 1 for \[0, 1\]"),
        ([0, 5] if ctx.rank == 2 else [0, 1], "rank 2: expected ranks from 0 to 2, received 5"),
    ):
        with pytest.raises(ValueError, match=message):
            tfdist.new_group(ranks)
    with pytest.raises(ValueError, match=r"rank 1 for \[0\] named 'b'"):
        tfdist.new_group([0], name="ab"[ctx.rank % 2])
    with pytest.raises(TypeError, match="expected a tfdist.ops.Communicator or None"):
        ops.all_reduce(tf.constant(1.0), [0, 1])
    group = tfdist.new_group([1, 2])
    if group is not None:
        assert float(ops.all_reduce(tf.constant(1.0), group)) == 2.0


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@on_ranks(2, timeout=120)
def test_many_groups_leave_nothing_behind(ctx):
    tfdist.init()
    for step in range(200):
        group = tfdist.new_group([0, 1] if step % 2 else [1, 0])
        assert float(ops.all_reduce(tf.constant(1.0 + step), group)) == 2.0 + 2 * step
        # A broadcast ends on its root before the other has all of it.
        words = ops.broadcast(tf.fill([9000], float(group.rank)), group, step % 2)
        assert float(words[-1]) == step % 2
        group.close()
        group.close()
        if step == 20:
            before = _descriptors()
    # The other rank, and the engine's thread, close theirs a little later.
    wait_until(lambda: _descriptors() <= before, "the end of the groups' connections")
    ops.barrier()
    with pytest.raises(tf.errors.FailedPreconditionError, match="closed"):
        ops.all_reduce(tf.constant(1.0), group)
    # Groups that are still open end with the job.
    assert float(ops.all_reduce(tf.constant(1.0), tfdist.new_group([0, 1]))) == 2.0


def lose_a_member(ctx):
    tfdist.init()
    pair = tfdist.new_group([0, 2])
    other = tfdist.new_group([1, 0])
    ctx.report("made")
    if ctx.rank == 2:
        ctx.wait_for("never", timeout=60)
    if ctx.rank == 0:
        with pytest.raises(tf.errors.UnavailableError, match="rank 0 of 2: lost rank 1"):
            while True:
                ops.all_reduce(tf.constant(1.0), pair)
    # Another group continues.
    for _ in range(10):
        assert float(ops.all_reduce(tf.constant(1.0), other)) == 2.0
    with pytest.raises(tf.errors.UnavailableError, match="lost rank 2"):
        ops.all_reduce(tf.constant(1.0))


@pytest.mark.timeout(240)
def test_a_lost_member_ends_its_groups_and_no_other():
    with start_ranks(lose_a_member, 3) as ranks:
        for rank in range(3):
            ranks.wait_for(rank, "made", timeout=60)
        ranks[2].kill()
        outcomes = ranks.join(timeout=60)
    for rank in (0, 1):
        # The job has lost a rank, so that its end cannot be orderly; the body must have passed.
        assert outcomes[rank].ok, outcomes[rank].describe()
