"""Arguments of compression, and each method against NumPy on a communicator of one rank."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute.collective_util import Options

import tfdist
from tfdist import ops
from tfdist.compression import (
    BF16,
    FP16,
    NoCompression,
    OneBit,
    PowerSGD,
    TopK,
    compressor,
    method_of,
)
from tfdist.ops.collectives.compressed import (
    multiply_transposed,
    one_bit_encode,
    one_bit_sum,
    orthonormalize,
    scatter_add_top_k,
    top_k,
)

TOPK = TopK(0.1, min_elements=1)
POWER = PowerSGD(2, min_elements=1)


@pytest.fixture(scope="module")
def alone():
    with ops.Communicator(0, 1) as communicator:
        communicator.connect(bytes(32), 1, [f"127.0.0.1:{communicator.port}"], 10)
        yield communicator


def gradients(seed: int, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.normal(size=shape).astype("float32") for shape in shapes]


def test_names_and_methods():
    named = {"none": NoCompression(), "fp16": FP16(), "bf16": BF16(), "topk": TopK()}
    for name, method in {**named, "onebit": OneBit(), "powersgd": PowerSGD()}.items():
        assert method_of(name) == method == method_of(method)
        assert compressor(name).method == method
    assert method_of(None) is None
    assert compressor(None).method == NoCompression()
    assert TopK(0.5) == TopK(ratio=0.5) != TopK(0.5, start_iteration=3)
    assert len({FP16(), FP16(), FP16(min_elements=1)}) == 2


def test_names_of_horovod():
    """Horovod's classes have two static methods; here they also name tfdist's methods."""
    none, fp16 = tfdist.Compression.none, tfdist.Compression.fp16
    assert method_of(none) == NoCompression() and compressor(fp16).method == FP16()
    assert tfdist.CommunicationOptions(compression=fp16).compression == FP16()
    x = tf.constant([0.1, 70000.0], tf.float64)
    same, context = none.compress(x)
    assert none.decompress(same, context) is same is x
    small, context = fp16.compress(x)
    assert small.dtype == tf.float16 and context == tf.float64
    back = fp16.decompress(small, context)
    assert back.dtype == tf.float64
    np.testing.assert_array_equal(back, [float(np.float16(0.1)), np.inf])
    whole, context = fp16.compress(tf.constant([1, 2**20]))
    np.testing.assert_array_equal(fp16.decompress(whole, context), [1, 2**20])
    assert whole.dtype == tf.int32


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: method_of("zip"), "expected 'none', 'fp16', .* received 'zip'"),
        (lambda: method_of(16), "a method of tfdist.compression, received 16"),
        (lambda: TopK(0), "TopK: expected 0 < ratio <= 1, received 0"),
        (lambda: TopK(1.5), "received 1.5"),
        (lambda: TopK("0.1"), "received '0.1'"),
        (lambda: TopK(start_iteration=-1), "start_iteration .* at least 0, received -1"),
        (lambda: OneBit(start_iteration=-1), "OneBit: expected start_iteration .* received -1"),
        (lambda: PowerSGD(0), "PowerSGD: expected rank .* at least 1, received 0"),
        (lambda: PowerSGD(2.0), "received 2.0"),
        (lambda: PowerSGD(True), "received True"),
        (lambda: FP16(min_elements=0), "FP16: expected min_elements .* received 0"),
    ],
)
def test_bad_arguments_are_named(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_options_are_tensorflows_with_one_more():
    options = tfdist.CommunicationOptions(7, 5.0, "RING", "fp16")
    assert isinstance(options, Options)
    assert (options.bytes_per_pack, options.timeout_seconds) == (7, 5.0)
    assert options.implementation.value == "RING"
    assert options.compression == FP16() == copy.deepcopy(options).compression
    assert "compression=FP16(" in str(options)
    assert tfdist.CommunicationOptions().compression is None

    assert options.merge(None).compression == FP16()
    assert options.merge(Options(bytes_per_pack=9)).compression == FP16()
    merged = options.merge(tfdist.CommunicationOptions(compression="none"))
    assert (merged.compression, merged.bytes_per_pack) == (NoCompression(), 7)
    assert tfdist.CommunicationOptions.of(Options(bytes_per_pack=9)).bytes_per_pack == 9
    assert tfdist.CommunicationOptions.of(None).compression is None


def test_options_refuse_what_cannot_be():
    with pytest.raises(ValueError, match="compression: expected .* received 'gzip'"):
        tfdist.CommunicationOptions(compression="gzip")
    with pytest.raises(ValueError, match="received NCCL and FP16"):
        tfdist.CommunicationOptions(implementation="NCCL", compression="fp16")
    nccl = tfdist.CommunicationOptions(implementation="NCCL")
    with pytest.raises(ValueError, match="TensorFlow's own collectives compress nothing"):
        tfdist.CommunicationOptions(compression="topk").merge(nccl)
    assert nccl.merge(tfdist.CommunicationOptions(compression="none")).compression is not None


@pytest.mark.parametrize("method", [FP16(min_elements=1), BF16(min_elements=1)])
@pytest.mark.parametrize("mode", ["eager", "function"])
def test_16_bits_round_once_on_one_rank(alone, method, mode):
    half = compressor(method)
    reduce = half.all_reduce if mode == "eager" else tf.function(half.all_reduce)
    (values,) = gradients(0, (3, 700))
    kind = (tf.float16 if method == FP16(min_elements=1) else tf.bfloat16).as_numpy_dtype
    rounded = values.astype(kind).astype("float32")
    held = tf.constant(values)
    wide, double, empty, integers = reduce(
        [held, values.astype("float64"), tf.zeros([0, 2]), tf.range(4)], alone, "mean"
    )
    np.testing.assert_array_equal(wide, rounded)
    np.testing.assert_array_equal(double, rounded.astype("float64"))
    assert double.dtype == tf.float64 and empty.shape == (0, 2)
    np.testing.assert_array_equal(integers, range(4))
    np.testing.assert_array_equal(held, values)  # its memory was not reused


def test_float16_overflows_and_bfloat16_does_not(alone):
    values = [tf.constant([70000.0, -1e30, 1e-9, 65504.0])]
    (half,) = compressor(FP16(min_elements=1)).all_reduce(values, alone)
    np.testing.assert_array_equal(half, [np.inf, -np.inf, 0.0, 65504.0])
    (brain,) = compressor(BF16(min_elements=1)).all_reduce(values, alone)
    np.testing.assert_allclose(brain, values[0], rtol=2**-8)


def test_top_k_against_numpy(alone):
    top = compressor(TOPK)
    residual = np.zeros([10, 12], "float32")
    for step in range(5):
        (gradient,) = gradients(step, (10, 12))
        accumulated = gradient + residual
        order = np.argsort(-np.abs(accumulated), axis=None, kind="stable")[:12]
        expected = np.zeros([120], "float32")
        expected[order] = accumulated.flat[order]
        residual = accumulated - expected.reshape(10, 12)
        (sent,) = top.all_reduce([gradient], alone)
        np.testing.assert_array_equal(sent, expected.reshape(10, 12))


def test_one_bit_against_numpy(alone):
    """Alone too the sum is quantized, but it has two values per column already."""
    one_bit = compressor(OneBit(min_elements=1))
    residual = np.zeros([10, 12], "float32")
    for step in range(5):
        (gradient,) = gradients(step, (2, 5, 12))
        accumulated = gradient.reshape(10, 12) + residual
        expected = np.empty_like(accumulated)
        for column in range(12):
            values = accumulated[:, column]
            for side in (values < 0, values >= 0):
                expected[side, column] = np.mean(values[side], dtype="float64")
        residual = accumulated - expected
        (sent,) = one_bit.all_reduce([gradient], alone)
        np.testing.assert_allclose(sent, expected.reshape(2, 5, 12), atol=1e-6)


def test_power_sgd_against_numpy(alone):
    power = compressor(POWER)
    right = tf.random.stateless_normal([6, 2], seed=(8, 1907)).numpy()
    residual = np.zeros([20, 6])
    for step in range(5):
        (gradient,) = gradients(step, (4, 5, 6))
        matrix = gradient.reshape(20, 6) + residual
        left, _ = np.linalg.qr(matrix @ right)
        right = matrix.T @ left
        approximation = left @ right.T
        residual = matrix - approximation
        (sent,) = power.all_reduce([gradient], alone)
        np.testing.assert_allclose(sent, approximation.reshape(4, 5, 6), atol=1e-5)


@pytest.mark.parametrize("method", [TOPK, POWER], ids=["topk", "powersgd"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_is_lost_but_only_comes_later(alone, method, dtype):
    feedback = compressor(method)
    total, applied = 0.0, 0.0
    for step in range(20):  # then zero gradients, with which the residual is sent
        (gradient,) = gradients(step, (12, 9)) if step < 8 else [np.zeros([12, 9])]
        total = total + gradient
        (sent,) = feedback.all_reduce([gradient.astype(dtype)], alone)
        assert sent.dtype == dtype
        applied = applied + sent
        if step == 7:
            assert np.max(np.abs(applied - total)) > 0.1
    np.testing.assert_allclose(applied, total, atol=1e-4)


@pytest.mark.parametrize("method", [TOPK, POWER], ids=["topk", "powersgd"])
def test_zero_gradients_do_not_stop_what_comes_after(alone, method):
    feedback = compressor(method)
    for _ in range(3):
        (sent,) = feedback.all_reduce([tf.zeros([12, 9])], alone)
        np.testing.assert_array_equal(sent, np.zeros([12, 9]))
    (gradient,) = gradients(0, (12, 9))
    applied = sum(
        feedback.all_reduce([gradient if step == 0 else tf.zeros([12, 9])], alone)[0]
        for step in range(12)
    )
    np.testing.assert_allclose(applied, gradient, atol=1e-4)


@pytest.mark.parametrize("method", [TopK(0.1), PowerSGD(2)], ids=["topk", "powersgd"])
def test_small_tensors_and_other_dtypes_travel_as_they_are(alone, method):
    values = [tf.ones([31, 33]), tf.ones([2000], tf.int32), tf.ones([50, 50], tf.float16)]
    for value, same in zip(values, compressor(method).all_reduce(values, alone), strict=True):
        np.testing.assert_array_equal(value, same)


def test_power_sgd_leaves_vectors_and_thin_matrices(alone):
    values = gradients(0, (5000,), (2000, 2), (2000, 1, 3))
    for value, same in zip(values, compressor("powersgd").all_reduce(values, alone), strict=True):
        np.testing.assert_array_equal(value, same)


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_the_first_iterations_are_not_compressed(alone, mode):
    late = compressor(TopK(0.1, start_iteration=2, min_elements=1))
    reduce = late.all_reduce if mode == "eager" else tf.function(late.all_reduce)
    (gradient,) = gradients(0, (10, 10))
    nonzero = [np.count_nonzero(reduce([gradient], alone)[0]) for _ in range(4)]
    assert nonzero == [100, 100, 10, 10]


def test_a_gradient_is_known_by_its_variable(alone):
    top = compressor(TopK(0.5, min_elements=1))
    first, second = tf.Variable(tf.zeros([2])), tf.Variable(tf.zeros([2]))

    def step(variable, gradient=(3.0, 1.0)):
        return top.all_reduce([tf.constant(gradient)], alone, variables=[variable])[0]

    def traced(variable):
        return tf.function(lambda: step(variable, (0.0, 1.0)))()

    np.testing.assert_array_equal(step(first), [3, 0])
    np.testing.assert_array_equal(step(second), [3, 0])
    np.testing.assert_array_equal(step(first), [3, 0])  # its residual is 2 now
    np.testing.assert_array_equal(traced(first), [0, 3])
    np.testing.assert_array_equal(traced(second), [0, 2])
    for _ in range(5):  # the residual ends with the variable, although the next one reuses its id
        variable = tf.Variable(tf.zeros([2]))
        np.testing.assert_array_equal(step(variable, (0.0, 0.0)), [0, 0])
        np.testing.assert_array_equal(step(variable), [3, 0])
        del variable


def test_without_a_variable_it_is_known_by_its_place(alone):
    top = compressor(TopK(0.5, min_elements=1))

    @tf.function(reduce_retracing=False)
    def step(scale):
        gradient = tf.constant([3.0, 1.0]) * tf.cast(scale, tf.float32)
        (one,) = top.all_reduce([gradient], alone)
        (other,) = top.all_reduce([gradient], alone)
        return one, other

    for scale in (1, 1.0):  # another trace continues with the first one's residual
        for value in step(tf.constant(scale)):
            np.testing.assert_array_equal(value, [3, 0])
    for value in step(tf.constant(0)):
        np.testing.assert_array_equal(value, [0, 2])


def test_in_a_graph_of_tensorflow_1(alone):
    for method, steps in ((TOPK, 11), (POWER, 8)):
        with tf.Graph().as_default():
            fed = tf.compat.v1.placeholder(tf.float32, [12, 9])
            (sent,) = compressor(method).all_reduce([fed], alone)
            (gradient,) = gradients(0, (12, 9))
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.local_variables_initializer())
                assert not tf.compat.v1.global_variables()
                applied = session.run(sent, {fed: gradient})
                for _ in range(steps):
                    applied += session.run(sent, {fed: np.zeros([12, 9])})
        np.testing.assert_allclose(applied, gradient, atol=1e-4)


def test_misuse_is_told_before_anything_travels(alone):
    top = compressor("topk")
    one = tf.ones([2000])
    with pytest.raises(ValueError, match="expected reduce_op 'sum' or 'mean', received 'max'"):
        top.all_reduce([one], alone, "max")
    with pytest.raises(ValueError, match="a variable for each of 1 tensors, received 2"):
        top.all_reduce([one], alone, variables=[None, None])
    with pytest.raises(TypeError, match="received tf.IndexedSlices"):
        top.all_reduce([tf.IndexedSlices(one, tf.range(2000))], alone)


def test_ops_that_are_called_wrongly_do_not_crash():
    one = tf.ones([3])
    with pytest.raises(tf.errors.InvalidArgumentError, match="tensor 0: .* received 4 of 3"):
        top_k([one], [4])
    with pytest.raises(tf.errors.InvalidArgumentError, match="each of 1 tensors, received 2"):
        top_k([one], [1, 1])
    payload, _ = top_k([one], [2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="payloads of 6 integers, received 4"):
        scatter_add_top_k(payload, [one.shape], [3])
    with pytest.raises(tf.errors.InvalidArgumentError, match="position 1 in a tensor of 1 values"):
        scatter_add_top_k(tf.constant([1, 0]), [tf.TensorShape([1])], [1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="tensor 0: .* received 1 dimensions"):
        one_bit_encode([one], 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="2 payloads of 3 integers, received"):
        one_bit_sum(tf.zeros([3], tf.int32), [[4, 1]], 1, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="as many columns as rows"):
        orthonormalize(tf.ones([2, 3]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="as many columns, received"):
        multiply_transposed(tf.ones([2, 3]), tf.ones([2, 2]))
