"""Error messages of parameter servers and workers in a misconfigured job."""

from __future__ import annotations

import json
import os
import socket

import keras
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks, start_ranks
from support.ps_job import on_job, roles, served
from support.training.known_gradient import (
    BASE,
    ended_well,
    endless,
    hear,
    sloping_model,
    state_of,
    tell,
    weight_after,
)
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.errors import (
    AddressInUseError,
    AuthenticationError,
    ClusterConfigError,
    RendezvousTimeoutError,
    TfdistError,
)
from tfdist.ps.server import ServerTask

pytestmark = pytest.mark.timeout(120)


def fit(ctx, strategy, steps=3):
    """Trains as one worker whose gradient is BASE ** rank; returns the state."""
    with strategy.scope():
        model = sloping_model(BASE**ctx.rank)
    model.fit(endless(), steps_per_epoch=steps, verbose=0)
    return state_of(model)


@pytest.mark.parametrize(
    ("theirs", "ours", "difference"),
    [
        ({}, {"mode": "sync"}, "mode 'sync' / 'async', num_aggregate 2 / 0"),
        (
            {"mode": "sync", "num_aggregate": 1},
            {"mode": "sync"},
            "num_aggregate 2 / 1",
        ),
        ({"worker_timeout": 5.0}, {"worker_timeout": 6.0}, "worker_timeout 6.0 / 5.0"),
        ({"mode": "ssp", "staleness": 2}, {"mode": "ssp", "staleness": 3}, "staleness 3 / 2"),
    ],
    ids=["mode", "num_aggregate", "worker_timeout", "staleness"],
)
@on_job(2)
def test_workers_that_want_different_things(ctx, theirs, ours, difference):
    if served():
        return
    if ctx.rank == 0:
        strategy = tfdist.ParameterServerStrategy(epoch_timeout=0.0, **theirs)
        tell(ctx, "made")
        hear(ctx, "refused")
        if "mode" not in theirs:
            assert fit(ctx, strategy, 3)["weight"] == weight_after(3)
        return
    hear(ctx, "made")
    with pytest.raises(ClusterConfigError) as caught:
        tfdist.ParameterServerStrategy(epoch_timeout=0.0, **ours)
    message = str(caught.value)
    expected = f"another strategy than the job has (asked for / the job's): {difference} ("
    assert f"worker 0 asks for {expected}" in message
    assert f"worker 0 at {ctx.addresses[1]} called ps " in message
    tell(ctx, "refused")


@on_job(2)
def test_a_worker_of_another_cluster(ctx):
    if served():
        return
    if ctx.rank == 0:
        strategy = tfdist.ParameterServerStrategy(epoch_timeout=0.0)
        tell(ctx, "made")
        hear(ctx, "refused")
        assert fit(ctx, strategy, 3)["weight"] == weight_after(3)
        return
    hear(ctx, "made")
    config = json.loads(os.environ["TF_CONFIG"])
    config["cluster"]["worker"].append("127.0.0.1:1")
    os.environ["TF_CONFIG"] = json.dumps(config)
    with pytest.raises(ClusterConfigError, match="the caller has another cluster than this task"):
        tfdist.ParameterServerStrategy()
    tell(ctx, "refused")


@on_job(1, servers=2)
def test_a_server_whose_port_is_taken(ctx):
    cluster = Cluster.from_environment()
    if cluster.task_name == "ps 1":
        with socket.create_server(("127.0.0.1", int(cluster.address.rpartition(":")[2]))):
            with pytest.raises(
                AddressInUseError, match=f"ps 1 at {cluster.address}: port .* in use"
            ):
                tfdist.init()
    # Once it is free, the job begins.
    if not served():
        assert fit(ctx, tfdist.ParameterServerStrategy())["weight"] == weight_after(3)


@pytest.mark.parametrize("secret", ["another secret of the job", None])
@on_job(2, env={"TFDIST_SECRET": "correct horse battery staple"})
def test_a_worker_with_another_secret(ctx, secret):
    if served():
        return
    if ctx.rank == 0:
        strategy = tfdist.ParameterServerStrategy(epoch_timeout=0.0)
        tell(ctx, "made")
        hear(ctx, "trained")
        assert fit(ctx, strategy, 5)["weight"] == weight_after(5, 3)
        return
    hear(ctx, "made")
    right = os.environ.pop("TFDIST_SECRET")
    if secret:
        os.environ["TFDIST_SECRET"] = secret
    expected = f"worker 0 at {ctx.addresses[1]} called ps 0 at {ctx.addresses[2]}: .*TFDIST_SECRET"
    with pytest.raises(AuthenticationError, match=expected):
        tfdist.ParameterServerStrategy()
    # A process that failed to join may try again.
    os.environ["TFDIST_SECRET"] = right
    strategy = tfdist.ParameterServerStrategy(epoch_timeout=0.0)  # they train one after the other
    assert fit(ctx, strategy, 3)["weight"] == weight_after(0, 3)
    tell(ctx, "trained")


@on_ranks(3, roles=roles(1, 2), env={"TFDIST_RENDEZVOUS_TIMEOUT": "3"})
def test_a_server_that_never_comes(ctx):
    cluster = Cluster.from_environment()
    if cluster.task_name == "ps 0":
        task = ServerTask(cluster, Settings.from_environment())
        tell(ctx, "ps 0 is there")
        # The chief never gets to train, and does not come back.
        assert task.serve() == 1
    elif cluster.is_chief:
        hear(ctx, "ps 0 is there")
        expected = f"chief: ps 1 at {cluster.ps[1]} was not there within 3 s: "
        with pytest.raises(RendezvousTimeoutError, match=expected):
            tfdist.ParameterServerStrategy()


