"""Layers of Keras in small models, for replicas that have one row or none, as `Case`.

Two batches of 8 rows and one of a single row: of two replicas the second one has no row of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from support.training.models import EXACT
from support.training.parity_models import CLASSES, Case

BATCH, ROWS, WORDS = 8, 17, 11
layers = keras.layers
_LINE, _IMAGE, _BLOCK, _FILM = (12, 3), (9, 9, 3), (6, 6, 6, 2), (4, 6, 6, 2)


def _numbers(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(4).normal(size=(ROWS, *shape)).astype("float32")
    return x, (np.abs(x).reshape(ROWS, -1).sum(1) * 3).astype("int32") % CLASSES


def _words(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(4).integers(1, WORDS, (ROWS, *shape)).astype("int32")
    if shape:
        x[:, shape[0] // 2 :] *= np.arange(ROWS)[:, np.newaxis] % 2  # padding
    return x, (x.reshape(ROWS, -1).sum(1) % CLASSES).astype("int32")


def _case(
    shape: tuple[int, ...], body: Callable[[Any], Any], *, words: bool = False, **compiled: Any
) -> Case:
    def build() -> keras.Model:
        inputs = keras.Input(shape, dtype="int32" if words else "float32")
        hidden = body(inputs)
        if len(hidden.shape) > 2:
            hidden = layers.Flatten()(hidden)
        outputs = layers.Dense(CLASSES, activation="softmax")(hidden)
        model = keras.Model(inputs, outputs)
        options = {"metrics": ["accuracy"], **compiled}
        model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", **options)
        return model

    # Sums over large kernels are rounded more often.
    return Case(build, lambda: (_words if words else _numbers)(shape), 3 * EXACT, {}, BATCH)


def _dense_before(layer: Callable[[], Any]) -> Callable[[Any], Any]:
    """A layer without weights has others before it, whose gradient goes through it."""
    return lambda inputs: layer()(layers.Dense(3)(inputs))


def _pair(layer: Callable[[], Any]) -> Callable[[Any], Any]:
    return lambda inputs: layer()([layers.Dense(3)(inputs), layers.Dense(3)(inputs)])


def _pooled(inputs: Any) -> Any:
    hidden = layers.Embedding(WORDS, 4, mask_zero=True)(inputs)
    return layers.GlobalAveragePooling1D()(hidden)


def _attended(layer: Callable[[], Any]) -> Callable[[Any], Any]:
    def body(inputs: Any) -> Any:
        hidden = layers.Embedding(WORDS, 4, mask_zero=True)(inputs)
        return layers.GlobalAveragePooling1D()(layer()([hidden, hidden]))

    return body


def _self_attended(inputs: Any) -> Any:
    hidden = layers.Embedding(WORDS, 4, mask_zero=True)(inputs)
    return layers.GlobalAveragePooling1D()(layers.MultiHeadAttention(2, 4)(hidden, hidden))


def _recurrent(layer: Callable[[], Any]) -> Callable[[Any], Any]:
    return lambda inputs: layer()(layers.Embedding(WORDS, 4, mask_zero=True)(inputs))


class Penalty(layers.Layer):
    """Adds the mean of its inputs' squares as a loss."""

    def call(self, inputs):
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(inputs)))
        return inputs


_BY_RANK = {1: _LINE, 2: _IMAGE, 3: _BLOCK}


def _convolutions() -> dict[str, Case]:
    found = {}
    for rank, shape in _BY_RANK.items():
        for name in ("Conv{}D", "Conv{}DTranspose", "SeparableConv{}D", "DepthwiseConv{}D"):
            layer = getattr(layers, name.format(rank), None)
            if layer is None:
                continue
            arguments = (2,) if name.startswith("Depthwise") else (3, 2)
            # A convolution before it has a gradient of its inputs.
            before = getattr(layers, f"Conv{rank}D")
            found[name.format(rank)] = _case(
                shape,
                lambda inputs, layer=layer, arguments=arguments, before=before: layer(
                    *arguments, activation="relu"
                )(before(2, 2)(inputs)),
            )
    return found


def _poolings() -> dict[str, Case]:
    found = {}
    for rank, shape in _BY_RANK.items():
        for name, *arguments in (
            ("MaxPooling", 2),
            ("AveragePooling", 2),
            ("GlobalMaxPooling",),
            ("GlobalAveragePooling",),
            ("UpSampling", 2),
            ("ZeroPadding", 1),
            ("Cropping", 1),
        ):
            layer = getattr(layers, f"{name}{rank}D")
            found[layer.__name__] = _case(
                shape, _dense_before(lambda layer=layer, arguments=arguments: layer(*arguments))
            )
    return found


