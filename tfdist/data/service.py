"""`tfdist.data.distribute`: a pipeline runs on the job's data workers instead of in every worker.

All training workers read from one job of TensorFlow's tf.data service, first come, first served:

    data_worker 0:  batch 0   batch 2   batch 3 ...        worker 0 reads 0, 1, 4 ...
    data_worker 1:  batch 1   batch 4   ...                worker 1 reads 2, 3 ...

They find the same dataset and job by their name, which each of them derives without asking the
others: the key of their rendezvous, and the number of calls of `distribute` before this one.
"""

from __future__ import annotations

import itertools
import secrets

import tensorflow as tf

from tfdist.config.cluster import Cluster
from tfdist.data.server import wait_for
from tfdist.errors import ClusterConfigError

# `tf.data.experimental.service.from_dataset_id` is this function with an interval of 1 s, which
# is too long: each epoch ends only when the dispatcher has told this worker so.
from tfdist.internals.tensorflow import _from_dataset_id
from tfdist.job import process

_service = tf.data.experimental.service
_MODES = {
    "distributed_epoch": _service.ShardingPolicy.DYNAMIC,
    "parallel_epochs": _service.ShardingPolicy.OFF,
}
_POSITIONS = "each data worker counts its own elements"
# Transformations that go wrong without an error where data workers share the elements, by
# TensorFlow's class: their names, why, and what to do instead.
_WRONG_IN_SHARES = {
    "_ZipDataset": ("zip or enumerate", _POSITIONS, "make pairs with from_tensor_slices((a, b))"),
    "_TakeDataset": ("take", _POSITIONS, "slice the arrays or the list of files"),
    "_SkipDataset": ("skip", _POSITIONS, "slice the arrays or the list of files"),
    "_ShardDataset": ("shard", _POSITIONS, "leave it out"),
    # After a shuffle, also list_files's, each data worker reads everything (TensorFlow 2.21).
    "_InterleaveDataset": (
        "interleave without num_parallel_calls",
        "TensorFlow may ignore the shares there",
        "add num_parallel_calls=tf.data.AUTOTUNE",
    ),
}
_REFRESH_MS = 50  # ms between two questions to the dispatcher
_calls = itertools.count()


