"""The fused sum of replicas in one process: values, memory, graphs, errors."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.ops import library
from tfdist.ops.local.local_reduce import local_reduce

DTYPES = ["float16", "bfloat16", "float32", "float64", "int32", "int64"]
SHAPES = [(), (1,), (0, 3), (7,), (3, 5, 2), (5001,)]


def values(replica: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small integers, exact in every dtype, different on every replica."""
    count = int(np.prod(shape))
    numbers = ((np.arange(count) * 3 + 5 * replica) % 23).reshape(shape)
    return numbers.astype(tf.as_dtype(dtype).as_numpy_dtype)


def total(replicas: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return sum(values(r, shape, "int64") for r in range(replicas)).astype(
        values(0, (), dtype).dtype
    )


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
def test_sums_of_all_dtypes_and_shapes_keep_their_order(replicas, mode):
    spec = [(shape, dtype) for shape in SHAPES for dtype in DTYPES]
    reduce = local_reduce if mode == "eager" else tf.function(local_reduce)
    sums = reduce([[tf.constant(values(r, *s)) for s in spec] for r in range(replicas)])
    for (shape, dtype), result in zip(spec, sums, strict=True):
        assert result.dtype == dtype and result.shape == shape
        np.testing.assert_array_equal(result.numpy(), total(replicas, shape, dtype))


def test_mean_divides_floats_and_truncates_integers():
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        replicas = [[tf.constant([1.0 + r, 10.0 * r], dtype)] for r in range(4)]
        np.testing.assert_array_equal(local_reduce(replicas, "mean")[0], [2.5, 15.0])
    for dtype in ("int32", "int64"):
        # -1 / 2 is 0, as for tf.reduce_mean, not -1.
        replicas = [[tf.constant([-1, 7], dtype)], [tf.constant([0, 2], dtype)]]
        np.testing.assert_array_equal(local_reduce(replicas, "mean")[0], [0, 4])


def test_a_list_larger_than_the_cache():
    # Odd sizes, so that the threads' parts do not begin at multiples of a cache line.
    sizes = [3_000_001, 5, 2_500_003]
    replicas = [[tf.range(float(n)) * (r + 1) for n in sizes] for r in range(3)]
    for n, result in zip(sizes, local_reduce(replicas), strict=True):
        np.testing.assert_array_equal(result, 6 * np.arange(n, dtype=np.float32))


def test_nothing_to_reduce():
    assert local_reduce([[], []]) == []


def test_whoever_holds_a_tensor_keeps_its_value():
    variable = tf.Variable([1.0, 2.0])
    held = tf.constant([3.0, 4.0])
    np.testing.assert_array_equal(local_reduce([[variable], [held]])[0], [4.0, 6.0])

    @tf.function
    def step(argument):
        product = argument * 2.0
        once = local_reduce([[product, variable], [product, argument]])
        again = local_reduce([[product, variable], [product, argument]])  # the same subgraph
        other = local_reduce([[product, product], [argument, argument]], "mean")
        return [product, *once, *again, *other]

    for _ in range(2):
        results = [result.numpy().tolist() for result in step(held)]
        assert results == [
            [6.0, 8.0],
            [12.0, 16.0],
            [4.0, 6.0],
            [12.0, 16.0],
            [4.0, 6.0],
            [4.5, 6.0],
            [4.5, 6.0],
        ]
    np.testing.assert_array_equal(variable, [1.0, 2.0])
    np.testing.assert_array_equal(held, [3.0, 4.0])


def test_constants_loops_and_branches():
    @tf.function
    def looped(x):
        constant = local_reduce([[tf.constant([1.0]), tf.constant([2])]] * 3)
        for i in tf.range(4):
            if i % 2 == 0:
                x = local_reduce([[x, x], [x, x * 2.0]])[1]
            else:
                x = local_reduce([[x, x]] * 2, "mean")[0]
        return x, constant

    x, constant = looped(tf.constant([1.0]))
    assert x.numpy() == [9.0]
    assert [c.numpy().tolist() for c in constant] == [[3.0], [6]]


def test_in_a_session_it_takes_the_memory_of_a_temporary():
    with tf.Graph().as_default():
        fed = tf.compat.v1.placeholder(tf.float32, [1000])
        held = fed * 5.0
        products = [fed * 2.0, fed * 3.0]
        first, second = local_reduce([[products[0], held], [products[1], fed * 7.0]])
        options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
        trace = tf.compat.v1.RunMetadata()
        with tf.compat.v1.Session() as session:
            feed = np.arange(1000.0)
            results = session.run([first, second, held], {fed: feed}, options, trace)
    np.testing.assert_array_equal(results[0], 5 * feed)
    np.testing.assert_array_equal(results[1], 12 * feed)
    np.testing.assert_array_equal(results[2], 5 * feed)
    addresses = {
        node.node_name: [o.tensor_description.allocation_description.ptr for o in node.output]
        for device in trace.step_stats.dev_stats
        for node in device.node_stats
    }
    sums = addresses["TfdistLocalReduce"]
    assert sums[0] == addresses[products[0].op.name][0]
    assert sums[1] != addresses[held.op.name][0]


def test_shapes_are_known_while_a_graph_is_built():
    signature = [tf.TensorSpec([None, 3]), tf.TensorSpec([4, None])]

    @tf.function(input_signature=[*signature, *signature])
    def step(a, b, c, d):
        sums = local_reduce([[a, b], [tf.ensure_shape(c, [2, None]), d]])
        assert [s.shape.as_list() for s in sums] == [[2, 3], [4, None]]
        return sums

    step(tf.ones([2, 3]), tf.ones([4, 1]), tf.ones([2, 3]), tf.ones([4, 1]))


def test_differing_shapes_name_the_replica_and_the_tensor():
    first = [tf.constant(1), tf.ones([2]), tf.constant(1), tf.ones([2, 3])]
    third = [*first[:3], tf.ones([3, 2])]
    said = r"replica 2, tensor 3: expected \[2,3\] as on replica 0, received \[3,2\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=said):
        local_reduce([first, first, third])
    with pytest.raises(ValueError, match=said):
        tf.function(local_reduce)([first, first, third])

    @tf.function(input_signature=[tf.TensorSpec(None)] * 2)
    def unknown(a, b):
        return local_reduce([[1, a], [2, b]])

    said = r"replica 1, tensor 1: expected \[2,3\] as on replica 0, received \[\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=said):
        unknown(tf.ones([2, 3]), tf.constant(1.0))


def test_other_disagreements_are_told_before_anything_runs():
    one = tf.constant(1.0)
    with pytest.raises(ValueError, match="at least one replica, received none"):
        local_reduce([])
    with pytest.raises(ValueError, match="replica 1: expected 2 tensors .* received 1"):
        local_reduce([[one, one], [one]])
    with pytest.raises(TypeError, match="tensor 1: expected one of float16, .*, received uint8"):
        local_reduce([[one, tf.constant(1, tf.uint8)]] * 2)
    with pytest.raises(TypeError, match="replica 1, tensor 0: expected float32 .* received int32"):
        local_reduce([[one], [tf.constant(1)]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="'reduce_op' of \"max\" is not in"):
        local_reduce([[one], [one]], "max")


def test_ops_that_are_called_wrongly_do_not_crash():
    kernels = library.graph_ops()
    one = tf.constant(1.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected 2 tensors of each replica"):
        kernels.tfdist_local_reduce(inputs=[one] * 3, N=2, reduce_op="sum", positions=[0, 1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="received 2 tensors and 1 positions"):
        kernels.tfdist_local_reduce(inputs=[one] * 2, N=2, reduce_op="sum", positions=[0])
    bundle = kernels.tfdist_bundle(inputs=[one, tf.constant(2)])
    with pytest.raises(tf.errors.InvalidArgumentError, match="1 tensors, received Bundle of 2"):
        kernels.tfdist_unbundle(bundle, [tf.float32], [])
    with pytest.raises(tf.errors.InvalidArgumentError, match="tensor 1 .* float, received int32"):
        kernels.tfdist_unbundle(bundle, [tf.float32, tf.float32], [])
    other = tf.raw_ops.EmptyTensorList(
        element_shape=tf.constant(-1), max_num_elements=1, element_dtype=tf.float32
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="received another variant"):
        kernels.tfdist_unbundle(other, [tf.float32], [])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"a scalar, received shape \[2\]"):
        kernels.tfdist_unbundle(tf.stack([bundle, bundle]), [tf.float32], [])
