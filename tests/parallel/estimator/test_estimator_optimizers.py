"""Optimizers of a model_fn that the parameter servers run, against training without servers."""

from __future__ import annotations

import pytest

import tfdist
from parallel.estimator.optimized_estimators import (
    ADAPTIVE,
    BATCH,
    IDS,
    ON_SERVERS,
    ON_SERVERS_IN_SYNC,
    OPTIMIZERS,
    REFUSED,
    STEPS,
    WIDTH,
    canned,
    logged,
    own,
    train,
    train_like_alone,
)
from support.ps_job import on_job, served

pytestmark = pytest.mark.timeout(120)


# Adam, and one of each family.
@pytest.mark.long("*v1_adagrad", "*clipped", covered_by="the other cases")
@pytest.mark.long(
    "*-v1_sgd",
    "*-v1_adam",
    "*-sgd",
    "*-adagrad",
    covered_by="the other cases, single/ps/test_server_optimizers.py",
)
@pytest.mark.parametrize("optimizer", [n for n in ON_SERVERS if OPTIMIZERS[n][2]] + ["clipped"])
@on_job(1, 2, timeout=90)
def test_one_worker(ctx, optimizer):
    if served():
        return
    tolerance = OPTIMIZERS[optimizer][1]
    train_like_alone(ctx, own(optimizer), tolerance, ps_optimizer="server")


@pytest.mark.long(
    usual="3-ranks-adam", covered_by="the other cases, single/ps/test_server_optimizers.py"
)
@pytest.mark.parametrize("optimizer", ON_SERVERS_IN_SYNC)
@on_job(2, timeout=90)
def test_in_sync(ctx, optimizer):
    if served():
        return
    tolerance = OPTIMIZERS[optimizer][1]
    train_like_alone(ctx, own(optimizer), tolerance, mode="sync", ps_optimizer="server")


@pytest.mark.long(covered_by="test_in_sync, single/ps/test_server_optimizers.py")
@pytest.mark.parametrize("optimizers", [("sgd", "adam"), ("adagrad", "adagrad")])
@on_job(2, timeout=90)
def test_canned_in_sync(ctx, optimizers):
    if served():
        return
    train_like_alone(ctx, canned(optimizers), ADAPTIVE, mode="sync", ps_optimizer="server")


@pytest.mark.long("*momentum_rows", covered_by="the other cases")
@pytest.mark.long(
    "*-v1_adam",
    "*-v1_momentum",
    "*-v1_ftrl_rows",
    "*-adagrad_epsilon",
    covered_by="the other cases",
)
@pytest.mark.parametrize("optimizer", ["v1_adam", *REFUSED])
@on_job(1, timeout=90)
def test_on_the_worker(ctx, optimizer):
    if served():
        return
    _, tolerance, _ = OPTIMIZERS[optimizer]
    wanted = "auto" if optimizer in REFUSED else "worker"
    with logged() as lines:
        train_like_alone(ctx, own(optimizer), tolerance, ps_optimizer=wanted)
    reason = REFUSED.get(optimizer, "as asked for")
    assert [line for line in lines if "runs on the workers (" in line and reason in line], lines


@on_job(1, timeout=90)
def test_refused(ctx):
    if served():
        return
    strategy = tfdist.ParameterServerStrategy(ps_optimizer="server")
    for number, (optimizer, reason) in enumerate(REFUSED.items()):
        with pytest.raises(ValueError, match=f"ps_optimizer='server' asks for, but {reason}"):
            train(own(optimizer), ctx.tmp_path / str(number), 1, strategy)


@on_job(2, timeout=90)
def test_refused_in_sync(ctx):
    if served():
        return
    strategy = tfdist.ParameterServerStrategy(mode="sync", ps_optimizer="server")
    with pytest.raises(ValueError, match="it changes gradients when they have been added up"):
        train(own("clipped"), ctx.tmp_path, 1, strategy)


@pytest.mark.parametrize("where, slots", [("server", 0), ("worker", 2)])
@on_job(1, timeout=90)
def test_what_is_pushed(ctx, where, slots):
    if served():
        return
    strategy = tfdist.ParameterServerStrategy(ps_optimizer=where)
    trained = train(own("v1_adam"), ctx.tmp_path, STEPS, strategy)
    weights = [trained.get_variable_value(n) for n in ("hidden", "output", "bias")]
    table = IDS * WIDTH * 4 if where == "worker" else BATCH * (WIDTH * 4 + 8)
    bytes_of_step = (1 + slots) * sum(w.nbytes for w in weights) + table
    bytes_of_step += slots * table if where == "worker" else 0
    counters = 8 + 2 * 4  # global_step and the powers of beta
    assert strategy.communication_stats().bytes_pushed <= STEPS * (bytes_of_step + counters) * 1.02
    assert strategy.communication_stats().bytes_pushed >= STEPS * bytes_of_step * 0.98
