"""How tfdist changes Keras: repairs of upstream defects, and hooks of its own.

| File or folder | Holds |
|---|---|
| `registry.py` | the list of all changes, and the one place that installs them |
| `repairs/` | corrections of Keras and TensorFlow, which expire (docs/reference/keras_repairs.md) |
| `hooks/` | product code that is no part of a `fit`: tables' gradients, optimizers, and more |
| `session/` | one call of `fit`, `evaluate` or `predict`: where it stands, and its participants |
| `strategies.py` | the attributes of strategies that both use |
| `workers.py` | what both ask about strategies and variables |
| `models.py` | what models of Keras 3 and of tf_keras consist of |
| `callback.py` | the base class of tfdist's callbacks |
| `training_state.py`, `own_state.py`, `exchange.py` | the state of a training, of all workers |
| `state_file.py` | writes it into backups and checkpoints; `session/positions.py` knows it |
| `callback_state.py`, `random_state.py` | the states of callbacks and of random generators |
| `backups.py`, `tf_keras_backups.py` | the newest backup, and the one before it |
| `rank_zero.py`, `noted_saves.py` | what rank 0 does alone, and its successor again |
| `log_file.py`, `event_files.py` | the files of `CSVLogger` and `TensorBoard` |
| `on_rank_zero.py` | `tfdist.callbacks.OnRankZero` |
| `one_worker.py` | callbacks that one worker cannot call |
| `searches.py`, `project_files.py` | KerasTuner's searches and their files |
| `after_import.py` | what is to be done when a package is imported |
| `step_functions.py` | calls around a `train_step` of the user's |
| `prediction_attributes.py` | the mask and the logits that losses find in a prediction |
| `shown_metrics.py` | metrics that such a step returns, under any name |
| `scalar_losses.py` | losses that return one number for a batch |
| `drawing.py` | how often the data of a model has drawn orders |
| `elastic_steps.py`, `elastic_local_steps.py` | steps of an elastic job |
| `elastic_state.py`, `elastic_records.py` | the state that a newcomer receives; ended calls |
| `substitute_rows/` | a replica without rows computes on a substitute row |
| `embeddings.py`, `prefetching.py` | tables of `tfdist.embedding`, which hooks need |
| `variables_of_others.py` | variables that are trained in another scope than their own |
| `deferred_models.py` | models without values |

Public are `deferred` and `initialize`.

Nothing is changed by an import. Making one of our strategies installs what strategies need;
`tfdist.init()` and `tfdist.DistributedOptimizer` install less, since Keras needs less there.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from typing import Any

from tfdist._version import MAX_KERAS, MIN_KERAS
from tfdist.config.settings import allows_untested_keras
from tfdist.errors import UnsupportedKerasError
from tfdist.keras import registry
from tfdist.keras.after_import import after_import

_log = logging.getLogger("tfdist")

_REPAIRS = "tfdist.keras.repairs"
_HOOKS = "tfdist.keras.hooks"
_ELASTIC = f"{_HOOKS}.elastic"
_SESSION = "tfdist.keras.session"
_SUBSTITUTES = f"{_HOOKS}.substitutes"

# Where several replace one function the last is the outermost, whichever was installed first.
# Repairs come first, so that hooks see a Keras without defects.
FOR_STRATEGIES = (
    f"{_REPAIRS}.scopes",
    f"{_REPAIRS}.training",
    f"{_REPAIRS}.results",
    f"{_REPAIRS}.variables",
    f"{_REPAIRS}.numbers",
    f"{_REPAIRS}.losses",
    f"{_REPAIRS}.batch_normalization",
    f"{_REPAIRS}.layer_losses",
    f"{_REPAIRS}.overflow",
    f"{_REPAIRS}.optimizers",
    f"{_REPAIRS}.callbacks",
    f"{_ELASTIC}.functions",
    f"{_HOOKS}.shuffling",
    f"{_HOOKS}.epoch_calls",
    f"{_HOOKS}.row_weights",
    f"{_SUBSTITUTES}.keras_3",
    f"{_HOOKS}.scalar_losses",
    f"{_HOOKS}.server_optimizers",
    f"{_HOOKS}.sharded_optimizers",
    f"{_HOOKS}.table_gradients",
    f"{_HOOKS}.local_updates",
    f"{_HOOKS}.clipping",
    f"{_HOOKS}.saving",
    f"{_HOOKS}.deferred_values",
    f"{_HOOKS}.variable_roles",
    f"{_HOOKS}.lines",
    f"{_HOOKS}.events",
    f"{_ELASTIC}.accumulation",
    f"{_ELASTIC}.batches",
    f"{_ELASTIC}.progress_bar",
    f"{_SESSION}.of_keras_3",
)
# Of tf_keras, where a process uses it.
TABLES_OF_TF_KERAS = (f"{_HOOKS}.tf_keras_tables",)
FOR_TF_KERAS = (
    *TABLES_OF_TF_KERAS,
    f"{_ELASTIC}.tf_keras_functions",
    f"{_HOOKS}.tf_keras_training",
    f"{_SUBSTITUTES}.of_tf_keras",
    f"{_HOOKS}.tf_keras_local_updates",
    f"{_HOOKS}.tf_keras_sharding",
    f"{_HOOKS}.tf_keras_logs",
    f"{_ELASTIC}.tf_keras_order",
    f"{_ELASTIC}.tf_keras_batches",
    f"{_ELASTIC}.tf_keras_directories",
    f"{_ELASTIC}.tf_keras_progress_bar",
    f"{_SESSION}.of_tf_keras",
)
# Of KerasTuner, where a process uses it.
FOR_TUNERS = (f"{_HOOKS}.tuners",)
# Where there is no strategy.
FOR_INIT = (f"{_REPAIRS}.compilation",)
FOR_DATA_TASKS = (f"{_SESSION}.of_keras_3",)
FOR_DISTRIBUTED_OPTIMIZERS = (f"{_REPAIRS}.overflow", f"{_HOOKS}.sample_counts")
# Of a Keras 3 that is too old for the others.
FOR_OLD_RELEASES = (f"{_HOOKS}.refusal",)
ALL = tuple(
    dict.fromkeys(
        (
            *FOR_STRATEGIES,
            *FOR_TF_KERAS,
            *FOR_TUNERS,
            *FOR_INIT,
            *FOR_DISTRIBUTED_OPTIMIZERS,
            *FOR_OLD_RELEASES,
        )
    )
)

# Packages above this one. They are imported by name so that `load_model` knows their layers.
_LAYERS = ("tfdist.embedding.layer", "tfdist.horovod.sync_batch_normalization")
_LAYERS_OF_TF_KERAS = ("tfdist.embedding.legacy_layer",)


def apply_repairs() -> None:
    """Installs all repairs and hooks that strategies need; later calls do nothing.

    Raises:
      UnsupportedKerasError: Keras is newer than the newest tested release, and
        `TFDIST_ALLOW_UNTESTED_KERAS` is not 1; or a function to be replaced is not as expected.
    """
    if _repair_keras():
        repair_tf_keras()


def repair_tf_keras() -> None:
    """Installs what strategies need of tf_keras, if it was imported since a strategy was made."""
    if "tf_keras" in sys.modules and _repair_keras():
        _repair_imported_tf_keras()


@functools.cache
def _repair_imported_tf_keras() -> None:
    _install(*FOR_TF_KERAS)
    for module in _LAYERS_OF_TF_KERAS:
        importlib.import_module(module)


@functools.cache
def _repair_keras() -> bool:
    """Repairs Keras 3 for strategies; returns whether it is a release that tfdist repairs."""
    import keras

    version = tuple(int(part) for part in keras.__version__.split(".")[:2])
    if version[0] < 3 or keras.backend.backend() != "tensorflow":
        return False
    tested = "{}.{} to {}.{}".format(*MIN_KERAS, *MAX_KERAS)
    if version < MIN_KERAS:
        _log.warning(
            "tfdist repairs Keras %s; Keras %s is left as it is", tested, keras.__version__
        )
        _install(*FOR_OLD_RELEASES)
        return False
    if version > MAX_KERAS:
        if not allows_untested_keras():
            raise UnsupportedKerasError(
                f"tfdist trains with Keras {tested}, but Keras {keras.__version__} is installed, "
                "whose internals tfdist was not tested with: results could be wrong without an "
                "error. Install a tested one with "
                f"`pip install 'keras<{MAX_KERAS[0]}.{MAX_KERAS[1] + 1}'`, or a tfdist release "
                "that supports yours. TFDIST_ALLOW_UNTESTED_KERAS=1 continues all the same."
            )
        _log.warning(
            "TFDIST_ALLOW_UNTESTED_KERAS: tfdist was tested with Keras %s, not with %s; results "
            "may be wrong",
            tested,
            keras.__version__,
        )
    _install(*FOR_STRATEGIES)
    _activate(every=True)
    for module in _LAYERS:
        importlib.import_module(module)
    after_import("keras_tuner", _repair_tuners)
    return True


def _repair_tuners() -> None:
    try:
        _install(*FOR_TUNERS)
    except ImportError as error:
        raise UnsupportedKerasError(
            "expected a release of keras-tuner that tfdist was tested with, 1.4.8, received "
            f"another one: {error}"
        ) from error


def repair_tables_of_tf_keras() -> None:
    """Makes tf_keras's optimizers send the rows of tables to the servers."""
    _install(*TABLES_OF_TF_KERAS)


