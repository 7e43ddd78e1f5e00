"""Training on several workers that train alone for some steps, and then combine."""

from __future__ import annotations

import dataclasses
import logging
import numbers
from collections.abc import Sequence

import tensorflow as tf

from tfdist import keras, ops
from tfdist.compression import Compression, NoCompression, method_of
from tfdist.config.cluster import Cluster
from tfdist.config.elastic import MAX_WORKERS, Elastic
from tfdist.errors import ClusterConfigError

# As for MultiWorkerMirroredStrategy, this strategy's base.
from tfdist.internals.tensorflow import CommunicationImplementation, distribute_lib
from tfdist.job import process
from tfdist.job.start import start
from tfdist.rules import EASGD, ModelAveraging, Rule, StreamingDiLoCo
from tfdist.strategies._extended.elastic_local_update import ElasticLocalUpdateExtended
from tfdist.strategies._extended.local_update import LocalUpdateExtended
from tfdist.strategies._local_updates.centre import Centre
from tfdist.strategies._local_updates.local_updates import LocalUpdates
from tfdist.strategies._local_updates.saved_state import LocalState, Values
from tfdist.strategies.communication_options import CommunicationOptions
from tfdist.strategies.multi_worker_mirrored_strategy import (
    MultiWorkerMirroredStrategy,
)
from tfdist.tracebacks import ends_at_caller

_log = logging.getLogger("tfdist")
SLOTS = ("keep", "average", "reset")


