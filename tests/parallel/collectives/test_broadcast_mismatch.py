"""Ranks that mean other broadcasts: which of them get the error, and when."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from tfdist import ops

# The values that the last rank broadcasts, besides float32[3] from rank 0 on all others.
OTHERS = {
    "dtype": (lambda x: tf.cast(x, tf.int32), 0, r"\(root 0\) int32\[3\]"),
    "shape": (lambda x: tf.concat([x, x], 0), 0, r"\(root 0\) float\[6\]"),
    "large": (lambda x: tf.tile(x, [10_000]), 0, r"\(root 0\) float\[30000\]"),
    "root": (lambda x: x, -1, r"\(root {last}\) float\[3\]"),
}


@on_ranks(3)
def test_every_rank_gets_the_error(ctx):
    """Ranks with other data get it in the broadcast, the others in their next collective."""
    tfdist.init()
    for size in (2, 3):
        for label, (change, root, received) in OTHERS.items():
            group = tfdist.new_group(range(size))  # an error ends it
            if group is None:
                continue
            x, last = tf.constant([1.0, 2.0, 3.0]) + ctx.rank, size - 1
            if ctx.rank == last:
                x, root = change(x), root % size
            else:
                root = 0
            received = received.format(last=last)
            with pytest.raises(tf.errors.InvalidArgumentError) as raised:
                result = ops.broadcast(x, group, root, label=label)
                assert ctx.rank not in (0, last)
                assert result.numpy().tolist() == [1.0, 2.0, 3.0]
                ops.all_reduce(x, group)
            for said in (r"\(root 0\) float\[3\]", received):
                raised.match(f"the ranks disagree.*broadcast '{label}' {said}")
    # Strings are gathered from the ranks that take themselves for the root: here two, or none.
    word = tf.constant(["of", f"rank {ctx.rank}"])
    for root, received in ((min(ctx.rank, 1), "several"), ((ctx.rank + 1) % 3, "none")):
        problem = f"the ranks disagree on broadcast 'words'.*one root, received {received}"
        with pytest.raises(tf.errors.InvalidArgumentError, match=problem):
            ops.broadcast(word, None, root, label="words")
    assert float(ops.all_reduce(tf.constant(1.0))) == 3.0


@on_ranks(2)
def test_a_peers_name_does_not_control_the_terminal(ctx):
    tfdist.init()
    label = "\x1b]0;owned\x07\x9b\u202e" if ctx.rank else "usual"
    x = tf.constant([1.0] * (2 + ctx.rank))
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        ops.broadcast(x, None, 0, label=label)
    assert r"\x1b]0;owned\x07\x9b\u202e" in raised.value.message
    assert not set("\x1b\x07\x9b\u202e") & set(raised.value.message)