@on_job(2)
def test_no_worker_decides_where_a_server_writes(ctx):
    if served():
        return
    if ctx.rank == 0:
        strategy = tfdist.ParameterServerStrategy(epoch_timeout=0.0)
        hear(ctx, "refused")
        assert fit(ctx, strategy, 3)["weight"] == weight_after(3)
        return
    elsewhere = ctx.tmp_path / "elsewhere"
    expected = f"asks for snapshots in '{elsewhere}', but this server keeps none"
    with pytest.raises(ClusterConfigError, match=expected):
        tfdist.ParameterServerStrategy(checkpoint_dir=str(elsewhere), epoch_timeout=0.0)
    assert not elsewhere.exists()
    tell(ctx, "refused")


@on_ranks(2, roles=("chief", "ps"))
def test_a_checkpoint_dir_that_cannot_be_written(ctx):
    cluster = Cluster.from_environment()
    if cluster.task_name == "ps 0":
        assert ServerTask(cluster, Settings.from_environment(), "/proc/here").serve() == 1
        return
    expected = "checkpoint_dir: expected a place to write /proc/here/ps-0-of-1, received"
    with pytest.raises(TfdistError, match=expected):
        tfdist.ParameterServerStrategy(checkpoint_dir="/proc/here")


def optimizers_of_their_own(ctx):
    if served():
        return
    strategy = tfdist.ParameterServerStrategy(epoch_timeout=0.0)  # the chief's first fit is alone
    with strategy.scope():
        # The chief's configuration arrives first.
        model = sloping_model(BASE**ctx.rank, keras.optimizers.SGD(1.0, nesterov=ctx.rank == 1))
    if ctx.rank == 0:
        model.fit(endless(), steps_per_epoch=1, verbose=0)
        tell(ctx, "trained")
    hear(ctx, "trained")
    model.fit(endless(), steps_per_epoch=1, verbose=0)


def test_a_worker_with_an_optimizer_of_its_own():
    with start_ranks(optimizers_of_their_own, 3, roles=("chief", "worker", "ps")) as ranks:
        outcomes = ranks.join(timeout=60)
    ended_well(outcomes, workers=2)
    assert "worker 0 has replaced the optimizer of 'sequential/slope/weight'" in outcomes[2].output


def forgotten_scope(ctx):
    if served():
        return
    tfdist.ParameterServerStrategy()
    models = [sloping_model(1.0) for _ in range(2)]
    for model in 2 * models:
        model.fit(endless(), steps_per_epoch=1, verbose=0)


def test_a_model_made_out_of_the_scope_is_said_to_train_alone():
    with start_ranks(forgotten_scope, 2, roles=("chief", "ps")) as ranks:
        outcomes = ranks.join(timeout=60)
    ended_well(outcomes, workers=1)
    # Once for each model.
    for name in ("sequential", "sequential_1"):
        told = f"chief: fit trains model {name!r} by itself"
        assert outcomes[0].output.count(told) == 1


@on_ranks(2, roles=("chief", "worker"))
def test_a_cluster_without_servers(ctx):
    name = ("chief", "worker 0")[ctx.rank]
    expected = f"expected .* of a cluster with at least one ps, received {name} of"
    with pytest.raises(ClusterConfigError, match=expected):
        tfdist.ParameterServerStrategy()


@on_ranks(2, roles=("chief", "ps"))
def test_a_worker_cannot_serve(ctx):
    cluster = Cluster.from_environment()
    if cluster.is_chief:
        with pytest.raises(ClusterConfigError, match="expected a ps task to serve, received chief"):
            ServerTask(cluster, Settings())


@on_job(1)
def test_a_process_has_one_strategy(ctx):
    if served():
        return
    first = tfdist.ParameterServerStrategy()
    assert fit(ctx, first)["weight"] == weight_after(3)
    # The same arguments give the same connections, but the model has variables of its own,
    # although their names are equal.
    keras.backend.clear_session()
    assert fit(ctx, tfdist.ParameterServerStrategy())["weight"] == weight_after(3)
    with pytest.raises(
        ClusterConfigError, match="has joined a job as chief .* cannot join another"
    ):
        tfdist.ParameterServerStrategy(mode="sync")


@on_job(1)
def test_there_is_no_coordinator(ctx):
    if served():
        return
    strategy = tfdist.ParameterServerStrategy()
    with pytest.raises(ClusterConfigError, match="expected TensorFlow's own ParameterServerStr"):
        tf.distribute.coordinator.ClusterCoordinator(strategy)


@on_ranks(2, roles=("chief", "ps"))
def test_a_tensorflow_server_where_a_server_should_be(ctx):
    if ctx.rank == 1:
        cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
        server = tf.distribute.Server(cluster, "ps", 0)
        ctx.barrier("serves")
        ctx.barrier("asked")
        del server
        return
    ctx.barrier("serves")
    with pytest.raises(ClusterConfigError, match="another gRPC server, as tf.distribute.Server"):
        tfdist.ParameterServerStrategy()
    ctx.barrier("asked")