def distribute(
    dataset: tf.data.Dataset,
    processing_mode: str | tf.data.experimental.service.ShardingPolicy = "distributed_epoch",
    *,
    max_outstanding_requests: int | None = None,
    compression: str | None = "AUTO",
) -> tf.data.Dataset:
    """Moves a pipeline to the job's data workers (`tfdist run --data-workers N`).

    Transformations before this call run on the data workers; transformations of the result run in
    the training worker. Every training worker must call this for the same datasets, in the same
    order. The batches are the same as without this call: a synchronous strategy splits each between
    its workers, and elsewhere each goes to one worker.

    Without a cluster the process trains alone, and the dataset is returned unchanged.

    Args:
      dataset: a finite pipeline, without Python functions.
      processing_mode: "distributed_epoch" (`ShardingPolicy.DYNAMIC`): the data workers share the
        elements, and each is read once in an epoch if no data worker fails. "parallel_epochs"
        (`ShardingPolicy.OFF`): each data worker produces all of them, so that N data workers make
        an epoch N times as long.
      max_outstanding_requests: the number of elements that a training worker requests in advance;
        `None`: as many as there are data workers.
      compression: "AUTO", "SNAPPY" or `None`, for the way from the data workers.

    Returns:
      A dataset of the same elements in another order, whose cardinality is unknown. Strategies do
      not shard it again.

    Raises:
      ClusterConfigError: the cluster has no data workers, or the strategy is a
        `ParameterServerStrategy` whose workers wait for each other.
      NotInitializedError: this process has neither called `tfdist.init()` nor made a strategy.
      RendezvousTimeoutError: the dispatcher, or with "parallel_epochs" a data worker, does not
        listen within `TFDIST_RENDEZVOUS_TIMEOUT`.
      ValueError: another `processing_mode`; or several data workers share the elements, and the
        pipeline has a `zip`, `enumerate`, `take`, `skip` or `shard`, which count them, or an
        `interleave` without `num_parallel_calls`.
      RuntimeError: it is called in a graph.
      tf.errors.OpError: TensorFlow refuses the dataset, for example one with `tf.py_function`.

    Example:

    ```python
    strategy = tfdist.MultiWorkerMirroredStrategy()
    dataset = tf.data.Dataset.range(1000).map(lambda i: i * i).batch(64)
    model.fit(tfdist.data.distribute(dataset))
    ```
    """
    api_name = "tfdist.data.distribute()"
    policy = _MODES.get(processing_mode, processing_mode)
    if policy not in _MODES.values():
        raise ValueError(
            f"{api_name}: expected processing_mode to be one of {', '.join(map(repr, _MODES))}, "
            f"received {processing_mode!r}. The other sharding policies are for data workers "
            "inside the training processes"
        )
    cluster = process.cluster(api_name)
    if cluster.is_local:
        return dataset
    if not tf.executing_eagerly():
        # There the dataset would be empty, without an error.
        raise RuntimeError(
            f"{api_name}: expected eager execution, as for fit and custom loops, but this is a "
            "graph, such as Estimator's input_fn has"
        )
    if not cluster.data_dispatcher:
        raise ClusterConfigError(
            f"{api_name}: expected a cluster with data_dispatcher and data_worker tasks, received "
            f"one of {', '.join(cluster.as_dict())}: start the job with 'tfdist run --data-workers "
            "N', or add both roles to TF_CONFIG"
        )
    if policy == _service.ShardingPolicy.DYNAMIC and len(cluster.data_workers) > 1:
        _check_shares(dataset, api_name)
    worker = process.current.ps_worker
    if process.current.has_server_variables and worker is not None:
        if worker.config.mode != "async":
            raise ClusterConfigError(
                f"{api_name}: expected ParameterServerStrategy(mode='async'), received mode="
                f"{worker.config.mode!r}: its workers wait for each other in every step, but the "
                "data service does not give them equal numbers of batches"
            )
    # Before the wait: joining makes the task listen whose end is the end of the data tasks.
    # The journal has a file of this name.
    name = f"{_job_key(cluster, api_name)}-{next(_calls)}"
    timeout = process.current.settings.rendezvous_timeout
    wait_for("data_dispatcher", cluster, timeout)
    if policy == _service.ShardingPolicy.OFF:
        # A data worker that came after the end of an epoch would not take part in it.
        wait_for("data_worker", cluster, timeout)
    service = f"grpc://{cluster.data_dispatcher[0]}"
    # By its name the first worker's dataset is the dataset of all. Otherwise an unseeded shuffle,
    # whose graph differs from worker to worker, would be a dataset of each, and each would read all
    # of its own.
    dataset_id = _service.register_dataset(service, dataset, compression, dataset_id=name)
    return _from_dataset_id(
        policy,
        service,
        dataset_id,
        dataset.element_spec,
        # Also keeps strategies from sharding the result.
        job_name=name,
        max_outstanding_requests=max_outstanding_requests,
        task_refresh_interval_hint_ms=_REFRESH_MS,
    )


def _check_shares(dataset: tf.data.Dataset, api_name: str) -> None:
    """Raises ValueError if the pipeline has a transformation of `_WRONG_IN_SHARES`.

    Datasets inside a function of `interleave` or `flat_map` are not examined: they belong to one
    argument, wherever the function runs.
    """
    found = _WRONG_IN_SHARES.get(type(dataset).__name__)
    if found is not None:
        name, reason, remedy = found
        raise ValueError(
            f"{api_name}: expected a pipeline without {name}, received {dataset}: several data "
            f"workers share its elements, and {reason}. Instead {remedy}, or use one data worker"
        )
    # A dataset's inputs have no public name.
    for source in dataset._inputs():
        _check_shares(source, api_name)


def _job_key(cluster: Cluster, api_name: str) -> str:
    """Returns a text that is equal on all workers of this job, and different in its next attempt.

    The data tasks may outlive the training workers. A restarted worker that used the same name
    would find the epochs over.
    """
    if cluster.rank is None:
        return f"{cluster.task_type}-{secrets.token_hex(8)}"
    if process.current.has_server_variables:
        # These workers do not know each other, and are restarted one by one.
        return "workers"
    return process.current.join(cluster).key_of_group("data service").hex()
