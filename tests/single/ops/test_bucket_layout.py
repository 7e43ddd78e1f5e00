"""How `bytes_per_pack="auto"` cuts a list of tensors."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfdist
from tfdist.ops.collectives.tuned_buckets import Layout, SizedBucket

KB = 1 << 10
F32, F16 = tf.float32, tf.float16


def layout(*sizes, dtype=F32):
    """The layout of tensors with these numbers of KB, from the last variable to the first."""
    return Layout.of((i, dtype, size * KB // dtype.size) for i, size in enumerate(sizes))


def test_sizes_join_blocks():
    found = layout(*[512] * 24)
    assert found.blocks == [[i, i + 1] for i in range(0, 24, 2)]
    assert found.names == ["1 MB", "4 MB", "16 MB"]
    one, four, all_ = found.buckets
    assert one == [SizedBucket(i, 1, i * 256 * KB) for i in range(12)]
    assert four == [SizedBucket(i // 4 * 4, 4, i // 4 * 4 * 256 * KB) for i in range(12)]
    assert all_ == [SizedBucket(0, 12, 0)] * 12
    assert found.names[found.initial] == "4 MB"


def test_sizes_that_make_the_same_buckets_are_one():
    found = layout(*[5000] * 3)
    assert found.names == ["4 MB", "16 MB"]
    assert layout(900).names == ["4 MB"] and layout(900).blocks == [[0]]


def test_the_tail_is_alone_at_any_size():
    found = layout(2000, 20, 16, 10, 6)
    assert found.blocks == [[0], [1]] and found.alone == [[2, 3, 4]]
    # All of a small model.
    assert layout(16, 16).blocks == [] and layout(16, 16).alone == [[0, 1]]
    assert layout().blocks == layout().alone == []
    assert layout(2000, 33).alone == []


def test_dtypes_and_unknown_sizes():
    tensors = [(0, F32, 256 * KB), (1, F16, 512 * KB), (2, F32, None), (3, F32, 256 * KB)]
    found = Layout.of(tensors)
    assert found.blocks == [[0], [3], [1]] and found.alone == [[2]]
    assert found.buckets[-1] == [SizedBucket(0, 2, 0), SizedBucket(0, 2, 0), SizedBucket(2, 1, 0)]


@pytest.mark.parametrize("size", ["Auto", -1, 1.5, None, True])
def test_bad_sizes(size):
    with pytest.raises(ValueError, match="expected a positive bytes_per_pack or 0, or .auto."):
        tfdist.CommunicationOptions(bytes_per_pack=size)


def test_combinations():
    options = tfdist.CommunicationOptions
    assert options.of(options("auto")).merge(options()).bytes_per_pack == "auto"
    with pytest.raises(ValueError, match="compression, received 'auto'"):
        options("auto", compression="fp16")
    with pytest.raises(ValueError, match="RING with bytes_per_pack 'auto', received NCCL"):
        options("auto", implementation="NCCL")
