"""Embedding tables in a model_fn equal a dense variable without a strategy."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from parallel.estimator.plain_tensorflow import serve
from support.estimator import estimators
from support.estimator.estimators import STEPS, STRATEGIES, checkpoints, saved
from support.processes.rank_outcome import describe_all
from support.processes.ranks import on_ranks, start_ranks
from support.ps_job import on_job, roles, served
from support.training.models import ADAPTIVE, EXACT, difference
from tfdist import estimator
from tfdist.errors import CheckpointError

v1 = tf.compat.v1
IDS, WIDTH = 20, 4
OPTIMIZERS = {
    "sgd": ("sgd", lambda: v1.train.GradientDescentOptimizer(0.5), EXACT),
    "adagrad": (
        tfdist.embedding.Adagrad(initial_accumulator_value=0.1, epsilon=0.0),
        lambda: v1.train.AdagradOptimizer(0.1),
        ADAPTIVE,
    ),
}


def words(input_context=None):
    """Batches of three ids per row, which repeat within a batch and between workers."""
    random = np.random.default_rng(0)
    ids = random.integers(0, IDS, size=(640, 3))
    labels = (ids.sum(axis=1) > 28).astype("float32")
    data = tf.data.Dataset.from_tensor_slices(({"ids": ids}, labels))
    workers, rank = 1, 0
    if input_context is not None:
        workers, rank = input_context.num_input_pipelines, input_context.input_pipeline_id
    return data.shard(workers, rank).repeat().batch(32 // workers)


def each_word():
    """One row of each id."""
    ids = np.repeat(np.arange(IDS), 3).reshape(IDS, 3)
    return tf.data.Dataset.from_tensor_slices(({"ids": ids}, np.ones(IDS, "float32"))).batch(8)


def model_fn(features, labels, mode, params):
    """Scores a row by its ids' embeddings."""
    trains = mode == estimator.ModeKeys.TRAIN
    of_rows, make_optimizer, _ = OPTIMIZERS[params["optimizer"]]
    if params["remote"]:
        table = tfdist.EmbeddingTable("words", WIDTH, optimizer=of_rows, initializer="zeros")
        rows = tfdist.ops.embedding_lookup(table, features["ids"], training=trains)
    else:
        table = v1.get_variable("words", [IDS, WIDTH], initializer=v1.zeros_initializer())
        rows = tf.gather(table, features["ids"])
    first = v1.constant_initializer(np.linspace(-1, 1, 3 * WIDTH))
    weights = v1.get_variable("weights", [3 * WIDTH, 1], initializer=first)
    logits = tf.reshape(rows, [-1, 3 * WIDTH]) @ weights
    predictions = {"logits": logits}
    if mode == estimator.ModeKeys.PREDICT:
        outputs = {"serving_default": estimator.export.PredictOutput(predictions)}
        return estimator.EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)
    loss = tf.reduce_mean(
        tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits[:, 0])
    )
    train_op = None
    if trains:
        train_op = make_optimizer().minimize(loss, global_step=v1.train.get_global_step())
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def make(directory, strategy, optimizer="adagrad"):
    params = {"optimizer": optimizer, "remote": strategy is not None}
    config = estimators.config(
        directory, strategy, save_checkpoints_steps=10, keep_checkpoint_max=2
    )
    return estimator.Estimator(model_fn, config=config, params=params)


def logits_of(trained):
    """Of each word."""
    return np.stack([p["logits"] for p in trained.predict(each_word)])


def train_like_alone(ctx, kind, optimizer):
    strategy = STRATEGIES[kind]()
    together = make(ctx.tmp_path / "together", strategy, optimizer)
    together.train(words, max_steps=STEPS)
    if ctx.rank == 0:
        alone = make(ctx.tmp_path / "alone", None, optimizer)
        alone.train(words, max_steps=STEPS)
        tolerance = OPTIMIZERS[optimizer][2]
        expected = saved(alone.model_dir)
        got = saved(together.model_dir)
        assert set(got) - {"words/remote_rows"} == {n for n in expected if "words" not in n}
        for name in got.keys() & expected.keys():
            assert difference([got[name]], [expected[name]]) <= tolerance, name
        logits = logits_of(alone)
        assert np.ptp(logits) > 0.1
        assert difference([logits_of(together)], [logits]) <= 3 * WIDTH * tolerance