CASES: dict[str, Case] = {
    **_convolutions(),
    **_poolings(),
    "ConvLSTM1D": _case((4, 8, 2), lambda inputs: layers.ConvLSTM1D(3, 2)(inputs)),
    "ConvLSTM2D": _case(_FILM, lambda inputs: layers.ConvLSTM2D(3, 2)(inputs)),
    "TimeDistributed": _case(
        _FILM, lambda inputs: layers.TimeDistributed(layers.Conv2D(3, 2))(inputs)
    ),
    "LSTM": _case((8,), _recurrent(lambda: layers.LSTM(4)), words=True),
    "GRU": _case((8,), _recurrent(lambda: layers.GRU(4)), words=True),
    "SimpleRNN": _case((8,), _recurrent(lambda: layers.SimpleRNN(4)), words=True),
    "RNN": _case(
        (8,),
        _recurrent(lambda: layers.RNN([layers.LSTMCell(4), layers.GRUCell(3)])),
        words=True,
    ),
    "Bidirectional": _case(
        (8,), _recurrent(lambda: layers.Bidirectional(layers.LSTM(4))), words=True
    ),
    "pooled mask": _case((8,), _pooled, words=True),
    "Attention": _case((8,), _attended(layers.Attention), words=True),
    "AdditiveAttention": _case((8,), _attended(layers.AdditiveAttention), words=True),
    "MultiHeadAttention": _case((8,), _self_attended, words=True),
    "GroupQueryAttention": _case(
        _LINE, lambda inputs: layers.GroupQueryAttention(4, 4, 2)(inputs, inputs)
    ),
    "Embedding of a number": _case(
        (), lambda inputs: layers.Embedding(WORDS, 4)(inputs), words=True
    ),
    "BatchNormalization": _case(
        _IMAGE,
        lambda inputs: layers.BatchNormalization(synchronized=True)(layers.Conv2D(3, 2)(inputs)),
    ),
    "LayerNormalization": _case(_LINE, _dense_before(layers.LayerNormalization)),
    "GroupNormalization": _case(_LINE, _dense_before(lambda: layers.GroupNormalization(3))),
    "UnitNormalization": _case(_LINE, _dense_before(layers.UnitNormalization)),
    "SpectralNormalization": _case(
        _IMAGE, lambda inputs: layers.SpectralNormalization(layers.Conv2D(3, 2))(inputs)
    ),
    "Normalization": _case(
        _LINE, _dense_before(lambda: layers.Normalization(mean=0.5, variance=2.0))
    ),
    "EinsumDense": _case(_LINE, lambda inputs: layers.EinsumDense("abc,cd->abd", (12, 4))(inputs)),
    "Dot": _case(_LINE, _pair(lambda: layers.Dot(2))),
    "Concatenate": _case(_LINE, _pair(layers.Concatenate)),
    "Maximum": _case(_LINE, _pair(layers.Maximum)),
    "Multiply": _case(_LINE, _pair(layers.Multiply)),
    "PReLU": _case(_LINE, _dense_before(layers.PReLU)),
    "Softmax": _case(_LINE, _dense_before(layers.Softmax)),
    "RepeatVector": _case((5,), _dense_before(lambda: layers.RepeatVector(3))),
    "Permute": _case(_LINE, _dense_before(lambda: layers.Permute((2, 1)))),
    "Reshape": _case(_LINE, _dense_before(lambda: layers.Reshape((-1, 6)))),
    "ActivityRegularization": _case(
        _LINE, _dense_before(lambda: layers.ActivityRegularization(l2=0.01))
    ),
    "add_loss": _case(_LINE, _dense_before(Penalty)),
    "Masking": _case(_LINE, lambda inputs: layers.LSTM(4)(layers.Masking()(inputs))),
    "Resizing": _case(_IMAGE, _dense_before(lambda: layers.Resizing(5, 5))),
    "logarithm": _case(
        _LINE,
        _dense_before(lambda: layers.Lambda(lambda x: keras.ops.log(keras.ops.square(x) + 0.1))),
    ),
    "deviations": _case(
        _LINE,
        _dense_before(
            lambda: layers.Lambda(lambda x: x / keras.ops.std(x, axis=(1, 2), keepdims=True))
        ),
    ),
}
if hasattr(layers, "RMSNormalization"):
    CASES["RMSNormalization"] = _case(_LINE, _dense_before(layers.RMSNormalization))
