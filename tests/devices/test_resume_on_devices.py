"""A training on several devices of one process continues after the last backup's batch."""

from __future__ import annotations

import keras
import pytest
from keras.callbacks import BackupAndRestore

import tfdist
from support.training import resuming
from support.training.models import built_classifier


# Keras says so at the end of data whose size it does not know.
@pytest.mark.long("mirrored-arrays", covered_by="the other cases")
@pytest.mark.long("central-*", "mirrored-dataset_of_unknown_size", covered_by="the other cases")
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("data", ["arrays", "dataset", "dataset_of_unknown_size"])
def test_goes_on(strategy, tmp_path, data):
    # Replicas of CentralStorageStrategy take numbers from one generator. With data of unknown size
    # it is not known which one does first, so two runs differ without any interruption.
    is_random = (
        isinstance(strategy, tfdist.CentralStorageStrategy) and data == "dataset_of_unknown_size"
    )

    def build():
        with strategy.scope():
            return built_classifier(
                keras.optimizers.SGD(0.1, momentum=0.9),
                middle=[
                    *([] if is_random else [keras.layers.Dropout(0.3)]),
                    keras.layers.BatchNormalization(),
                ],
            )

    resuming.assert_goes_on(
        build,
        resuming.INPUTS[data],
        lambda: BackupAndRestore(str(tmp_path / "backup"), save_freq=4),
        at=(1, 3),
        goes_on_at=(1, 2),
        counts_steps=data != "dataset_of_unknown_size",
    )
