"""KerasTuner's searches on several devices of one process: the same as without a strategy."""

from __future__ import annotations

import keras
import pytest

from devices.replicas import make_strategy
from support.training import searches

pytest.importorskip("keras_tuner")


@pytest.fixture(autouse=True)
def keep_the_float_type():
    yield
    keras.backend.set_floatx("float32")


def search(folder, strategy=None):
    tuner = searches.start(folder, strategy)
    tuner.search(**searches.data())
    (best,) = tuner.get_best_models(1)
    return searches.results(tuner), [w.tolist() for w in best.get_weights()]


@pytest.mark.long("central", covered_by="the other cases")
@pytest.mark.parametrize("kind", ["mirrored", "central"])
def test_a_search_is_that_of_one_device(kind, tmp_path):
    alone = search(tmp_path / "alone")
    searches.assert_close(search(tmp_path / "devices", make_strategy(kind, 2)), alone)
    searches.assert_close(searches.files(tmp_path / "devices"), searches.files(tmp_path / "alone"))
