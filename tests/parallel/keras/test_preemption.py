"""`fit` on SIGTERM: all workers end the same step, the chief saves, the programs end with 143."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time

import pytest

from support import tiers
from support.processes.ranks import start_ranks
from support.processes.self_signal import signal_self

pytestmark = pytest.mark.timeout(240)

ROWS, BATCH = 64, 8


def model(strategy):
    import keras

    keras.utils.set_random_seed(1)
    with strategy.scope():
        made = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        made.compile(optimizer="sgd", loss="mse")
    return made


def data():
    import numpy as np

    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
    return x, x.sum(axis=1)


class Reporting:
    """Makes a callback that reports each step of each epoch, after a short pause."""

    def __new__(cls, ctx, pause=0.002, at=None):
        import keras

        class Steps(keras.callbacks.Callback):
            steps = 0
            ended = False

            def on_train_batch_end(self, batch, logs=None):
                self.steps += 1
                ctx.report("step", self.steps)
                time.sleep(pause)
                if at is not None:
                    at(self.steps)

            def on_train_end(self, logs=None):
                self.ended = True

        return Steps()


def fit(ctx, backup=True, epochs=1000, at=None, executions=1, **options):
    """Trains until it is told to end; returns what has happened."""
    import keras

    import tfdist

    strategy = tfdist.MultiWorkerMirroredStrategy()
    made = model(strategy)
    made.steps_per_execution = executions
    steps = Reporting(ctx, at=at)
    callbacks = [steps]
    if backup:
        callbacks.append(keras.callbacks.BackupAndRestore(ctx.tmp_path / "backup"))
    code = None
    try:
        made.fit(
            *data(), batch_size=BATCH, epochs=epochs, verbose=0, callbacks=callbacks, **options
        )
    except tfdist.errors.Preempted as end:
        code = end.code
    weights = [w.tolist() for w in made.get_weights()]
    return {"code": code, "steps": steps.steps, "ended": steps.ended, "weights": weights}


def told(ranks, who, after, delays=None):
    """Sends SIGTERM to ranks after a step."""
    for rank in range(len(ranks)):
        ranks.wait_for(rank, "step", after)
    for rank, delay in zip(who, delays or [0.0] * len(who), strict=True):
        time.sleep(delay)
        ranks[rank].send_signal(signal.SIGTERM)


# A notice to all tasks; the agreement's own test has one to each.
@pytest.mark.long(
    "chief", "worker", covered_by="the other cases, single/preemption/test_stop_agreement.py"
)
@pytest.mark.parametrize("who", [[0], [1], [0, 1]], ids=["chief", "worker", "all"])
def test_all_stop_after_the_same_step(tmp_path, who):
    draw = random.Random(len(who))
    for _ in range(tiers.rounds(1, 20)):
        after = draw.randint(1, 12)
        delays = [draw.random() * 0.05 for _ in who]
        marker = tmp_path / "saved"
        env = {"TFDIST_PREEMPTION_MARKER": str(marker)}
        with start_ranks(fit, 2, tmp_path=tmp_path, env=env) as ranks:
            told(ranks, who, after, delays)
            outcomes = ranks.join(60)
        for outcome in outcomes:
            assert outcome.ok, outcome.describe()
        first, second = (outcome.result for outcome in outcomes)
        assert first["code"] == second["code"] == 143
        assert first["steps"] == second["steps"] >= after
        assert first["weights"] == second["weights"]
        assert not first["ended"]
        steps = first["steps"]
        epoch, batch = divmod(steps - 1, ROWS // BATCH)
        with open(tmp_path / "backup" / "training_metadata.json") as file:
            saved = json.load(file)
        assert saved == {"epoch": epoch, "batch": batch}
        marker.unlink()
        end = f"stopped in epoch {epoch + 1} after batch {batch + 1};"
        for rank, how in enumerate(["saved to", "saved by the chief to"]):
            line = rf"worker {rank}: SIGTERM( to worker \d)?: {end} {how} {tmp_path}/backup \("
            assert re.search(line, outcomes[rank].output), outcomes[rank].output
        for file in (tmp_path / "backup").iterdir():
            file.unlink()


def ended_by_notice(outcomes):
    for outcome in outcomes:
        assert outcome.ok, outcome.describe()
        assert outcome.result["code"] == 143, outcome.describe()


def resumed(ctx, folder):
    """Loads a backup as a restarted program does; returns its weights and the first epoch."""
    import keras

    import tfdist

    made = model(tfdist.MultiWorkerMirroredStrategy())
    backup = keras.callbacks.BackupAndRestore(folder)
    backup.set_model(made)
    backup.on_train_begin()
    return [w.tolist() for w in made.get_weights()], made._initial_epoch


@pytest.mark.long(covered_by="test_a_worker_that_has_ended_is_no_failure_after_the_notice")
def test_several_steps_per_execution_and_saving_to_the_checkpoint_dir(tmp_path):
    env = {"TFDIST_CHECKPOINT_DIR": str(tmp_path / "saved")}
    options = {"backup": False, "executions": 3}
    with start_ranks(fit, 2, kwargs=options, tmp_path=tmp_path, env=env) as ranks:
        told(ranks, [1], 7)
        outcomes = ranks.join(60)
    ended_by_notice(outcomes)
    first, second = (outcome.result for outcome in outcomes)
    assert first["steps"] == second["steps"] and first["weights"] == second["weights"]
    assert f"saved to {tmp_path}/saved/fit" in outcomes[0].output
    with start_ranks(resumed, 2, kwargs={"folder": str(tmp_path / "saved" / "fit")}) as ranks:
        for outcome in ranks.join(60):
            assert outcome.ok, outcome.describe()
            # Three executions an epoch: of three, three and two steps.
            assert outcome.result == (first["weights"], (first["steps"] - 1) // 3)


def own_handlers(ctx):
    """Rank 0 has a handler of its own; rank 1 ignores the signal."""
    heard = []
    if ctx.rank == 0:
        signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    result = fit(ctx, backup=False)
    return result | {"heard": heard, "ignored": signal.getsignal(signal.SIGTERM) == signal.SIG_IGN}


def test_own_handlers_are_called_and_what_ignores_the_signal_goes_on(tmp_path):
    env = {"TFDIST_PREEMPTION_MARKER": str(tmp_path / "saved")}
    with start_ranks(own_handlers, 2, tmp_path=tmp_path, env=env) as ranks:
        told(ranks, [1], 5)
        ranks.wait_for(0, "step", 30)
        ranks[0].send_signal(signal.SIGTERM)
        outcomes = ranks.join(60)
    ended_by_notice(outcomes)
    assert outcomes[0].result["heard"] == [signal.SIGTERM]
    assert outcomes[1].result["ignored"]
    for outcome in outcomes:
        assert outcome.result["steps"] >= 30
        assert (
            "nothing was saved: fit has no BackupAndRestore callback, and TFDIST_CHECKPOINT_DIR "
            "is not set"
        ) in outcome.output
    assert not (tmp_path / "saved").exists()


def fit_with_validation(ctx):
    """Rank 1 is told to end during the first validation, and in the last step of a second fit."""
    import keras
    import numpy as np

    import tfdist

    made = model(tfdist.MultiWorkerMirroredStrategy())

    class Tells(keras.callbacks.Callback):
        seen = 0

        def on_test_batch_end(self, batch, logs=None):
            self.seen += 1
            if self.seen == 2 and ctx.rank == 1:
                signal_self(signal.SIGTERM)

    tells = Tells()
    backup = keras.callbacks.BackupAndRestore(ctx.tmp_path / "backup")
    x, y = data()
    try:
        made.fit(
            *(x, y, BATCH, 1000),
            verbose=0,
            callbacks=[backup, tells],
            validation_data=(np.tile(x, (20, 1)), np.tile(y, 20)),
            validation_batch_size=BATCH,
        )
    except tfdist.errors.Preempted as end:
        return {"code": end.code, "seen": tells.seen, "file": backup._training_metadata_path}


@pytest.mark.long(covered_by="test_a_worker_that_has_ended_is_no_failure_after_the_notice")
def test_a_validation_is_not_waited_for(tmp_path):
    with start_ranks(fit_with_validation, 2, tmp_path=tmp_path) as ranks:
        outcomes = ranks.join(60)
    ended_by_notice(outcomes)
    seen, seen_by_other = (outcome.result["seen"] for outcome in outcomes)
    assert seen == seen_by_other <= 6  # of 160 batches; the signal takes a moment
    with open(outcomes[0].result["file"]) as file:
        assert json.load(file) == {"epoch": 0, "batch": ROWS // BATCH - 1}


def tell_in_last_step(ctx, backup):
    def at(step):
        if step == 2 * ROWS // BATCH and ctx.rank == 1:
            signal_self(signal.SIGTERM)

    return fit(ctx, backup=backup, epochs=2, at=at)


@pytest.mark.long("False", covered_by="the other cases")
@pytest.mark.parametrize("backup", [True, False])
def test_at_the_end_of_fit_a_backup_is_kept(tmp_path, backup):
    with start_ranks(tell_in_last_step, 2, kwargs={"backup": backup}, tmp_path=tmp_path) as ranks:
        outcomes = ranks.join(60)
    for outcome in outcomes:
        assert outcome.ok, outcome.describe()
        # Without a place to save, the program continues: it may save its model now.
        assert outcome.result["code"] == (143 if backup else None)
        assert outcome.result["ended"] == (not backup)
    if backup:
        with start_ranks(resumed, 2, kwargs={"folder": str(tmp_path / "backup")}) as ranks:
            for outcome in ranks.join(60):
                assert outcome.result == (outcomes[0].result["weights"], 2), outcome.describe()


def test_a_worker_that_has_ended_is_no_failure_after_the_notice(tmp_path):
    with start_ranks(fit, 2, tmp_path=tmp_path) as ranks:
        ranks.wait_for(0, "step", 3)
        ranks[1].stop()
        ranks[0].send_signal(signal.SIGTERM)
        ranks[1].kill()
        outcomes = ranks.join(60)
    assert outcomes[0].result["code"] == 143, outcomes[0].describe()
    assert "nothing was saved, because the step failed" in outcomes[0].output


def test_a_second_signal_ends_a_process_that_hangs_in_a_step(tmp_path):
    with start_ranks(fit, 2, tmp_path=tmp_path) as ranks:
        ranks.wait_for(0, "step", 3)
        ranks[1].stop()
        began = ranks[0].send_signal(signal.SIGTERM)
        while time.monotonic() < began + 1.5:
            assert ranks[0].alive
            time.sleep(0.1)
        ranks[0].send_signal(signal.SIGTERM)
        (outcome,) = ranks.join(10, only=[0])
        ranks[1].kill()
        ranks[1].resume()
    assert outcome.exit_code == 143, outcome.describe()
    assert "SIGTERM for the second time: this process ends at once" in outcome.output


def loop(ctx):
    import tensorflow as tf

    import tfdist

    strategy = tfdist.MultiWorkerMirroredStrategy()
    steps = 0
    while steps < 1000:
        steps += 1
        total = tfdist.ops.all_reduce(tf.constant(1.0), strategy.communicator)
        assert total.numpy() == 2.0
        ctx.report("step", steps)
        if tfdist.stop_requested():
            tfdist.mark_saved()
            return {"code": tfdist.errors.Preempted().code, "steps": steps}


def test_a_custom_loop_stops_on_all_workers_at_once(tmp_path):
    env = {"TFDIST_PREEMPTION_MARKER": str(tmp_path / "saved")}
    with start_ranks(loop, 2, tmp_path=tmp_path, env=env) as ranks:
        told(ranks, [1, 0], 4)
        outcomes = ranks.join(60)
    ended_by_notice(outcomes)
    assert outcomes[0].result["steps"] == outcomes[1].result["steps"] >= 4
    assert (tmp_path / "saved").exists()


def alone(ctx):
    """One process: the handler before, during and after two trainings, the second with a notice."""
    import keras

    import tfdist

    made = model(tfdist.OneDeviceStrategy("CPU:0"))
    during, children = [], []

    class Looks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            during.append(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
            if len(during) == 1:
                # A child inherits neither the handler nor the pipe.
                pid = os.fork()
                if pid == 0:
                    os.kill(os.getpid(), signal.SIGTERM)
                    os._exit(0)
                children.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            if len(during) == 2 * ROWS // BATCH:
                os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    made.fit(*data(), batch_size=BATCH, epochs=1, verbose=0, callbacks=[Looks()])
    after = signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1)
    try:
        made.fit(*data(), batch_size=BATCH, epochs=1000, verbose=0, callbacks=[Looks()])
    except tfdist.errors.Preempted as end:
        assert any(during) is False and len(during) < 1000
        assert children == [-signal.SIGTERM]
        assert before == signal.SIG_DFL and after == (signal.SIG_DFL, -1)
        return {"code": end.code}


def test_one_process_and_its_handlers(tmp_path):
    with start_ranks(alone, 1, tmp_path=tmp_path) as ranks:
        ended_by_notice(ranks.join(60))


def fit_of_tf_keras(ctx, save_freq):
    import tf_keras

    import tfdist

    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        made = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(4,))])
        made.compile(optimizer="sgd", loss="mse")

    class Steps(tf_keras.callbacks.Callback):
        steps = 0
        epochs = []

        def on_epoch_begin(self, epoch, logs=None):
            self.epochs.append(epoch)
            if resumes:
                self.model.stop_training = True

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            ctx.report("step", self.steps)
            time.sleep(0.002)

    resumes = (ctx.tmp_path / "backup").exists()
    ctx.barrier()
    steps, code = Steps(), None
    backup = tf_keras.callbacks.BackupAndRestore(
        str(ctx.tmp_path / "backup"), save_freq=save_freq, delete_checkpoint=False
    )
    try:
        made.fit(*data(), BATCH, epochs=1000, verbose=0, callbacks=[backup, steps], shuffle=False)
    except tfdist.errors.Preempted as end:
        code = end.code
    return {"code": code, "steps": steps.steps, "epochs": steps.epochs}


@pytest.mark.long("100", covered_by="the other cases")
@pytest.mark.parametrize("save_freq", ["epoch", 100])
def test_tf_keras(tmp_path, save_freq):
    options = {"save_freq": save_freq}
    with start_ranks(fit_of_tf_keras, 2, kwargs=options, tmp_path=tmp_path) as ranks:
        told(ranks, [0], 19)
        outcomes = ranks.join(60)
    ended_by_notice(outcomes)
    steps = outcomes[0].result["steps"]
    assert outcomes[1].result["steps"] == steps
    assert f"saved to {tmp_path}/backup" in outcomes[0].output
    with start_ranks(fit_of_tf_keras, 2, kwargs=options, tmp_path=tmp_path) as ranks:
        for outcome in ranks.join(60):
            assert outcome.ok, outcome.describe()
            # With batches counted it continues with the next one, which may be of the next epoch.
            done = steps if save_freq == 100 else steps - 1
            assert outcome.result["epochs"][0] == done // (ROWS // BATCH)
