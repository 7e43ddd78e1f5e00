"""Every collective on 2, 3 and 4 ranks: dtypes, shapes, lists, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from tfdist import ops

DTYPES = (
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "bool",
)
NUMPY = {
    "sum": np.add.reduce,
    "min": np.minimum.reduce,
    "max": np.maximum.reduce,
    "product": np.multiply.reduce,
}


def of_rank(rank: int, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """Small integers, different on every rank, whose sums and products are exact in every dtype."""
    count = int(np.prod(shape))
    numbers = (np.arange(count) * 2 + rank * 3) % 3 + (0 if dtype == "bool" else 1)
    return (numbers.reshape(shape) > 1 if dtype == "bool" else numbers.reshape(shape)).astype(
        tf.as_dtype(dtype).as_numpy_dtype
    )


def reduced(size: int, shape: tuple[int, ...], dtype: str, reduce_op: str) -> np.ndarray:
    kind = tf.as_dtype(dtype).as_numpy_dtype
    wide = "bool" if dtype == "bool" else "int64"
    everybody = np.stack([of_rank(rank, shape, dtype).astype(wide) for rank in range(size)])
    if dtype == "bool":
        either = reduce_op in ("sum", "max")
        return everybody.any(axis=0) if either else everybody.all(axis=0)
    if reduce_op == "mean":
        mean = everybody.sum(axis=0) / size
        return (mean if tf.as_dtype(dtype).is_floating else np.trunc(mean)).astype(kind)
    return NUMPY[reduce_op](everybody, axis=0).astype(kind)


def part(rank: int, size: int, rows: int) -> slice:
    """Which of `rows` rows a rank gets: the first ranks one more where they do not divide."""
    share, more = divmod(rows, size)
    begin = rank * share + min(rank, more)
    return slice(begin, begin + share + (rank < more))


def reductions_of_every_dtype(ctx) -> None:
    size = ctx.size
    for reduce_op in ("sum", "mean", "min", "max", "product"):
        for shape in ((7, 3), ()):
            kinds = [d for d in DTYPES if not (d == "bool" and reduce_op == "mean")]
            mine = [tf.constant(of_rank(ctx.rank, shape, dtype)) for dtype in kinds]
            root = size - 1
            everywhere = ops.all_reduce(mine, reduce_op=reduce_op)
            somewhere = ops.reduce(mine, None, root, reduce_op)
            parts = ops.reduce_scatter(mine, None, reduce_op) if shape else [None] * len(kinds)
            for dtype, one, two, three in zip(kinds, everywhere, somewhere, parts, strict=True):
                expected = reduced(size, shape, dtype, reduce_op)
                assert one.dtype == two.dtype == dtype
                # A mean of 16 bits is rounded once more.
                check = np.testing.assert_array_equal
                if reduce_op == "mean" and dtype in ("float16", "bfloat16", "float32"):
                    check = lambda a, b: np.testing.assert_allclose(  # noqa: E731
                        np.asarray(a, "float64"), np.asarray(b, "float64"), rtol=2**-7
                    )
                check(one.numpy(), expected)
                check(two.numpy(), expected if ctx.rank == root else np.zeros_like(expected))
                if shape:
                    check(three, expected[part(ctx.rank, size, 7)])


def rows_are_gathered_and_scattered(ctx) -> None:
    rank, size = ctx.rank, ctx.size
    blocks = [np.full([2 * r, 3], r) for r in range(size)]
    for dtype in (*DTYPES, "complex64"):
        mine = tf.cast(blocks[rank], dtype)
        everything = tf.cast(np.concatenate(blocks), dtype).numpy()
        np.testing.assert_array_equal(ops.all_gather(mine), everything)
        for root in range(size):
            gathered = ops.gather(mine, None, root)
            np.testing.assert_array_equal(gathered, everything if rank == root else everything[:0])
            whole = everything if rank == root else everything[:0]
            scattered = ops.scatter(tf.constant(whole), None, root)
            np.testing.assert_array_equal(scattered, everything[part(rank, size, len(everything))])
    # nothing at all, and much more on one rank than on the others
    assert ops.all_gather(tf.zeros([0, 5])).shape == (0, 5)
    large = ops.all_gather(tf.fill([50_000 if rank == 1 else 1], float(rank)))
    assert large.shape == (50_000 + size - 1,)
    assert float(tf.reduce_sum(large)) == 50_000 + sum(range(size)) - 1


def rows_are_exchanged(ctx) -> None:
    rank, size = ctx.rank, ctx.size
    for dtype in DTYPES:
        mine = tf.cast(np.arange(size * 2)[:, None] * [1, 1] + 10 * rank, dtype)
        expected = [[2 * rank + i + 10 * other] * 2 for other in range(size) for i in range(2)]
        np.testing.assert_array_equal(ops.all_to_all(mine), tf.cast(expected, dtype))
    # rank r has r times as many rows for each rank; of a list each has its own
    mine = [tf.fill([rank * size, 2], rank), tf.fill([size], float(rank))]
    uneven, even = ops.all_to_all(mine)
    np.testing.assert_array_equal(uneven, np.repeat(range(size), range(size))[:, None] * [1, 1])
    np.testing.assert_array_equal(even, range(size))
    # all ranks hear of the rank that has too few, and can continue
    for bad in range(size):
        problem = rf"'odd': .*that {size} ranks can share.* 1 rows of tensor 1 on rank {bad}"
        with pytest.raises(tf.errors.InvalidArgumentError, match=problem):
            ops.all_to_all([mine[0], tf.zeros([1 if rank == bad else size])], label="odd")
    # rank r sends r + s rows to rank s
    splits = [rank + other for other in range(size)]
    targets = [other for other in range(size) for _ in range(rank + other)]
    mine = tf.constant([[100.0 * rank + other] for other in targets])
    exchanged, received = ops.all_to_all(mine, splits=splits)
    expected = [[100.0 * other + rank] for other in range(size) for _ in range(rank + other)]
    np.testing.assert_array_equal(exchanged, expected)
    assert received.dtype == tf.int64
    np.testing.assert_array_equal(received, [rank + other for other in range(size)])


def rows_of_tables_are_added(ctx) -> None:
    """Each rank has a row of its own, twice a common row, and rank 0 nothing at all."""
    rank, size = ctx.rank, ctx.size
    ids = [rank, 9, 9] if rank else []
    total = np.zeros([10, 2])
    for r in range(1, size):
        np.add.at(total, [r, 9, 9], r + 1.0)
    seen = [*range(1, size), 9]
    for reduce_op, scale in (("sum", 1), ("mean", size)):
        rows = tf.IndexedSlices(tf.fill([len(ids), 2], rank + 1.0), tf.constant(ids, tf.int64))
        dense, slices = ops.all_reduce([tf.constant(1.0), rows], None, reduce_op)
        assert float(dense) == size / scale
        assert isinstance(slices, tf.IndexedSlices)
        assert sorted(slices.indices.numpy()) == seen
        np.testing.assert_allclose(slices.values, total[slices.indices.numpy()] / scale)
        again = ops.all_reduce(rows, None, reduce_op, prescale_factor=0.5, postscale_factor=4.0)
        np.testing.assert_array_equal(again.indices, slices.indices)
        np.testing.assert_allclose(again.values, 2.0 * slices.values)
    for reduce_op in ("max", "product"):
        with pytest.raises(ValueError, match=f"'sum' or 'mean' for tf.IndexedSlices.*{reduce_op}"):
            ops.all_reduce(rows, None, reduce_op)
    # Integers wrap, as dense ones do.
    small = tf.IndexedSlices(tf.constant([[100], [100]], tf.uint8), [9, 9])
    for call in (ops.all_reduce, lambda slices: ops.fused_all_reduce([slices])[0]):
        result = call(small)
        assert result.values.dtype == tf.uint8
        assert result.values.numpy().tolist() == [[200 * size % 256]]
    odd = tf.IndexedSlices(tf.ones([1, 2], tf.bool), [0])
    for call in (ops.all_reduce, lambda slices: ops.fused_all_reduce([slices])):
        with pytest.raises(TypeError, match="expected tf.IndexedSlices of float16.*bool"):
            call(odd)


def factors_scale(ctx) -> None:
    size, kinds = ctx.size, [dtype for dtype in DTYPES if dtype != "bool"]
    for before, after in ((2.0, 1.0), (1, 3), (0.5, 2.0), (1.0, 0.4), (1 / 3, 1.0)):
        mine = [tf.cast(tf.fill([size, 2], ctx.rank + 5), dtype) for dtype in kinds]
        scaled = {"prescale_factor": before, "postscale_factor": after}
        everywhere = ops.all_reduce(mine, **scaled)
        parts = ops.reduce_scatter(mine, **scaled)
        fused = ops.fused_all_reduce(mine, **scaled)
        for dtype, *results in zip(kinds, everywhere, parts, fused, strict=True):
            exact = tf.as_dtype(dtype).is_integer
            cut = np.trunc if exact else np.asarray
            total = sum(cut((rank + 5) * before) for rank in range(size))
            for result in results:
                assert result.dtype == dtype
                np.testing.assert_allclose(
                    result.numpy().astype("float64"), cut(total * after), rtol=0 if exact else 0.01
                )
    # float64 would not hold it
    odd = tf.constant(2**53 + 1, tf.int64)
    assert int(ops.all_reduce(odd, reduce_op="max", prescale_factor=2)) == 2**54 + 2
    # 16 bits would not hold the factor
    tiny = ops.all_reduce(tf.constant(1024.0, tf.float16), reduce_op="mean", prescale_factor=1e-8)
    np.testing.assert_allclose(float(tiny), 1024e-8, rtol=1e-2)
    assert bool(ops.all_reduce(tf.constant(True), postscale_factor=1.0))


def numbers_of_ranks(ctx) -> None:
    numbers = tf.function(lambda: (tfdist.rank_op(), tfdist.size_op(), tfdist.local_size_op()))
    for found in (numbers(), (tfdist.rank_op(), tfdist.size_op(), tfdist.local_size_op())):
        assert [int(n) for n in found] == [ctx.rank, ctx.size, ctx.size]
    group = tfdist.new_group([1, 0])
    if group is not None:
        own = tf.function(lambda: tfdist.rank_op(group) + 10 * tfdist.size_op(group))
        assert int(own()) == 1 - ctx.rank + 20


def lists_travel_together(ctx) -> None:
    rank, size = ctx.rank, ctx.size
    comm = tfdist.ops.collectives.calls.resolve(None, "test")
    mine = [
        tf.fill([rank + 1, 2], float(rank)),
        tf.fill([3], rank),
        tf.fill([0, 2], True),
        tf.fill([size * 2], tf.constant(rank, tf.int8)),
    ]

    def counted(expected: int, call):
        before = comm.stats().collectives
        result = call()
        assert comm.stats().collectives - before == expected
        return result

    # one for the numbers of rows, one for the rows
    floats, ints, bools, small = counted(2, lambda: ops.all_gather(mine))
    np.testing.assert_array_equal(floats[:, 0], np.repeat(range(size), range(1, size + 1)))
    np.testing.assert_array_equal(ints, np.repeat(range(size), 3))
    assert bools.shape == (0, 2) and bools.dtype == tf.bool
    np.testing.assert_array_equal(small, np.repeat(range(size), size * 2))
    gathered = counted(2, lambda: ops.gather(mine, None, 1))
    for one, two in zip(gathered, (floats, ints, bools, small), strict=True):
        np.testing.assert_array_equal(one, two if rank == 1 else two[:0])
    scattered = counted(2, lambda: ops.scatter([floats, small], None, 1))
    np.testing.assert_array_equal(scattered[0], floats[part(rank, size, floats.shape[0])])
    np.testing.assert_array_equal(scattered[1], small[part(rank, size, small.shape[0])])
    same = [mine[1], mine[3], tf.constant(10.0 * rank)]
    for one, kind in zip(counted(1, lambda: ops.broadcast(same, None, 1)), same, strict=True):
        assert one.dtype == kind.dtype
        np.testing.assert_array_equal(one, np.full(kind.shape, 10 if one.shape == () else 1))
    assert len(counted(3, lambda: ops.reduce(same))) == 3  # one for each dtype
    first, last = counted(2, lambda: ops.reduce_scatter([mine[1], mine[3]]))
    np.testing.assert_array_equal(first, [sum(range(size))] * len(range(3)[part(rank, size, 3)]))
    np.testing.assert_array_equal(last, [sum(range(size))] * 2)
    (exchanged, again), received = counted(
        2,
        lambda: ops.all_to_all(
            [mine[1], mine[3]], splits=[[3] + [0] * (size - 1), [0] * (size - 1) + [2 * size]]
        ),
    )
    np.testing.assert_array_equal(exchanged, np.repeat(range(size), 3) if rank == 0 else [])
    np.testing.assert_array_equal(
        again, np.repeat(range(size), 2 * size) if rank == size - 1 else []
    )
    np.testing.assert_array_equal(received[0], [3 if rank == 0 else 0] * size)
    for empty in (ops.all_gather, ops.gather, ops.broadcast, ops.all_reduce, ops.all_to_all):
        assert empty([]) == []


def strings(ctx) -> None:
    rank, size = ctx.rank, ctx.size
    mine = [["", f"rank {rank}"], ["x" * 1000 * rank, "é\0"]][: rank + 1]
    gathered, numbers = ops.all_gather([tf.constant(mine), tf.constant([rank])])
    expected = []
    for r in range(size):
        expected += [["", f"rank {r}"], ["x" * 1000 * r, "é\0"]][: r + 1]
    assert gathered.numpy().tolist() == [[s.encode() for s in row] for row in expected]
    np.testing.assert_array_equal(numbers, range(size))
    none = ops.all_gather(tf.zeros([0, 2], tf.string))
    assert none.shape == (0, 2)
    for root in range(size):
        word, number = ops.broadcast([tf.constant(f"of {rank}"), tf.constant(rank)], None, root)
        assert word.numpy() == f"of {root}".encode() and word.shape == ()
        assert int(number) == root
    with pytest.raises(tf.errors.InvalidArgumentError, match="'words'.*scalar"):
        ops.all_gather(tf.constant("word"), label="words")
    with pytest.raises(ValueError, match="'word': expected a root from 0 to"):
        ops.broadcast(tf.constant("a"), None, size, label="word")


@pytest.mark.long("2-ranks", covered_by="the other cases")
@on_ranks(2, 3, 4)
def test_every_collective(ctx):
    tfdist.init()
    reductions_of_every_dtype(ctx)
    rows_are_gathered_and_scattered(ctx)
    rows_are_exchanged(ctx)
    rows_of_tables_are_added(ctx)
    factors_scale(ctx)
    numbers_of_ranks(ctx)
    lists_travel_together(ctx)
    strings(ctx)


@on_ranks(2)
def test_strings_of_other_shapes(ctx):
    tfdist.init()
    with pytest.raises(tf.errors.InvalidArgumentError, match="differ in more than the first"):
        ops.all_gather(tf.fill([1, 2 + ctx.rank], "a"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
        if ctx.rank == 1:
            ops.broadcast(tf.fill([2], "a"))
        else:
            ops.broadcast(tf.fill([3], "a"))
            raise tf.errors.InvalidArgumentError(None, None, "the root's shape is its own")
    assert float(ops.all_reduce(tf.constant(1.0))) == 2.0


@on_ranks(3)
def test_nobody_passes_a_barrier_alone(ctx):
    tfdist.init()
    marks = ctx.tmp_path

    @tf.function
    def pass_by():
        ops.barrier()
        return tf.constant(1)

    for step in range(5):
        (marks / f"{step}-{ctx.rank}").touch()
        ops.barrier() if step % 2 else pass_by()
        assert {f"{step}-{rank}" for rank in range(3)} <= {p.name for p in marks.iterdir()}