@pytest.mark.long("*sgd", covered_by="the other cases")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@on_job(2)
def test_in_sync(ctx, optimizer):
    if not served():
        train_like_alone(ctx, "sync", optimizer)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@on_job(1, servers=2)
def test_async_with_one_worker(ctx, optimizer):
    if not served():
        train_like_alone(ctx, "async", optimizer)


def run(body, *args, of_job=("worker",)):
    """Runs a body in new processes; returns what rank 0 returned."""
    with start_ranks(body, len(of_job), args=args, roles=of_job) as ranks:
        outcomes = ranks.join(timeout=60)
    assert all(outcome.ok for outcome in outcomes), describe_all(outcomes)
    return outcomes[0].result


def go_on(ctx, directory, steps):
    if not served():
        make(directory, STRATEGIES["sync"]()).train(words, steps=steps)


def go_on_alone(ctx, directory, *steps):
    """Returns what is evaluated and predicted in the end."""
    for count in steps:
        make(directory, None).train(words, steps=count)
    return results(make(directory, None))


def results(trained):
    return trained.evaluate(each_word), logits_of(trained)


def use(ctx, directory):
    """Evaluates, predicts and exports in a process that has not trained."""
    with estimators.alone():
        trained = make(directory, tfdist.ParameterServerStrategy())

        def receive():
            features = {"ids": v1.placeholder(tf.int64, [None, 3], name="ids")}
            return estimator.export.ServingInputReceiver(features, features)

        trained.export_saved_model(str(directory / "export"), receive)
        return results(trained)


def use_without_rows(ctx, directory):
    with estimators.alone():
        trained = make(directory, tfdist.ParameterServerStrategy())
        for method in (trained.evaluate, lambda data: list(trained.predict(data))):
            with pytest.raises(CheckpointError, match="words.npz: .*'words' .*model.ckpt-35"):
                method(each_word)


def go_on_without_rows(ctx, directory):
    if not served():
        with pytest.raises(CheckpointError, match="words.npz: .*'words' .*model.ckpt-35"):
            make(directory, STRATEGIES["async"]()).train(words, steps=1)


@pytest.mark.long(
    covered_by="test_async_with_one_worker, parallel/embedding/test_embedding_saving.py"
)
@pytest.mark.timeout(240)
def test_rows_and_slots_are_in_checkpoints(tmp_path):
    directory = tmp_path / "together"
    run(go_on, directory, 20, of_job=roles(2))
    run(go_on, directory, 15, of_job=roles(2, servers=2))
    assert checkpoints(directory) == [30, 35]
    tables = sorted(path.name for path in directory.glob("*.tables"))
    assert tables == ["model.ckpt-30.tables", "model.ckpt-35.tables"]

    expected, expected_logits = run(go_on_alone, tmp_path / "alone", 20, 15)
    evaluated, logits = run(use, directory)
    assert difference([evaluated["loss"]], [expected["loss"]]) <= 3 * WIDTH * ADAPTIVE
    assert evaluated["global_step"] == expected["global_step"] == 35
    assert difference([logits], [expected_logits]) <= 3 * WIDTH * ADAPTIVE
    ids = np.repeat(np.arange(IDS), 3).reshape(IDS, 3)
    (exported,) = serve([directory / "export"], {"ids": ids})
    assert difference([exported["logits"]], [logits]) <= EXACT

    shutil.rmtree(directory / "model.ckpt-35.tables")
    run(use_without_rows, directory)
    run(go_on_without_rows, directory, of_job=roles(1))


@on_ranks(2)
def test_beside_all_reduce_they_are_refused(ctx):
    trained = make(ctx.tmp_path / "model", STRATEGIES["all_reduce"]())
    advice = r"beside all-reduce: .* tfdist.ParameterServerStrategy\(mode=\"sync\"\)"
    with pytest.raises(ValueError, match=advice):
        trained.train(words, max_steps=3)
