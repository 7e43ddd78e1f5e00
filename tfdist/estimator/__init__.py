"""`tf.estimator` on current TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfdist.estimator.package import importing

importing.prepare()
importing.adapt()

# ruff: noqa: E402, F403
from tensorflow_estimator.python.estimator.api._v2.estimator import *
from tensorflow_estimator.python.estimator.api._v2.estimator import Estimator as Estimator
from tensorflow_estimator.python.estimator.api._v2.estimator import RunConfig as RunConfig
from tensorflow_estimator.python.estimator.keras_lib import model_to_estimator as model_to_estimator

from tfdist.estimator.package import coordinator
from tfdist.estimator.training import early_stopping, server_optimizers, tables

importing.restore_names()
coordinator.train_alone_in_a_cluster_of_one(RunConfig)
coordinator.log_the_last_loss(Estimator.__base__)
early_stopping.stop_all_workers()
server_optimizers.send_steps_to_servers()
tables.read_without_training(Estimator.__base__)

if TYPE_CHECKING:
    # The package has no types, so that type checkers know none of its names.
    def __getattr__(name: str) -> Any: ...