class LocalUpdateStrategy(MultiWorkerMirroredStrategy):
    """Trains one model on several workers, which exchange nothing in most steps.

    Every worker computes gradients on its share of each batch and applies them to its own copy of
    the model. After `sync_every` steps, and at the end of each epoch of `fit`, the workers combine
    their variables by a rule, and continue from the same ones.

    For `fit` of Keras 3 and tf_keras, and custom loops with their optimizers. Every worker has one
    device. With `rules.EASGD(alpha, asynchronous=True)` each worker ends its rounds by itself, and
    combines its variables with a centre on the `ps` tasks.

    Args:
      sync_every: the steps from one synchronization to the next, at least 1.
      rule: how the workers combine, of `tfdist.rules`; `None` means `ModelAveraging()`.
      warmup_steps: after each of the first `warmup_steps` steps the workers average their
        variables, with any rule.
      slots: the treatment of the optimizer's own variables, such as momentum, at a synchronization:
        each worker's stay ("keep"), they become the workers' mean ("average"), or they return to
        their first values ("reset").
      compression: of the pseudo-gradients, the anchor minus what a worker gives to the mean: a name
        or a method of `tfdist.compression`; `None` sends them as they are.
      min_contributors: the least number of workers that train on. With less than all, the job is
        elastic: a worker that dies costs its steps since the last synchronization, and the others
        continue without it. `None` means all, or the minimum of a job that is elastic anyway
        (`TFDIST_ELASTIC`). For rules after whose synchronization all workers are equal, without
        compression, in `fit` of Keras 3.
      cluster_resolver: as in `MultiWorkerMirroredStrategy`.
      communication_options: a `tfdist.CommunicationOptions`; `timeout_seconds` bounds the wait for
        the slowest worker.

    Raises:
      ValueError: an argument has an invalid value.
      TypeError: `rule` is none of `tfdist.rules`.
      tfdist.errors.ClusterConfigError: an invalid cluster, a worker with several devices, `ps`
        tasks without an asynchronous rule, or none with one.
      Exception: as `MultiWorkerMirroredStrategy`.

    Example:

    ```python
    strategy = tfdist.LocalUpdateStrategy(16, tfdist.rules.DiLoCo())
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(10)])
        model.compile("sgd", "mse")
    model.fit(dataset)
    ```
    """

    @ends_at_caller
    def __init__(
        self,
        sync_every: int,
        rule: Rule | None = None,
        *,
        warmup_steps: int = 0,
        slots: str = "keep",
        compression: str | Compression | None = None,
        min_contributors: int | None = None,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        communication_options: CommunicationOptions | None = None,
    ) -> None:
        rule = ModelAveraging() if rule is None else rule
        _check_arguments(sync_every, rule, warmup_steps, slots)
        method = method_of(compression)
        if rule.asynchronous and not isinstance(method, NoCompression | None):
            raise ValueError(
                "LocalUpdateStrategy: expected compression=None with an asynchronous rule, "
                f"received {compression!r}: there are no pseudo-gradients"
            )
        cluster = None if cluster_resolver is None else Cluster.from_resolver(cluster_resolver)
        cluster = start(cluster, None, keras.apply_repairs)
        _check_cluster(cluster, rule)
        options = CommunicationOptions.of(communication_options)
        _check_options(options)
        method = None if isinstance(method, NoCompression) else method
        elastic = process.current.elastic(cluster, _limits(cluster, min_contributors))
        if elastic is not None or (cluster.is_local and min_contributors is not None):
            _check_elastic(rule, method)
        if elastic is not None:
            extended: LocalUpdateExtended = ElasticLocalUpdateExtended(
                self, cluster, cluster_resolver, options, elastic
            )
        else:
            extended = LocalUpdateExtended(self, cluster, cluster_resolver, options)
        workers = extended._num_replicas_in_sync
        rule.outer_optimizer(workers)  # raises what it has against that number
        extended.local_updates = LocalUpdates(
            workers,
            extended.communicator,
            rule,
            sync_every,
            max(warmup_steps, rule.warmup),
            slots,
            options.timeout_seconds,
            method,
            _centre(cluster, rule, extended.communicator, options.timeout_seconds),
            getattr(extended, "elastic_job", None),
        )
        distribute_lib.Strategy.__init__(self, extended)

    def synchronize(self) -> None:
        """Combines the variables now, if the workers have trained since the last synchronization.

        For the end of an epoch of a custom loop; `fit` does it by itself. All workers call it after
        the same step, outside of `strategy.run` and of a `tf.function`.
        """
        self.extended.local_updates.synchronize()

    def training_state(self, variables: Sequence[tf.Variable]) -> LocalState:
        """The state that a custom loop's `tf.train.Checkpoint` needs besides model and optimizer.

        It holds all workers' copies of the variables and of the optimizer's, anchors, the outer
        optimizer's variables, dual variables, residuals of error feedback, and the step within the
        round. Checkpoints of Keras 3's callbacks hold the same. All workers save together. Make it,
        and restore, before the first step.

        Args:
          variables: the model's `trainable_variables`.

        Example:

        ```python
        local = strategy.training_state(model.trainable_variables)
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, local=local)
        ```
        """
        local, kept = self.extended.local_updates, list(variables)

        def restore(values: Values) -> None:
            if local.is_trained(kept):
                # The checkpoint restores the model's variables after this.
                raise ValueError(
                    "LocalUpdateStrategy.training_state: expected a checkpoint to be restored "
                    "before the first step, but an optimizer has been applied"
                )
            local.restore(kept, values)

        return LocalState(lambda: local.saved(kept), restore)

    def residuals(self) -> dict[str, float]:
        """The rule's measurements at the last synchronization, by name; `ADMM` has residuals."""
        return self.extended.local_updates.residuals()


