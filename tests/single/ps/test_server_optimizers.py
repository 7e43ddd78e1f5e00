"""The optimizers that run on a server, step by step beside Keras's."""

import ctypes
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.ops import library

SHAPE = (41, 3)
DTYPES = {"float32": 3, "float64": 4}  # numbered as in core/math/dtype.h
LARGEST_ERROR = {"float32": 1e-6, "float64": 1e-12}

# By name: the number of its kind in core/ps/optimizers/optimizer.h, and how Keras makes one.
optimizers = keras.optimizers
OPTIMIZERS = {
    "sgd": (1, lambda: optimizers.SGD(0.1)),
    "momentum": (1, lambda: optimizers.SGD(0.05, momentum=0.9)),
    "nesterov": (1, lambda: optimizers.SGD(0.05, momentum=0.8, nesterov=True)),
    "sgd_decay": (1, lambda: optimizers.SGD(0.1, weight_decay=0.02)),
    "nesterov_decay": (
        1,
        lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.02),
    ),
    "adagrad": (2, lambda: optimizers.Adagrad(0.05)),
    "rmsprop": (3, lambda: optimizers.RMSprop(0.01)),
    "rmsprop_momentum": (3, lambda: optimizers.RMSprop(0.01, momentum=0.7)),
    "rmsprop_centered": (3, lambda: optimizers.RMSprop(0.01, rho=0.8, centered=True)),
    "rmsprop_both": (
        3,
        lambda: optimizers.RMSprop(0.01, rho=0.8, momentum=0.7, centered=True, epsilon=1e-3),
    ),
    "adam": (4, lambda: optimizers.Adam(0.01)),
    "adam_amsgrad": (4, lambda: optimizers.Adam(0.01, beta_2=0.9, amsgrad=True)),
    "adamw": (4, lambda: optimizers.AdamW(0.01, weight_decay=0.1)),
    "adamax": (5, lambda: optimizers.Adamax(0.01, beta_2=0.9)),
    "ftrl": (6, lambda: optimizers.Ftrl(0.1)),
    "ftrl_regularized": (
        6,
        lambda: optimizers.Ftrl(
            0.1,
            l1_regularization_strength=0.05,
            l2_regularization_strength=0.03,
            l2_shrinkage_regularization_strength=0.02,
            beta=0.3,
        ),
    ),
    "ftrl_power": (
        6,
        lambda: optimizers.Ftrl(
            0.2, learning_rate_power=-0.7, l1_regularization_strength=0.05, beta=0.3
        ),
    ),
    "lion": (7, lambda: optimizers.Lion(0.01)),
    "lion_decay": (7, lambda: optimizers.Lion(0.01, weight_decay=0.1)),
    "adadelta": (8, lambda: optimizers.Adadelta(1.0, rho=0.9, epsilon=1e-3)),
    "nadam": (9, lambda: optimizers.Nadam(0.01, beta_2=0.9)),
}


class Config(ctypes.Structure):
    """Laid out as `OptimizerConfig` in core/ps/optimizers/optimizer.h, with Keras's own names."""

    _fields_ = [
        ("kind", ctypes.c_uint8),
        *((name, ctypes.c_bool) for name in ("nesterov", "centered", "amsgrad")),
        *(
            (name, ctypes.c_double)
            for name in (
                "momentum",
                "rho",
                "beta_1",
                "beta_2",
                "epsilon",
                "learning_rate_power",
                "l1_regularization_strength",
                "l2_regularization_strength",
                "l2_shrinkage_regularization_strength",
                "beta",
                "beta_2_decay",
                "epsilon_1",
                "epsilon_2",
                "clip_threshold",
            )
        ),
    ]


@functools.cache
def server_function():
    function = library.c_api().tfdist_ps_optimize
    function.argtypes = [
        ctypes.POINTER(Config),
        ctypes.c_double,
        ctypes.c_int64,
        ctypes.c_double,
        ctypes.c_int,
        ctypes.c_size_t,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_int,
    ]
    function.restype = ctypes.c_bool
    return function


def server_step(kind, optimizer, step, gradient, value, slots) -> bool:
    """Makes the server's step for a Keras optimizer, in place on NumPy arrays."""
    config = Config(kind=kind)
    for name, _ in Config._fields_[1:]:
        setattr(config, name, getattr(optimizer, name, 0))
    return server_function()(
        config,
        float(optimizer.learning_rate.numpy()),
        step,
        optimizer.weight_decay or 0.0,
        DTYPES.get(value.dtype.name, 1),
        value.size,
        gradient.ctypes.data,
        value.ctypes.data,
        (ctypes.c_void_p * max(1, len(slots)))(*(slot.ctypes.data for slot in slots)),
        len(slots),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_servers_steps_are_those_of_keras(name, dtype):
    kind, make = OPTIMIZERS[name]
    optimizer = make()
    random = np.random.default_rng(7)
    value = random.normal(scale=0.3, size=SHAPE).astype(dtype)
    variable = keras.Variable(value, dtype=dtype)
    optimizer.build([variable])
    # After iterations and learning rate; Nadam's product is no slot.
    keras_slots = [v for v in optimizer.variables[2:] if v.shape == SHAPE]
    slots = [slot.numpy() for slot in keras_slots]
    # Compiled as in `fit`, because TensorFlow computes some powers differently outside of it.
    keras_step = tf.function(lambda gradient: optimizer.apply([gradient], [variable]))

    for step in range(1, 21):
        if step % 7 == 0:
            factor = 0.4 if step == 7 else 1.7
            optimizer.learning_rate = float(optimizer.learning_rate.numpy()) * factor
        gradient = random.normal(scale=0.1, size=SHAPE).astype(dtype)
        gradient[step] = 0
        before = value.copy()
        keras_step(tf.constant(gradient))
        assert server_step(kind, optimizer, step, gradient, value, slots)
        assert np.abs(value - before).max() > 1e-3
        for ours, theirs in zip([value, *slots], [variable, *keras_slots], strict=True):
            assert ours.dtype == dtype
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=LARGEST_ERROR[dtype])


def test_other_dtypes_and_numbers_of_slots_are_refused():
    half, single = np.ones(3, "float16"), np.ones(3, "float32")
    assert not server_step(1, optimizers.SGD(0.1), 1, half, half.copy(), [])
    assert not server_step(4, optimizers.Adam(0.1), 1, single, single.copy(), [single.copy()])
    assert server_step(1, optimizers.SGD(0.25), 1, single, single, [])
    np.testing.assert_array_equal(single, [0.75] * 3)
