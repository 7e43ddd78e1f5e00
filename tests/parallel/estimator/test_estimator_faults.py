"""The reaction of an Estimator's workers to a task that dies, is absent, or cannot do its part."""

from __future__ import annotations

import dataclasses
import signal
import sys
import time

import pytest
import tensorflow as tf

import tfdist
from parallel.estimator.estimator_job import train_and_evaluate
from support.estimator import estimators
from support.estimator.estimators import STRATEGIES, input_fn, saved
from support.processes.ranks import on_ranks, start_ranks
from support.ps_job import meet, on_job, roles, served
from tfdist import estimator
from tfdist.errors import ClusterConfigError, RendezvousTimeoutError
from tfdist.job import process

# Seconds within which a worker's end must reach all others.
SOON = 2.0


class Report(estimators.Steps):
    """Tells the test when a worker has made ten steps; the victim then waits for its end."""

    def __init__(self, ctx, slowness=0.0, victim=None):
        super().__init__(slowness=slowness)
        self._ctx = ctx
        self._victim = victim

    def after_run(self, run_context, run_values):
        super().after_run(run_context, run_values)
        if self.count == 10:
            self._ctx.report("step", 10)
            if self._ctx.rank == self._victim:
                self._ctx.wait_for("its end", timeout=60)


def train(ctx, kind, batches=None, victim=None, **options):
    if served():
        return None
    hook = Report(ctx, slowness=0.005, victim=victim)
    trained = estimators.make(ctx.tmp_path / "model", STRATEGIES[kind](**options))
    trained.train(input_fn(batches=batches), hooks=[hook])
    assert trained.tfdist_last_loss > 0  # which the package logs
    return hook.count


@pytest.mark.long("1", covered_by="the other cases")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_worker_with_all_reduce(victim):
    with start_ranks(train, 3, args=["all_reduce"]) as ranks:
        for rank in range(3):
            ranks.wait_for(rank, "step", timeout=60)
        killed_at = ranks[victim].kill()
        outcomes = ranks.join(timeout=20)
    assert outcomes[victim].signal == signal.SIGKILL
    for rank in {0, 1, 2} - {victim}:
        outcome = outcomes[rank]
        assert outcome.exception == "UnavailableError", outcome.describe()
        assert f"rank {rank} of 3" in outcome.message
        assert f"lost rank {victim} (" in outcome.message
        assert "\n" not in outcome.message and len(outcome.message) < 300
        # Nor in the interpreter's output.
        assert outcome.traceback.count("Error: ") == 1
        assert outcome.finished_at - killed_at < SOON


@pytest.mark.timeout(120)
def test_a_killed_worker_async(tmp_path):
    """The others train on; in the end the chief does not wait for it longer than it should."""
    options = {"kind": "async", "batches": 60, "victim": 1, "worker_timeout": 2.0}
    with start_ranks(train, 4, kwargs=options, roles=roles(3), tmp_path=tmp_path) as ranks:
        for rank in range(3):
            ranks.wait_for(rank, "step", timeout=60)
        ranks[1].kill()
        # The server expects the lost one to come back.
        outcomes = ranks.join(timeout=30, only=[0, 1, 2])
    assert outcomes[1].signal == signal.SIGKILL
    for rank in (0, 2):
        assert outcomes[rank].ok, outcomes[rank].describe()
    assert [outcomes[0].result, outcomes[2].result] == [60, 60]
    assert saved(tmp_path / "model")["global_step"] == 130


@on_job(2, env={"TFDIST_RENDEZVOUS_TIMEOUT": "1.5"})
def test_an_absent_server(ctx):
    if ctx.rank == 2:
        return
    with pytest.raises(RendezvousTimeoutError, match="ps 0 .* was not there within 1.5 s"):
        train(ctx, "async")


def wait_a_second_for_others():
    """Shortens the timeout of this process's calls from now on."""
    settings = dataclasses.replace(process.current.settings, rendezvous_timeout=1.0)
    process.current.enter(process.cluster("a test"), settings)


