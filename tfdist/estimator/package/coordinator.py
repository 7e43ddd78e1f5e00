"""The module of TensorFlow that `tensorflow-estimator` calls to train on several tasks.

Its `RunConfig`, `Estimator` and `train_and_evaluate` import this as
`tensorflow.python.distribute.estimator_training`, which TensorFlow has removed, and call the
functions here if there is a strategy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tfdist.config.cluster import DATA_ROLES, Cluster
from tfdist.errors import ClusterConfigError
from tfdist.estimator.training import evaluation, loop
from tfdist.strategies import (
    LocalUpdateStrategy,
    MultiWorkerMirroredStrategy,
    ParameterServerStrategy,
)

if TYPE_CHECKING:
    import numpy as np
    from tensorflow_estimator.python.estimator.api._v2.estimator import (
        Estimator,
        EvalSpec,
        RunConfig,
        TrainSpec,
    )

_SEVERAL_TASKS = (MultiWorkerMirroredStrategy, ParameterServerStrategy)


def init_run_config(config: RunConfig, tf_config: dict[str, object]) -> None:
    """Sets the cluster and task of a `RunConfig` with a strategy.

    Raises:
      tfdist.errors.ClusterConfigError: a bad `TF_CONFIG`, or the strategy is not for the cluster.
    """
    cluster = Cluster.from_environment()
    _take_strategies(config)
    _check(config, cluster)
    trains = cluster.rank is not None and not cluster.is_local
    config._service = None
    config._cluster_spec = tf.train.ClusterSpec(cluster.as_dict() if trains else {})
    config._task_type, config._task_id = cluster.task_type, cluster.task_index
    config._global_id_in_cluster = cluster.rank
    config._master = config._evaluation_master = ""
    config._is_chief = cluster.is_chief
    config._num_ps_replicas = len(cluster.ps) if trains else 0
    config._num_worker_replicas = cluster.world_size if cluster.rank is not None else 0
    # Selects the functions below that are called: with true, tfdist runs the training.
    config._distribute_coordinator_mode = isinstance(
        config._train_distribute, MultiWorkerMirroredStrategy if trains else ()
    ) or isinstance(config._train_distribute, ParameterServerStrategy)


def train_alone_in_a_cluster_of_one(run_config: type[RunConfig]) -> None:
    """Makes a `RunConfig` without a strategy treat a cluster of one worker as no cluster.

    A launcher makes such a cluster for a job of one task; the package would require a "chief".
    """
    original = run_config._init_distributed_setting_from_environment_var

    @functools.wraps(original)
    def read(self, tf_config):
        cluster = tf_config.get("cluster", {})
        roles = [role for role in cluster if role not in DATA_ROLES]
        alone = roles == ["worker"] and len(cluster["worker"]) == 1
        return original(self, {} if alone else tf_config)

    run_config._init_distributed_setting_from_environment_var = read


def log_the_last_loss(estimator: type[Estimator]) -> None:
    """Lets an `Estimator` with a strategy log its last loss; the package would log the object."""
    original = estimator._train_model_distributed

    @functools.wraps(original)
    def train(self, input_fn, hooks, saving_listeners):
        trained = original(self, input_fn, hooks, saving_listeners)
        return self.tfdist_last_loss if trained is self else trained

    estimator._train_model_distributed = train


def _take_strategies(config: RunConfig) -> None:
    given = config._experimental_distribute
    if given is None:
        return
    if config._train_distribute or config._eval_distribute:
        raise ValueError(
            "RunConfig: expected strategies either as train_distribute and eval_distribute or in "
            "experimental_distribute, received both"
        )
    if given.remote_cluster:
        raise ValueError(
            "RunConfig: expected no remote_cluster: every task of a tfdist job runs the script"
        )
    config._train_distribute, config._eval_distribute = (
        given.train_distribute,
        given.eval_distribute,
    )


def _check(config: RunConfig, cluster: Cluster) -> None:
    for name in ("train_distribute", "eval_distribute"):
        if isinstance(getattr(config, f"_{name}"), LocalUpdateStrategy):
            # Its rounds, anchors and outer optimizers are eager variables, which no session has.
            raise ValueError(
                f"RunConfig: expected {name} to be a strategy that trains in the session of an "
                "Estimator, received tfdist.LocalUpdateStrategy, which trains by Keras's fit and "
                "by custom loops only"
            )
    strategy = config._train_distribute
    if cluster.world_size == 1 and not cluster.ps or isinstance(strategy, _SEVERAL_TASKS):
        return
    name = "None" if strategy is None else f"{type(strategy).__module__}.{type(strategy).__name__}"
    raise ClusterConfigError(
        "RunConfig: expected train_distribute to be a tfdist.MultiWorkerMirroredStrategy or a "
        f"tfdist.ParameterServerStrategy, for TF_CONFIG describes {cluster.as_dict()}, received "
        f"{name}"
    )


def should_run_distribute_coordinator(config: RunConfig) -> bool:
    """Whether the package calls `train_and_evaluate` below."""
    return bool(config.train_distribute) and (bool(config.cluster_spec) or _evaluates(config))


def _evaluates(config: RunConfig) -> bool:
    return config.task_type == "evaluator"


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec, executor: type
) -> None:
    """Runs this task: trains until the end, or evaluates each checkpoint."""
    if _evaluates(estimator.config):
        evaluation.evaluate_checkpoints(estimator, train_spec, eval_spec, executor)
    else:
        loop.train_to_the_end(estimator, train_spec)


def estimator_train(
    estimator: Estimator, train: Callable, hooks: Sequence[tf.compat.v1.train.SessionRunHook]
) -> None:
    """Trains on this worker.

    Args:
      estimator: the `Estimator`.
      train: given the estimator, the strategy and hooks, builds the graph and trains.
      hooks: the user's.
    """
    loop.train(estimator, train, hooks)


def estimator_evaluate(
    estimator: Estimator, evaluate: Callable, hooks: Sequence[tf.compat.v1.train.SessionRunHook]
) -> dict[str, np.ndarray]:
    """Evaluates on this worker; arguments as `estimator_train`."""
    return evaluation.evaluate(estimator, evaluate, hooks)
