"""KerasTuner: all workers make the same trials, of which rank 0 writes the files.

Without this each worker writes all files of the one directory, deletes the others' files, and
begins with files that they have written meanwhile.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import os
import weakref
from typing import TYPE_CHECKING

import tensorflow as tf
from keras_tuner.src import errors, utils
from keras_tuner.src.backend import io as tuner_io
from keras_tuner.src.distribute import utils as parallel_tuning
from keras_tuner.src.engine import tuner_utils
from keras_tuner.src.engine.base_tuner import BaseTuner
from keras_tuner.src.engine.oracle import Display, Oracle
from keras_tuner.src.engine.tuner import Tuner
from keras_tuner.src.engine.tuner_utils import SaveBestEpoch
from keras_tuner.src.tuners.hyperband import Hyperband

from tfdist.elastic.calls import CallFailedError
from tfdist.elastic.job import ElasticJob, LeftBehindError
from tfdist.errors import TfdistError
from tfdist.job import process
from tfdist.keras.project_files import ProjectFiles, texts_of
from tfdist.keras.registry import hooks
from tfdist.keras.searches import ElasticSearchWorkers, FixedWorkers, SearchWorkers

if TYPE_CHECKING:
    import keras_tuner

    from tfdist.job.job import Job

# The functions of KerasTuner that read and write files know neither a tuner nor a strategy.
_of_jobs: weakref.WeakKeyDictionary[Job | ElasticJob, SearchWorkers] = weakref.WeakKeyDictionary()


def workers() -> SearchWorkers | None:
    """The workers of this process's job; `None` if this process trains alone.

    Raises:
      ValueError: parameter servers hold the variables.
    """
    current = process.current
    if current.has_server_variables and current.cluster("a search").world_size > 1:
        raise ValueError(
            "KerasTuner: expected a strategy whose workers train together, received a "
            "ParameterServerStrategy, whose workers have different results of the same trial"
        )
    members, job = current.members, current.job
    if isinstance(members, ElasticJob):
        if members not in _of_jobs:
            _of_jobs[members] = ElasticSearchWorkers(ProjectFiles(_delete), members)
        return _of_jobs[members]
    if job is None or job.communicator.size == 1:
        return None
    if job not in _of_jobs:
        _of_jobs[job] = FixedWorkers(ProjectFiles(_delete), job)
    return _of_jobs[job]


def _delete(project: str) -> None:
    tf.io.gfile.rmtree(project)


def _sharing(path: str) -> SearchWorkers | None:
    """The workers who share a path; `None` if it belongs to no project that they have opened."""
    found = workers()
    return found if found is not None and found.files.has(path) else None


@hooks(BaseTuner, "__init__")
def begin_with_the_same_files(original, self, oracle, *args, **kwargs):
    """All workers begin a search with the files that rank 0 has found in the directory."""
    together = workers()
    if together is None:
        original(self, oracle, *args, **kwargs)
        return
    if parallel_tuning.has_chief_oracle():
        raise ValueError(
            "KerasTuner: expected no KERASTUNER_ORACLE_IP in a job of several workers, which make "
            "each trial together; start a job for each KERASTUNER_TUNER_ID instead"
        )
    given = inspect.signature(original).bind(self, oracle, *args, **kwargs).arguments
    folder, name = given.get("directory") or ".", given.get("project_name") or "untitled_project"
    project = os.path.join(str(folder), name)
    if not together.files.is_open(project):
        overwrites = bool(given.get("overwrite"))
        subject = {
            "directory": project,
            "overwrite": str(overwrites),
            "seed": str(getattr(oracle, "seed", None)),
        }
        texts = {} if overwrites else texts_of(project)
        together.files.open(project, together.begin(subject, texts))
    original(self, oracle, *args, **kwargs)


@hooks(Oracle, "__init__")
def draw_one_seed(original, self, *args, **kwargs):
    """An oracle without a seed takes rank 0's seed."""
    original(self, *args, **kwargs)
    given = inspect.signature(original).bind(self, *args, **kwargs).arguments
    together = workers()
    if together is not None and not given.get("seed"):
        self.seed = self._seed_state = together.of_rank_0(self.seed, "seed of a search")


@hooks(Oracle, "create_trial")
def create_the_same_trial(original, *args, **kwargs):
    """All workers wait for each other before a trial, and compare it."""
    trial = original(*args, **kwargs)
    together = workers()
    if together is not None:
        oracle = args[0]
        scores = [(t.trial_id, t.status, t.score) for t in oracle.trials.values()]
        values = json.dumps(trial.hyperparameters.values, sort_keys=True, default=str)
        together.meet(
            {
                "results": str(scores),
                "trial": f"{trial.trial_id}, {trial.status}",
                "hyperparameters": values,
            }
        )
    return trial


@hooks(Oracle, "update_trial")
def take_the_results_of_rank_0(original, *args, **kwargs):
    """All workers take rank 0's results of a trial, since their own may differ."""
    together = workers()
    if together is None:
        return original(*args, **kwargs)
    oracle, trial_id, metrics, step = _arguments_of_update(*args, **kwargs)
    metrics, step = together.of_rank_0([metrics, step], "results of a trial")
    return original(oracle, trial_id, metrics, step=step)


def _arguments_of_update(oracle, trial_id, metrics, step=0):
    return oracle, trial_id, metrics, step


