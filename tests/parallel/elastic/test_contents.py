"""Members of an elastic job compare their variables, and end members that differ from most."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.logical_devices import two_devices
from support.processes.ranks import on_ranks, start_ranks
from tfdist.elastic import contents
from tfdist.elastic.contents import Contents, checksums
from tfdist.errors import TfdistError
from tfdist.job import process

pytestmark = pytest.mark.timeout(120)
ELASTIC = {"TFDIST_ELASTIC": "1:4"}
TIMEOUT = 60.0


class Log(logging.Handler):
    """Keeps the lines of a log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def contents_of(**values):
    """Returns variables, and what compares them."""
    variables = [tf.Variable(value) for value in values.values()]
    handles = [variable.handle for variable in variables]
    return variables, Contents(process.current.members, handles, list(values))


@on_ranks(3, env=ELASTIC)
def test_equal_contents_stay(ctx):
    tfdist.init()
    values = [np.array([1.5, np.nan, -0.0, np.inf]), np.arange(5), tf.constant([1, 2], tf.bfloat16)]
    variables, comparing = contents_of(a=values[0], b=values[1], c=values[2], d=np.zeros((0, 3)))
    before = checksums([variable.handle for variable in variables])
    for _ in range(3):
        comparing.compare()
    np.testing.assert_array_equal(checksums([v.handle for v in variables]), before)
    assert process.current.members.size == 3


def differ(ctx, ranks, since):
    tfdist.init()
    job = process.current.members
    log = Log()
    logging.getLogger("tfdist.elastic").addHandler(log)
    own = 2.0 if job.rank in ranks else 1.0
    variables, comparing = contents_of(first=[3.0, 4.0], second=[0.5, own], number=7)
    if job.rank == since:
        job.units = 5
        comparing.note_joining()
    ctx.report("rank", job.rank)
    comparing.compare()
    return variables[1].numpy().tolist(), log.lines


@pytest.mark.parametrize(
    ("size", "differing", "newest", "ending"),
    [
        (3, [1], 0, [1]),
        (3, [0], 2, [0]),
        (2, [1], None, [1]),
        (2, [1], 0, [0]),  # the longer one is right here
        (4, [0, 1], 0, [2, 3]),
    ],
)
def test_those_end_that_differ_from_most(size, differing, newest, ending):
    with start_ranks(differ, size, args=(differing, newest), env=ELASTIC) as ranks:
        numbers = [ranks.wait_for(i, "rank", timeout=TIMEOUT) for i in range(size)]
        outcomes = ranks.join(TIMEOUT)
    right = 2.0 if ending[0] not in differing else 1.0
    for rank, outcome in zip(numbers, outcomes, strict=True):
        if rank in ending:
            assert outcome.exception == "TfdistError", outcome.describe()
            assert "received others in 1 variables (second)" in outcome.message, outcome.message
        else:
            assert outcome.ok, outcome.describe()
            value, lines = outcome.result
            assert value == [0.5, right]
            (line,) = lines
            assert "other values of the variables than on rank" in line and line.endswith("ends")


@on_ranks(3, env=ELASTIC)
def test_what_differs_by_rounding_becomes_equal(ctx):
    tfdist.init()
    job = process.current.members
    own = np.array([1.0, 2.0 + 1e-12 * (job.rank == 2), np.nan])
    (variable,), comparing = contents_of(value=own)
    comparing.compare()
    np.testing.assert_array_equal(variable.numpy(), [1.0, 2.0, np.nan])


@on_ranks(2, env=ELASTIC)
def test_rank_0_decides_when_it_is_time(ctx):
    tfdist.init()
    rank = process.current.members.rank
    (variable,), comparing = contents_of(value=[1.0])
    contents._MAX_SECONDS = contents._MAX_PART = 0.0
    comparing.compare()
    variable.assign([1.0 + rank])
    comparing.compare()  # it is not
    contents._MAX_SECONDS = TIMEOUT * (rank == 0)
    comparing.compare()  # next time
    if rank == 0:
        comparing.compare()
    else:
        with pytest.raises(TfdistError, match=r"1 variables \(value\)"):
            comparing.compare()


@on_ranks(2, env=ELASTIC)
def test_other_integers_are_not_rounding(ctx):
    tfdist.init()
    _, comparing = contents_of(counter=np.int64(10**12) + process.current.members.rank)
    if process.current.members.rank == 0:
        comparing.compare()
    else:
        with pytest.raises(TfdistError, match=r"1 variables \(counter\)"):
            comparing.compare()


def model_with_states():
    """Random layers, statistics of each worker's rows, averages of weights, scaled losses."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(16, activation="relu"),
            layers.BatchNormalization(synchronized=False),
            layers.Dropout(0.5),
            layers.Dense(1, dtype="float32"),
        ]
    )
    optimizer = keras.optimizers.AdamW(0.01, clipnorm=0.1, use_ema=True)
    model.compile(keras.optimizers.LossScaleOptimizer(optimizer), "mse", metrics=["mae"])
    return model


# Of two devices a worker; of one with a residual of its own.
@pytest.mark.long("*topk", covered_by="the other cases")
@pytest.mark.parametrize("compression", [None, "topk"])
@on_ranks(3, env=ELASTIC, timeout=100.0)
def test_equal_members_raise_no_alarm(ctx, compression):
    if compression is None:
        two_devices()
    settled = []
    settle = contents.Contents._settle
    contents.Contents._settle = lambda self, *args: settled.append(settle(self, *args))
    options = tfdist.CommunicationOptions(compression=compression)
    strategy = tfdist.MultiWorkerMirroredStrategy(communication_options=options)
    keras.utils.set_random_seed(2)
    keras.config.set_dtype_policy("mixed_float16")
    with strategy.scope():
        model = model_with_states()
    x = np.random.default_rng(1).normal(size=(45, 6))
    model.fit(x, x.sum(1, keepdims=True), batch_size=20, epochs=3, verbose=0)
    assert settled == [] and strategy.elastic_job.size == 3