@pytest.mark.long("*-sync", covered_by="the other cases")
@pytest.mark.parametrize("kind", ["async", "sync"])
@on_job(2)
def test_an_absent_chief(ctx, kind):
    if served():
        return
    strategy = STRATEGIES[kind]()
    meet(ctx, "joined")
    if ctx.rank == 1:
        wait_a_second_for_others()
        trained = estimators.make(ctx.tmp_path / "model", strategy)
        with pytest.raises(RendezvousTimeoutError, match="rank 1: the chief .* within 1 s"):
            trained.train(input_fn())
    meet(ctx, "failed")


def train_in_a_file(ctx, kind):
    if served():
        return
    (ctx.tmp_path / "file").touch()
    strategy = STRATEGIES[kind]()
    if kind == "async":
        # Long before the server gives the chief up, and with that the job.
        wait_a_second_for_others()
    try:
        estimators.make(ctx.tmp_path / "file" / "model", strategy).train(input_fn())
    except Exception:
        sys.excepthook(*sys.exc_info())  # as at the end of a script
        raise


@pytest.mark.long("async", covered_by="the other cases")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["all_reduce", "async"])
def test_a_model_dir_that_cannot_be_written(kind):
    of_job = ("chief", "worker", *(["ps"] if kind == "async" else []))
    env = {"TFDIST_RENDEZVOUS_TIMEOUT": "8"}
    with start_ranks(train_in_a_file, len(of_job), args=[kind], roles=of_job, env=env) as ranks:
        outcomes = ranks.join(timeout=60)
    chief, worker = outcomes[:2]
    assert chief.exception == "ModelDirError", chief.describe()
    assert "OSError" in chief.bases
    assert chief.message.startswith("chief 0: model_dir '") and "/file/model'" in chief.message
    assert "\n" not in chief.message
    if kind == "all_reduce":
        assert worker.exception == "UnavailableError", worker.describe()
        assert "rank 0 ended with ModelDirError: chief 0: model_dir" in worker.message
        assert worker.finished_at - chief.finished_at < SOON
    else:
        assert worker.exception == "RendezvousTimeoutError", worker.describe()
        assert "the chief" in worker.message


@on_ranks(2)
def test_a_strategy_of_tensorflow_in_a_cluster(ctx):
    for strategy in (tf.distribute.MirroredStrategy(["CPU:0"]), tfdist.MirroredStrategy(["CPU:0"])):
        name = f"{type(strategy).__module__}.{type(strategy).__name__}"
        with pytest.raises(ClusterConfigError, match=f"TF_CONFIG describes .*{name}"):
            estimator.RunConfig(str(ctx.tmp_path / "model"), train_distribute=strategy)


def evaluated_later(ctx, directory):
    if served():
        return None
    if ctx.rank < 3:
        ctx.wait_for("go", timeout=60)
    else:
        ctx.report("begins")
    return train_and_evaluate(directory, "async", 20)


@pytest.mark.timeout(120)
def test_an_evaluator_is_waited_for_by_nobody(tmp_path):
    directory = tmp_path / "model"
    of_job = ("chief", "worker", "ps", "evaluator")
    with start_ranks(evaluated_later, 4, args=[directory], roles=of_job) as ranks:
        ranks.wait_for(3, "begins", timeout=60)
        time.sleep(1.0)
        assert ranks[3].alive, ranks.join(1.0, only=[3])[0].describe()
        ranks[3].stop()
        ranks.send(0, "go")
        ranks.send(1, "go")
        outcomes = ranks.join(timeout=60, only=[0, 1, 2])
        assert all(outcome.ok for outcome in outcomes), outcomes
        ranks[3].resume()
        (evaluator,) = ranks.join(timeout=60, only=[3])
    assert evaluator.ok, evaluator.describe()
    assert (directory / "export" / "final").is_dir()