@hooks(utils, "save_json")
def write_on_rank_0(original, path, obj):
    """Rank 0 alone writes the files of a search, each at once; all keep what is in them."""
    together = _sharing(path)
    if together is None or not together.files.keeps(path):
        return original(path, obj)
    text = json.dumps(obj)
    together.files.write(path, text, leads=together.leads)
    return text


@hooks(utils, "load_json")
def read_what_was_kept(original, path):
    """All workers read the same files of a search, whoever writes them meanwhile."""
    together = _sharing(path)
    if together is None or not together.files.keeps(path):
        return original(path)
    return json.loads(together.files.read(path))


@hooks(tuner_io, "exists")
def exists_for_all(original, path):
    """All workers find the same files of a search."""
    together = _sharing(path)
    if together is None or not together.files.keeps(path):
        return original(path)
    return together.files.exists(path)


@hooks(tuner_io, "glob")
def find_for_all(original, path):
    """All workers find the same files of a search."""
    together = _sharing(path)
    if together is None or not together.files.keeps(path):
        return original(path)
    return together.files.matching(path)


@hooks(tuner_io, "rmtree")
def delete_on_rank_0(original, path):
    """`overwrite=True` deletes files on rank 0 alone, when all workers have begun the search."""
    together = _sharing(path)
    if together is None or not together.files.is_open(path):
        original(path)
        return
    together.files.delete(path, leads=together.leads, is_member=together.is_member)


@hooks(SaveBestEpoch, "_save_model")
def save_best_epoch_on_rank_0(original, self):
    """Rank 0 alone writes the checkpoint of a trial, as a whole or not at all."""
    together = _sharing(self.filepath)
    if together is None:
        original(self)
        return
    together.save(self.filepath, self.model.save_weights)


@hooks(Tuner, "_configure_tensorboard_dir")
def write_hyperparameters_on_rank_0(original, self, callbacks, trial, execution=0):
    """Rank 0 alone writes the hyperparameters of a trial for TensorBoard."""
    together = workers()
    if together is None or together.leads:
        original(self, callbacks, trial, execution)
        return
    for callback in list(callbacks):
        if callback.__class__.__name__ == "TensorBoard":
            api = importlib.import_module("tensorboard.plugins.hparams.api")
            callback.log_dir = self._get_tensorboard_dir(
                callback.log_dir, trial.trial_id, execution
            )
            hyperparameters = tuner_utils.convert_hyperparams_to_hparams(trial.hyperparameters, api)
            writer = tf.summary.create_noop_writer()
            # All workers have the same callbacks.
            callbacks.append(api.KerasCallback(writer, hyperparameters, trial_id=trial.trial_id))


@hooks(Tuner, "load_model")
def load_from_the_shared_directory(original, self, trial):
    """A worker that does not find the checkpoint of rank 0 says so."""
    _expect_checkpoint(self, trial.trial_id)
    return original(self, trial)


@hooks(Hyperband, "_build_hypermodel")
def go_on_from_the_shared_directory(original, self, hp):
    """A worker that does not find the checkpoint of rank 0 says so."""
    if "tuner/trial_id" in hp.values:
        _expect_checkpoint(self, hp.values["tuner/trial_id"])
    return original(self, hp)


def _expect_checkpoint(tuner: keras_tuner.Tuner, trial_id: str) -> None:
    together = workers()
    path = tuner._get_checkpoint_fname(trial_id)
    if together is None or together.leads or not together.files.has(path):
        return
    if not tf.io.gfile.exists(path):
        raise TfdistError(
            f"{process.current.cluster('KerasTuner').task_name}: expected the checkpoint {path!r}, "
            "which rank 0 has written: the workers of a search share its directory"
        )


@hooks(Display, "on_trial_begin")
def show_trials_on_rank_0(original, self, trial):
    """Rank 0 alone shows the progress of a search."""
    with _muted():
        original(self, trial)


@hooks(Display, "on_trial_end")
def show_results_on_rank_0(original, self, trial):
    """Rank 0 alone shows the progress of a search."""
    with _muted():
        original(self, trial)


def _muted() -> contextlib.AbstractContextManager[object]:
    together = workers()
    if together is None or together.leads:
        return contextlib.nullcontext()
    return contextlib.redirect_stdout(io.StringIO())


class _JobError(errors.FatalError):
    """An error that is none of the trial's; KerasTuner continues after others.

    Args:
      error: it.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@hooks(BaseTuner, "_run_and_update_trial")
def tell_whose_error_it_is(original, self, trial, *fit_args, **fit_kwargs):
    """A lost connection, or a worker that does not fit, is no property of a trial."""
    try:
        original(self, trial, *fit_args, **fit_kwargs)
    except Exception as error:
        together = workers()
        if together is None or not _is_of_the_job(error, together):
            raise
        raise _JobError(error) from error


@hooks(BaseTuner, "_try_run_and_update_trial")
def end_with_the_job(original, self, trial, *fit_args, **fit_kwargs):
    """A search ends with an error of the job, which KerasTuner would take for a failed trial."""
    try:
        original(self, trial, *fit_args, **fit_kwargs)
        return
    except _JobError as failure:
        error = failure.error
    raise error


def _is_of_the_job(error: Exception, together: SearchWorkers) -> bool:
    if isinstance(error, tf.errors.OpError):
        return together.has_failed()
    # The members' trial has failed, too.
    is_of_trial = isinstance(error, CallFailedError)
    return isinstance(error, TfdistError | LeftBehindError) and not is_of_trial
