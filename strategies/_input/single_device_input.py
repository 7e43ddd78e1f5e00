"""Input of a worker that has one device, its CPU."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# These options select a plain iterator instead of a MultiDeviceIterator.
_IN_PLACE = tf.distribute.InputOptions(
    experimental_fetch_to_device=False,
    experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
)
# For type checkers: a `tf.distribute.StrategyExtended` follows the mixin, and has no types.
_Base: Any = object


class SingleDeviceInput(_Base):
    """A mixin that reads distributed datasets with a plain iterator, one batch ahead.

    Comes before `tf.distribute.StrategyExtended` among the bases. TensorFlow reads every
    distributed dataset with a MultiDeviceIterator, whose end waits for tf.data's autotuning thread:
    0.1 s per epoch, and seconds if the processors are busy. One device that uses the host's memory
    does not need it.
    """

    def _experimental_distribute_dataset(self, dataset, options):
        distributed = super()._experimental_distribute_dataset(dataset, options)
        if self._reads_in_place(options):
            distributed._options = _IN_PLACE
            distributed._cloned_datasets = [_ahead(d) for d in distributed._cloned_datasets]
        return distributed

    def _distribute_datasets_from_function(self, dataset_fn, options):
        distributed = super()._distribute_datasets_from_function(dataset_fn, options)
        if self._reads_in_place(options):
            distributed._options = _IN_PLACE
            distributed._datasets = [_ahead(dataset) for dataset in distributed._datasets]
        return distributed

    def _reads_in_place(self, options: tf.distribute.InputOptions | None) -> bool:
        devices = [tf.DeviceSpec.from_string(device) for device in self.worker_devices]
        return options is None and [device.device_type for device in devices] == ["CPU"]


def _ahead(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset that prepares the next batch while the current one is used."""
    return dataset if type(dataset).__name__ == "_PrefetchDataset" else dataset.prefetch(1)