def repair_distributed_optimizers() -> None:
    """Repairs what `tfdist.DistributedOptimizer` needs of Keras 3."""
    _install(*FOR_DISTRIBUTED_OPTIMIZERS)


def follow_data_tasks() -> None:
    """Makes `fit`, `evaluate` and `predict` commit the records of `tfdist.data`."""
    if _is_keras_3():
        _install(*FOR_DATA_TASKS)
        _activate(every=False)


def _activate(every: bool) -> None:
    """Lets participants of `fit` take part: all, or only the data tasks' participants."""
    order = importlib.import_module(f"{_SESSION}.order")
    order.activate(*(order.ALL if every else order.OF_DATA_TASKS))


def refuse_keras_distribution() -> None:
    """Refuses a `keras.distribution`, which Keras ignores with TensorFlow.

    Raises:
      ValueError: one is set.
    """
    if not _is_keras_3():
        return
    found = sys.modules["keras"].distribution.distribution()
    if found is not None:
        raise ValueError(
            "strategy.scope(): expected no keras.distribution beside a strategy, but "
            f"{type(found).__name__} is set: with TensorFlow Keras does nothing about it, and "
            "every variable stays whole on each worker. Call "
            "keras.distribution.set_distribution(None); tfdist.Sharding divides variables"
        )


def keep_ops_from_xla() -> None:
    """Keeps Keras 3 from compiling tfdist's ops with XLA, if it has been imported."""
    if _is_keras_3():
        _install(*FOR_INIT)


def __getattr__(name: str) -> Any:
    # Imports Keras, which a process without it does not need.
    if name in ("deferred", "initialize"):
        return getattr(importlib.import_module("tfdist.keras.deferred_models"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _install(*modules: str) -> None:
    registry.install(*modules, order=ALL)


def _is_keras_3() -> bool:
    """Whether this process has imported Keras 3 with TensorFlow."""
    keras = sys.modules.get("keras")
    return (
        keras is not None
        and keras.__version__[0] == "3"
        and keras.backend.backend() == "tensorflow"
    )
