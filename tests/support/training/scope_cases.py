"""Models that are made, built or compiled partly outside of a strategy's scope."""

from __future__ import annotations

import importlib

import numpy as np

ROWS, COLUMNS, BATCH = 20, 3, 8


def rows():
    x = np.random.default_rng(0).normal(size=(ROWS, COLUMNS))
    return x, x.sum(axis=1, keepdims=True)


def lazy(keras):
    """A model without variables yet."""
    return keras.Sequential([keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])


def built(keras):
    return keras.Sequential([keras.Input((COLUMNS,)), *lazy(keras).layers])


def _compile(model):
    model.compile("adam", "mse", metrics=["mae"])


def _called_outside(keras, scope):
    with scope():
        model = lazy(keras)
        _compile(model)
    model(rows()[0])
    return model


def _built_outside(keras, scope):
    with scope():
        model = lazy(keras)
    model.build((None, COLUMNS))
    with scope():
        _compile(model)
    return model


def _compiled_outside(keras, scope):
    with scope():
        model = built(keras)
    _compile(model)
    return model


def _all_but_the_model_outside(keras, scope):
    with scope():
        model = lazy(keras)
    _compile(model)
    return model


def _metric_outside(keras, scope):
    metric = keras.metrics.MeanAbsoluteError(name="mae")
    with scope():
        model = built(keras)
        model.compile("adam", "mse", metrics=[metric])
    return model


def _optimizer_outside(keras, scope):
    optimizer = keras.optimizers.Adam()
    with scope():
        model = built(keras)
        model.compile(optimizer, "mse", metrics=["mae"])
    return model


def _built_optimizer_outside(keras, scope):
    with scope():
        model = built(keras)
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def _compiled_again_outside(keras, scope):
    with scope():
        model = built(keras)
        _compile(model)
    model.fit(*rows(), batch_size=BATCH, verbose=0, shuffle=False)
    model.layers[0].trainable = False
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


def _loss_outside(keras, scope):
    """A loss that counts its calls."""

    class Growing(keras.losses.Loss):
        def __init__(self):
            super().__init__()
            self.calls = keras.Variable(0.0, trainable=False)

        def call(self, y_true, y_pred):
            self.calls.assign(self.calls + 1.0)
            return self.calls * keras.ops.mean((y_true - y_pred) ** 2, axis=-1)

    loss = Growing()
    with scope():
        model = built(keras)
        model.compile(keras.optimizers.Adam(), loss)
    return model


def _own_optimizers_outside(keras, scope):
    """A model with a training step and two optimizers of its own, as a GAN's."""
    import tensorflow as tf

    class InTurns(keras.Model):
        def __init__(self):
            super().__init__()
            self.parts = [keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]

        def call(self, x):
            return self.parts[1](self.parts[0](x))

        def compile(self, optimizers):
            super().compile(loss="mse")
            self.first, self.others = optimizers[0], {"second": optimizers[1]}

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(x))
            of = [part.trainable_variables for part in self.parts]
            for optimizer, variables, gradients in zip(
                (self.first, self.others["second"]), of, tape.gradient(loss, of), strict=True
            ):
                optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return {"steps": tf.cast(self.first.iterations, tf.float32)}

    optimizers = keras.optimizers.SGD(0.1, momentum=0.9), keras.optimizers.Adam(0.01)
    with scope():
        model = InTurns()
        model(rows()[0])
        model.compile(optimizers)
    return model


# Models that train as within the scope.
TRAINED = {
    "called outside": _called_outside,
    "built outside": _built_outside,
    "compiled outside": _compiled_outside,
    "all but the model outside": _all_but_the_model_outside,
    "metric outside": _metric_outside,
    "optimizer outside": _optimizer_outside,
    "built optimizer outside": _built_optimizer_outside,
    "compiled again outside": _compiled_again_outside,
    "loss outside": _loss_outside,
    "own optimizers outside": _own_optimizers_outside,
}


def _made_outside(keras, scope):
    model = built(keras)
    with scope():
        _compile(model)
    return model


def _lazy_made_outside(keras, scope):
    model = lazy(keras)
    with scope():
        _compile(model)
    return model


def _base_outside(keras, scope):
    base = built(keras)
    with scope():
        model = keras.Sequential([keras.Input((COLUMNS,)), base, keras.layers.Dense(1)])
        _compile(model)
    return model


def _head_outside(keras, scope):
    with scope():
        base = built(keras)
    model = keras.Sequential([keras.Input((COLUMNS,)), base, keras.layers.Dense(1)])
    _compile(model)
    return model


# Refused models, and the text that says why.
REFUSED = {
    "made outside": (
        _made_outside,
        "was made outside of any scope, and is compiled in the scope of",
    ),
    "lazy, made outside": (_lazy_made_outside, "was made outside of any scope, and is compiled in"),
    "base outside": (_base_outside, "expected variables of .*kernel' was made outside its scope"),
    "head outside": (_head_outside, "was made outside the scope of .*, to which its variable .*"),
}


def trained(case, scope, library="keras"):
    """Returns what a model of `TRAINED` has logged, predicted and learnt."""
    keras = importlib.import_module(library)
    keras.utils.set_random_seed(3)
    model = TRAINED[case](keras, scope)
    x, y = rows()
    logs = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, shuffle=False).history
    return [*logs.values(), model.predict(x, verbose=0), *model.get_weights()]


def refused(case, scope, library="keras"):
    """Trains a model of `REFUSED`."""
    keras = importlib.import_module(library)
    model = REFUSED[case][0](keras, scope)
    model.fit(*rows(), batch_size=BATCH, verbose=0)
