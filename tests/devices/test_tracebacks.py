"""An exception in a callback of the user's shows the user's frames and Keras's, not tfdist's."""

from __future__ import annotations

import traceback

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist import tracebacks


class Fails(keras.callbacks.Callback):
    """Raises in the second step, from another exception."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            try:
                self.model.evaluate(None)
            except Exception as error:
                raise self.kind("the disk is full") from error


def failed_fit(kind):
    with tfdist.MirroredStrategy(["/cpu:0"]).scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones((12, 2), "float32")
    with pytest.raises(kind, match="the disk is full") as caught:
        model.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=[Fails(kind)])
    return caught.value


def modules(error):
    return [
        frame.f_globals["__name__"].partition(".")[0]
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_own_frames_are_hidden(kind):
    error = failed_fit(kind)
    assert "tfdist" not in modules(error)
    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)][-1] == (
        "on_train_batch_end"
    )
    # The innermost frame tells who raised.
    assert "tfdist" not in modules(error.__context__)[:-1]
    if kind is KeyboardInterrupt:
        assert vars(error)["tfdist_place"] == "epoch 1, step 2"


def test_the_places_where_an_op_was_made():
    own = (
        f'  File "{tracebacks.__file__.replace("tracebacks", "ops/calls")}", line 93, in reduce\n\n'
    )
    others = (
        '  File "/home/me/tfdist/train.py", line 9, in <module>\n\n',
        "rank 0 of 2: ended by rank 1",
    )
    error = tf.errors.UnavailableError(
        None, None, f"Detected at node X:\n{own}{others[0]}{own}{others[1]}"
    )
    tracebacks.hide_own_frames(error)
    assert str(error) == f"Detected at node X:\n{others[0]}{others[1]}"


def test_the_place_of_a_collective_that_another_rank_has_ended():
    reason = "rank 0 of 2: ended by rank 1 (node:9): rank 1 ended with ValueError: a bad row"
    place = 'Detected at node Reduce defined at (most recent call last):\n  File "x", line 1'
    end = "\n\t [[{{node TfdistAllReduce}}]] [Op:__inference_step_1]"
    for told, expected in ((reason, reason), ("rank 0 of 2: expected float32[2]", None)):
        message = f"Graph execution error:\n\n{place}, in <module>\n\n{told}{end}"
        error = tf.errors.UnavailableError(None, None, message)
        tracebacks.hide_own_frames(error)
        assert str(error) == (expected or message)


def test_devices_that_are_refused_show_the_caller_s_line():
    with pytest.raises(ValueError, match="gpu:9") as caught:
        tfdist.MirroredStrategy(["/gpu:9"])
    assert "tfdist" not in modules(caught.value)


def test_keras_s_switch_brings_them_back():
    keras.config.disable_traceback_filtering()
    try:
        assert "tfdist" in modules(failed_fit(RuntimeError))
    finally:
        keras.config.enable_traceback_filtering()
