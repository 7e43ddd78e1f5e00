"""The identity of models, which must be the same in each process."""

from __future__ import annotations

import keras

from tfdist.prediction import fingerprints


class Scaled(keras.Model):
    """A model whose configuration has an object that is no JSON."""

    def __init__(self, function, **options):
        super().__init__(**options)
        self.function = function

    def get_config(self):
        return {"function": self.function}


def test_the_address_of_an_object_is_no_part_of_a_model():
    first, second = Scaled(object()), Scaled(object())
    assert repr(first.function) != repr(second.function)
    assert fingerprints.of_keras(first) == fingerprints.of_keras(second)
