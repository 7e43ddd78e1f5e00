"""The states that members of an elastic job give each other, and the causes that end them."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from parallel.elastic.elastic_loops import TOLERANCE
from support.processes.ranks import on_ranks, start_ranks
from tfdist.compression import compressor
from tfdist.errors import TfdistError
from tfdist.job import process

pytestmark = pytest.mark.timeout(240)
ELASTIC = {"TFDIST_ELASTIC": "1:4"}
TIMEOUT = 60.0


def train_nothing(ctx):
    tfdist.init()
    weights = tf.Variable([1.0 + ctx.rank, 2.0])
    table = np.full((2, 3), ctx.rank, np.int16)
    state = tfdist.elastic.TensorFlowState(
        [weights], rank=ctx.rank, seen={"a": [ctx.rank]}, t=table
    )

    @tfdist.elastic.run
    def train(state):
        state.commit()
        return state.rank, state.seen, state.t.tolist(), weights.numpy().tolist()

    assert train(state) == (0, {"a": [0]}, [[0] * 3] * 2, [1.0, 2.0])
    # All members are in the same place again.
    assert float(tfdist.ops.all_reduce(tf.constant(1.0))) == ctx.size


@on_ranks(2, 3, env=ELASTIC)
def test_all_begin_with_the_values_of_rank_0(ctx):
    train_nothing(ctx)


@on_ranks(1, 2)
def test_all_ranks_of_an_ordinary_job_do_so_too(ctx):
    train_nothing(ctx)


@on_ranks(2, env=ELASTIC)
def test_other_values_are_refused(ctx):
    tfdist.init()
    state = tfdist.elastic.ObjectState(**{f"value_{ctx.rank}": 1})
    if ctx.rank == 0:
        tfdist.elastic.run(lambda state: None)(state)
    else:
        with pytest.raises(TfdistError, match="expected the values value_1, received value_0"):
            tfdist.elastic.run(lambda state: None)(state)


@on_ranks(2, env=ELASTIC)
def test_other_variables_are_refused(ctx):
    tfdist.init()
    state = tfdist.elastic.TensorFlowState([tf.Variable(tf.zeros([2 + ctx.rank]))])
    with pytest.raises(TfdistError, match="expected the same dtypes and shapes"):
        tfdist.elastic.run(lambda state: None)(state)


def fail_on_rank_1(ctx):
    tfdist.init()
    state = tfdist.elastic.ObjectState(step=0)

    @tfdist.elastic.run
    def train(state):
        while state.step < 10:
            tfdist.ops.all_reduce(tf.constant(1.0))
            if ctx.rank == 1 and state.step == 5:
                raise ZeroDivisionError("of the program")
            state.step += 1
            state.commit()
        return tfdist.size()

    return train(state)


def test_an_exception_of_the_program_ends_its_rank_alone():
    with start_ranks(fail_on_rank_1, 3, env=ELASTIC) as ranks:
        outcomes = ranks.join(TIMEOUT)
    assert outcomes[1].exception == "ZeroDivisionError"
    assert [outcomes[rank].result for rank in (0, 2)] == [2, 2]


def disagree(ctx):
    tfdist.init()

    @tfdist.elastic.run
    def train(state):
        tfdist.ops.all_reduce(tf.zeros([2 + ctx.rank]))

    train(tfdist.elastic.ObjectState())


def test_a_program_whose_ranks_disagree_ends():
    with start_ranks(disagree, 2, env=ELASTIC) as ranks:
        outcomes = ranks.join(TIMEOUT)
    assert "InvalidArgumentError" in {outcome.exception for outcome in outcomes}
    assert any("the ranks disagree on a collective" in outcome.message for outcome in outcomes)


def abort(ctx):
    tfdist.init()
    calls = []

    @tfdist.elastic.run
    def train(state):
        calls.append(1)
        ctx.report("calls", len(calls))
        process.current.members.communicator.abort("of no lost member")
        tfdist.ops.all_reduce(tf.constant(1.0))

    train(tfdist.elastic.ObjectState())


def test_a_program_that_fails_again_and_again_among_the_same_members_ends():
    with start_ranks(abort, 2, env=ELASTIC) as ranks:
        outcomes = ranks.join(TIMEOUT)
        calls = [[value for _, value in ranks[rank].reports] for rank in range(2)]
    # The first one to end leaves the other one alone.
    first = min(outcomes, key=lambda outcome: outcome.finished_at)
    assert first.exception == "UnavailableError" and "of no lost member" in first.message
    assert calls[first.rank] == list(range(1, 7))


def end_late(ctx):
    tfdist.init()
    state = tfdist.elastic.ObjectState(step=0)
    calls = []

    @tfdist.elastic.run
    def train(state):
        calls.append(tfdist.size())
        while state.step < 3:
            state.step += 1
            state.commit()
        if ctx.rank == 0 and len(calls) == 1:
            ctx.report("at the end")
            ctx.wait_for("never")

    train(state)
    return calls, state.step


def test_a_rank_is_killed_when_the_others_have_returned():
    with start_ranks(end_late, 3, env=ELASTIC) as ranks:
        ranks.wait_for(0, "at the end")
        ranks[0].kill()
        outcomes = ranks.join(TIMEOUT, only=[1, 2])
    assert [outcome.result for outcome in outcomes] == [([3, 2], 3)] * 2


STEPS, ROWS = 12, 8


def data():
    random = np.random.default_rng(3)
    features = random.normal(size=(STEPS * ROWS, 3))
    return features, features @ [[1.0], [2.0], [3.0]]


def model_and_optimizer():
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    return model, keras.optimizers.AdamW(0.01, clipnorm=1.0)


def fit_with_horovod_s_names(ctx):
    tfdist.init()
    model, optimizer = model_and_optimizer()
    model.compile(tfdist.DistributedOptimizer(optimizer), "mse")
    state = tfdist.elastic.TensorFlowKerasState(model, epoch=0, batch=0)
    stopped = ctx.tmp_path / "stopped"

    class Stop(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if ctx.rank == 1 and state.epoch == 1 and state.batch == 5 and not stopped.exists():
                stopped.touch()
                ctx.report("middle")
                ctx.wait_for("never")

    @tfdist.elastic.run
    def train(state):
        while state.epoch < 2:
            whole = tf.data.Dataset.from_tensor_slices(data())
            # 8 rows for 2 or 4 ranks.
            own = whole.shard(tfdist.size(), tfdist.rank()).batch(ROWS // tfdist.size())
            model.fit(
                own.skip(state.batch),
                initial_epoch=state.epoch,
                epochs=state.epoch + 1,
                verbose=0,
                callbacks=[
                    tfdist.callbacks.MetricAverageCallback(),
                    Stop(),
                    tfdist.callbacks.UpdateBatchStateCallback(state),
                    tfdist.callbacks.UpdateEpochStateCallback(state),
                    tfdist.callbacks.CommitStateCallback(state),
                ],
            )
        return tfdist.size()

    size = train(state)
    return size, int(model.optimizer.iterations.numpy()), model.get_weights()


def fit_alone(ctx):
    model, optimizer = model_and_optimizer()
    model.compile(optimizer, "mse")
    model.fit(*data(), batch_size=ROWS, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


def test_a_rank_is_killed_in_fit_with_a_distributed_optimizer():
    with start_ranks(fit_alone, 1) as ranks:
        (alone,) = ranks.join(TIMEOUT)
    assert alone.ok, alone.describe()
    with start_ranks(fit_with_horovod_s_names, 2, env=ELASTIC) as ranks:
        ranks.wait_for(1, "middle")
        ranks[1].kill()
        (survivor,) = ranks.join(TIMEOUT, only=[0])
    assert survivor.ok, survivor.describe()
    size, iterations, weights = survivor.result
    assert size == 1 and iterations == 2 * STEPS
    for own, expected in zip(weights, alone.result, strict=True):
        np.testing.assert_allclose(own, expected, rtol=0, atol=TOLERANCE)


def normalize(ctx):
    """Gradients through a layer and an optimizer that read the ranks at each execution."""
    tfdist.init()
    layer = tfdist.SyncBatchNormalization(dtype="float64", epsilon=0.0)
    layer.build((None, 1))
    weight, local = (keras.Variable([1.0], dtype="float64", name=name) for name in "wl")
    optimizer = tfdist.DistributedOptimizer(
        keras.optimizers.SGD(1.0), backward_passes_per_step=2, gradient_reduction="sum"
    )
    optimizer.register_local_var(local)
    optimizer.build([weight, local])
    state = tfdist.elastic.TensorFlowState([weight.value, local.value], step=0)
    stopped = ctx.tmp_path / "stopped"

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y = layer(x, training=True)
            # The derivative of a rank's output with respect to its own input has a closed form.
            tape.watch(x)
            loss = tf.reduce_sum(layer(x, training=True) ** 3)
        optimizer.apply([tf.ones([1], tf.float64)] * 2, [weight, local])
        return y, tape.gradient(loss, x)

    @tfdist.elastic.run
    def train(state):
        optimizer.reset_accumulation()
        size = tfdist.size()
        inputs = tf.reshape(tf.range(6.0 * size, dtype=tf.float64), [-1, 1]) ** 2
        own = inputs[6 * tfdist.rank() : 6 * (tfdist.rank() + 1)]
        while state.step < 4:
            if ctx.rank == 0 and state.step == 2 and not stopped.exists():
                stopped.touch()
                ctx.report("middle")
                ctx.wait_for("never")
            output, gradient = step(own)
            state.step += 1
            if state.step % 2 == 0:
                state.commit()
        mean, deviation = np.mean(inputs), np.std(inputs)
        normal = (inputs.numpy() - mean) / deviation
        upstream = 3 * normal**2
        expected = upstream - np.mean(upstream) - normal * np.mean(upstream * normal)
        rows = slice(6 * tfdist.rank(), 6 * (tfdist.rank() + 1))
        np.testing.assert_allclose(output, normal[rows], atol=TOLERANCE)
        np.testing.assert_allclose(gradient, expected[rows] / deviation, atol=TOLERANCE)
        return size, float(weight.numpy()[0]), float(local.numpy()[0])

    return train(state)


def test_layers_and_optimizers_follow_the_members():
    with start_ranks(normalize, 3, env=ELASTIC) as ranks:
        ranks.wait_for(0, "middle")
        ranks[0].kill()
        outcomes = ranks.join(TIMEOUT, only=[1, 2])
    for outcome in outcomes:
        assert outcome.ok, outcome.describe()
        # Two gradients of 1 a step: first of three ranks, then of two.
        assert outcome.result[:2] == (2, 1.0 - 6.0 - 4.0)
        assert outcome.result[2] == pytest.approx(1.0 - 2 / 3 - 2 / 2, abs=TOLERANCE)


@on_ranks(2, env=ELASTIC)
def test_what_needs_fixed_ranks_is_refused(ctx):
    tfdist.init()
    with pytest.raises(TfdistError, match="expected a job of a fixed number of workers for tfdist"):
        tfdist.new_group([0, 1])
    variable = tf.Variable(tf.zeros([64, 64]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable)
    tape = tfdist.DistributedGradientTape(tape, compression=compressor("topk"))
    with pytest.raises(ValueError, match="in an elastic job, received TopK"):
        tape.gradient(loss, [variable])


@on_ranks(2, env=ELASTIC, roles=("worker", "evaluator"))
def test_other_tasks_than_workers_are_refused(ctx):
    if ctx.rank == 1:
        assert tfdist.init().rank is None
        return
    with pytest.raises(tfdist.errors.ClusterConfigError, match="received evaluator tasks"):
        tfdist.init()


@on_ranks(1, env={"TFDIST_ELASTIC": "1:1"})
def test_parameter_servers_come_with_a_strategy(ctx):
    cluster = dataclasses.replace(
        tfdist.Cluster.from_environment(), ps=("127.0.0.1:1", "127.0.0.1:2")
    )
    expected = "expected no ps tasks in an elastic job that begins without a strategy, received 2.*"
    with pytest.raises(
        tfdist.errors.ClusterConfigError, match=expected + "leave tfdist.init.. out"
    ):
        tfdist.init(cluster)


@on_ranks(2, env=ELASTIC)
def test_a_function_that_makes_data_sees_the_members(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    seen = []

    def make(context):
        seen.append((context.num_input_pipelines, context.input_pipeline_id))
        size = context.get_per_replica_batch_size(8)
        return tf.data.Dataset.range(8).shard(*seen[-1]).batch(size)

    data = strategy.distribute_datasets_from_function(make)
    assert [batch.numpy().tolist() for batch in data] == [list(range(ctx.rank, 8, 2))]
    assert seen == [(2, ctx.rank)]
