"""Models whose `train_step` does not call the model: replicas train as one process does."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from devices.replicas import make_strategy
from support.training import own_steps
from support.training.models import ADAPTIVE, difference


@pytest.mark.long(
    "mirrored-WGAN-GP",
    "mirrored-VAE",
    "mirrored-ragged words",
    "central-ragged texts",
    covered_by="the other cases",
)
@pytest.mark.long("central-*", usual="central-ragged *", covered_by="the other cases")
@pytest.mark.parametrize("name", own_steps.PROGRAMS)
@pytest.mark.parametrize("kind", ["mirrored", "central"])
def test_program(kind, name):
    found = own_steps.trained(name, make_strategy(kind, 2))
    expected = own_steps.trained(name, tf.distribute.get_strategy())
    assert difference(found, expected) <= ADAPTIVE


class Unbuilt(own_steps.WassersteinGan):
    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.layers.Dense(own_steps.COLUMNS)])


def test_a_model_that_cannot_be_built_says_what_to_do():
    strategy = make_strategy("mirrored", 2)
    with strategy.scope():
        model = Unbuilt()
        model.compile()
    _, data = own_steps.gan()
    data = tf.data.Dataset.from_tensor_slices(data).batch(own_steps.BATCH)
    with pytest.raises(RuntimeError, match=r"Unbuilt must have its variables .*strategy\.scope"):
        model.fit(data, verbose=0)