def _check_arguments(sync_every: int, rule: Rule | None, warmup_steps: int, slots: str) -> None:
    def check(name: str, value: object, expected: str, holds: bool) -> None:
        if not holds:
            raise ValueError(
                f"LocalUpdateStrategy: expected {name} to be {expected}, received {value!r}"
            )

    def is_integer(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    at_least_1 = is_integer(sync_every) and sync_every >= 1
    check("sync_every", sync_every, "an integer of at least 1", at_least_1)
    not_negative = is_integer(warmup_steps) and warmup_steps >= 0
    check("warmup_steps", warmup_steps, "an integer of at least 0", not_negative)
    check("slots", slots, "'keep', 'average' or 'reset'", slots in SLOTS)
    if not isinstance(rule, Rule):
        raise TypeError(
            f"LocalUpdateStrategy: expected rule to be one of tfdist.rules, received {rule!r}"
        )
    if rule.asynchronous:
        # A worker exchanges its variables alone.
        check("slots", slots, "'keep' with an asynchronous rule", slots == "keep")
        check("warmup_steps", warmup_steps, "0 with an asynchronous rule", warmup_steps == 0)
    if isinstance(rule, StreamingDiLoCo):
        rule.check_round(sync_every)
        # A step has no end of a round, in which all variables are of the same time.
        check("slots", slots, "'keep' with StreamingDiLoCo", slots == "keep")
        check("warmup_steps", warmup_steps, "0 with StreamingDiLoCo", warmup_steps == 0)


def _check_options(options: CommunicationOptions) -> None:
    if options.implementation == CommunicationImplementation.NCCL:
        raise ValueError(
            "LocalUpdateStrategy: expected implementation AUTO or RING, received NCCL, whose "
            "collectives are TensorFlow's"
        )
    if not isinstance(options.compression, NoCompression | None):
        raise ValueError(
            "LocalUpdateStrategy: expected communication_options without a compression, received "
            f"{options.compression}: no gradients are sent. Pseudo-gradients are compressed by "
            "LocalUpdateStrategy(compression=)"
        )


def _centre(
    cluster: Cluster, rule: Rule, communicator: ops.Communicator | None, timeout: float | None
) -> Centre | None:
    """The centre of a rule that has one on the servers; an evaluator does not train."""
    if not isinstance(rule, EASGD) or not rule.asynchronous or cluster.rank is None:
        return None
    return Centre(cluster, rule.alpha, communicator, timeout)


def _check_cluster(cluster: Cluster, rule: Rule) -> None:
    if rule.asynchronous and not (cluster.ps or cluster.is_local):
        raise ClusterConfigError(
            "LocalUpdateStrategy: expected ps tasks for the centre of an asynchronous rule, "
            f"received {cluster.as_dict()}: start the job with some (tfdist run --ps 1)"
        )
    if cluster.ps and not rule.asynchronous:
        raise ClusterConfigError(
            "LocalUpdateStrategy: expected no ps tasks in the cluster, received "
            f"{len(cluster.ps)}: workers have their own copies of all variables"
        )


def _limits(cluster: Cluster, min_contributors: int | None) -> Elastic | None:
    """The limits of a job that continues with fewer workers; `None` leaves them to the settings."""
    if min_contributors is None:
        return None
    of_job = process.current.settings.elastic
    workers = cluster.world_size if of_job is None else of_job.start(cluster)
    is_integer = isinstance(min_contributors, numbers.Integral) and not isinstance(
        min_contributors, bool
    )
    # Alone a script is tried that will run on more workers.
    limit = MAX_WORKERS if cluster.is_local else workers
    if not is_integer or not 1 <= min_contributors <= limit:
        why = "" if cluster.is_local else ", the number of workers that the job begins with"
        raise ValueError(
            f"LocalUpdateStrategy: expected min_contributors to be None or 1 to {limit}{why}, "
            f"received {min_contributors!r}"
        )
    min_contributors = int(min_contributors)
    if cluster.is_local or (of_job is None and min_contributors == workers):
        return None
    if of_job is not None:
        if of_job.min_workers != min_contributors:
            _log.warning(
                "LocalUpdateStrategy: min_contributors=%d takes the place of the job's minimum of "
                "%d workers; the launcher keeps to that one",
                min_contributors,
                of_job.min_workers,
            )
        return dataclasses.replace(of_job, min_workers=min_contributors)
    return Elastic(min_contributors, workers)


def _check_elastic(rule: Rule, compression: Compression | None) -> None:
    what = "in a job that continues with fewer workers (min_contributors, TFDIST_ELASTIC)"
    if rule.asynchronous or rule.diverges or isinstance(rule, StreamingDiLoCo):
        raise ValueError(
            "LocalUpdateStrategy: expected a rule after whose synchronization all workers are "
            f"equal {what}: ModelAveraging, PostLocalSGD, BMUF or DiLoCo; received "
            f"{type(rule).__name__}"
        )
    if compression is not None:
        raise ValueError(
            f"LocalUpdateStrategy: expected compression=None {what}, received {compression}: the "
            "unsent gradients of a lost worker would be lost"
        )
