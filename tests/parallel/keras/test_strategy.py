"""The promises of `MultiWorkerMirroredStrategy` beside training: variables, reductions, roles."""

import copy
import json
import os

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.patience import wait_until
from support.processes.ranks import on_ranks


@on_ranks(2, 3)
def test_variables_start_with_rank_0s_values_in_every_dtype(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.int32, tf.int64, tf.uint32, tf.bool):
            start = tf.cast([0, ctx.rank, ctx.rank + 1], dtype)
            variable = tf.Variable(start)
            np.testing.assert_array_equal(
                variable.numpy(), tf.cast([0, 0, 1], dtype).numpy(), err_msg=str(dtype)
            )
        assert tf.Variable(f"rank {ctx.rank}").numpy() == b"rank 0"

        @tf.function
        def make():
            if not made:
                made.append(tf.Variable(lambda: tf.fill([2], 5.0 + ctx.rank)))
            return made[0].read_value()

        made = []
        np.testing.assert_array_equal(make(), [5.0, 5.0])


@on_ranks(2, 3)
def test_reduce_takes_nests_scalars_and_axes(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    n, r = ctx.size, ctx.rank
    ranks = n * (n - 1) / 2
    value = {"a": tf.constant([1.0 + r, 2.0]), "b": (tf.constant(3 * r),)}
    summed = strategy.reduce("SUM", value, axis=None)
    np.testing.assert_allclose(summed["a"], [n + ranks, 2.0 * n])
    assert int(summed["b"][0]) == 3 * ranks
    assert float(strategy.reduce("MEAN", tf.constant(float(r)), axis=0)) == (n - 1) / 2
    assert float(strategy.reduce("SUM", tf.constant([1.0 * r, 1.0]), axis=0)) == ranks + n
    # Rank r brings r + 1 ones and one number n: the mean is over all elements, not over ranks.
    uneven = tf.concat([tf.ones([r + 1]), [float(n)]], 0)
    mean = strategy.reduce("MEAN", uneven, axis=0)
    assert float(mean) == pytest.approx((ranks + n + n * n) / (ranks + 2 * n), rel=1e-6)

    @tf.function
    def in_function(x):
        return strategy.reduce("SUM", [x, 2.0 * x], axis=None)

    for total, factor in zip(in_function(tf.constant([1.0 + r])), (1, 2), strict=True):
        np.testing.assert_allclose(total, [factor * (n + ranks)])


@on_ranks(2, 3)
def test_gather_along_any_axis_with_different_lengths(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    rows = strategy.gather(tf.fill([ctx.rank + 1, 2], ctx.rank), axis=0)
    np.testing.assert_array_equal(
        rows[:, 0], np.repeat(np.arange(ctx.size), np.arange(ctx.size) + 1)
    )
    columns = strategy.gather(tf.fill([2, ctx.rank + 1, 3], ctx.rank), axis=1)
    np.testing.assert_array_equal(
        columns[1, :, 2], np.repeat(np.arange(ctx.size), np.arange(ctx.size) + 1)
    )


@on_ranks(2)
def test_bytes_per_pack_decides_the_number_of_buckets(ctx):
    counts = {}
    for bytes_per_pack in (0, 1000, 1):
        strategy = tfdist.MultiWorkerMirroredStrategy(
            communication_options=tfdist.CommunicationOptions(bytes_per_pack=bytes_per_pack)
        )

        @tf.function
        def step(strategy=strategy):
            def reduce():
                values = [tf.fill([100], 1.0 + i) for i in range(10)]
                return tf.distribute.get_replica_context().all_reduce("SUM", values)

            return strategy.run(reduce)

        before = strategy.communication_stats().collectives
        for i, value in enumerate(step()):
            np.testing.assert_array_equal(value, np.full([100], 2.0 + 2 * i))
        counts[bytes_per_pack] = strategy.communication_stats().collectives - before
    # 400 bytes each: all in one; a bucket is closed once it holds more than 1000; one each
    assert counts == {0: 1, 1000: 4, 1: 10}


@on_ranks(2)
def test_indexed_slices_travel_as_rows(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()

    @tf.function
    def step():
        def reduce():
            rows = tf.IndexedSlices(
                tf.fill([ctx.rank + 1, 4], 1.0 + ctx.rank),
                tf.range(ctx.rank + 1),
                tf.constant([1000, 4]),
            )
            return tf.distribute.get_replica_context().all_reduce("SUM", rows)

        return strategy.run(reduce)

    before = strategy.communication_stats().bytes_received
    dense = tf.convert_to_tensor(step())
    np.testing.assert_array_equal(dense[:, 0].numpy()[:3], [3.0, 2.0, 0.0])
    assert strategy.communication_stats().bytes_received - before < 200  # densified: 16,000


@on_ranks(2)
def test_every_worker_gets_its_share_of_each_batch(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    dataset = tf.data.Dataset.range(10).batch(4)
    seen = [
        strategy.experimental_local_results(batch)[0].numpy().tolist()
        for batch in strategy.experimental_distribute_dataset(dataset)
    ]
    everyone = strategy.gather(tf.constant(sum(seen, []), tf.int64), axis=0)
    assert sorted(everyone.numpy().tolist()) == list(range(10))
    assert [len(part) for part in seen] == ([2, 2, 1])


@pytest.mark.parametrize("how", ["dataset", "function"])
@on_ranks(1, 2)
def test_one_device_reads_with_a_plain_iterator_one_batch_ahead(ctx, how):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    made = []

    def make(number):
        made.append(int(number))
        return number

    def numbers(context=None):
        traced = tf.data.Dataset.range(40).map(lambda n: tf.numpy_function(make, [n], tf.int64))
        return traced.map(lambda n: tf.ensure_shape(n, [])).batch(4, drop_remainder=True)

    if how == "dataset":
        distributed = strategy.experimental_distribute_dataset(numbers())
    else:
        distributed = strategy.distribute_datasets_from_function(numbers)
    iterator = iter(distributed)
    (local,) = strategy.experimental_local_results(next(iterator))
    rows = 4 // ctx.size if how == "dataset" else 4
    first = ctx.rank * rows if how == "dataset" else 0
    np.testing.assert_array_equal(local, np.arange(first, first + rows))
    last = 3 + first + rows  # of this worker's rows of the second batch
    wait_until(lambda: last in made, "the second batch was made")
    # The end of TensorFlow's own iterator waits for a thread of tf.data.
    assert type(iterator._iterators[0]._iterator).__name__ == "OwnedIterator"


@on_ranks(2)
def test_a_copy_is_the_same_strategy_and_two_share_the_job(ctx):
    first = tfdist.MultiWorkerMirroredStrategy()
    second = tfdist.MultiWorkerMirroredStrategy()
    assert copy.deepcopy(first) is first
    assert first.communicator is second.communicator
    assert first.is_chief == (ctx.rank == 0) == first.extended.should_save_summary
    assert first.num_replicas_in_sync == 2
    assert float(second.reduce("SUM", tf.constant(1.0), axis=None)) == 2.0


@on_ranks(2)
def test_a_resolver_may_be_given_instead_of_tf_config(ctx):
    del os.environ["TF_CONFIG"]
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(ctx.addresses)}), task_type="worker", task_id=ctx.rank
    )
    strategy = tfdist.MultiWorkerMirroredStrategy(resolver)
    assert strategy.cluster_resolver is resolver
    assert strategy.num_replicas_in_sync == 2
    assert strategy.extended._in_multi_worker_mode()


@on_ranks(2)
def test_nccl_means_tensorflows_own_collectives(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy(
        communication_options=tfdist.CommunicationOptions(implementation="NCCL")
    )
    assert strategy.communicator is None
    assert float(strategy.reduce("SUM", tf.constant(1.0 + ctx.rank), axis=None)) == 3.0
    assert strategy.communication_stats().collectives == 0


@on_ranks(1)
def test_an_evaluator_and_a_lone_process_work_alone(ctx):
    cluster = {"worker": ["127.0.0.1:1", "127.0.0.1:2"], "ps": ["127.0.0.1:3"]}
    config = {"cluster": cluster, "task": {"type": "evaluator", "index": 0}}
    os.environ["TF_CONFIG"] = json.dumps(config)
    alone = [tfdist.MultiWorkerMirroredStrategy()]
    del os.environ["TF_CONFIG"]
    alone.append(tfdist.MultiWorkerMirroredStrategy())
    for strategy in alone:
        assert strategy.num_replicas_in_sync == 1
        assert strategy.is_chief
        assert float(strategy.reduce("SUM", tf.constant(2.0), axis=None)) == 2.0
        assert strategy.communication_stats().collectives == 0


@on_ranks(2)
def test_what_the_chief_does_alone_is_named(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        statistic = tf.Variable(
            [1.0, 2.0],
            name="moving_mean",
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.MEAN,
        )
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2))

    def step():
        return statistic.numpy() if ctx.rank == 0 else next(iter(dataset))

    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        step()
    message = str(raised.value)
    assert "'variable moving_mean, read outside a step: needs every worker'" in message
    assert "'whether a worker has another batch'" in message
