"""Data connections within TLS: collectives, and a training with a parameter server."""

from __future__ import annotations

import re
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.certificates import Files, issue
from support.processes.ranks import on_ranks
from support.ps_job import meet, on_job, served
from support.recorder import Recorder
from support.training.known_gradient import endless, sloping_model
from tfdist import ops
from tfdist.config.cluster import Cluster
from tfdist.errors import TfdistError
from tfdist.job import process
from tfdist.ops import tls
from tfdist.ops.ps.client import ParameterClient

OVER_TCP = {"TFDIST_PEER_MEMORY": "0"}
REFUSED = {**OVER_TCP, "TFDIST_RENDEZVOUS_TIMEOUT": "5"}  # for which rank 0 waits
WEIGHT = 1234.5678


@pytest.fixture
def files(tmp_path) -> Files:
    return issue(tmp_path)


@pytest.fixture
def of_two(tmp_path) -> tuple[Files, Files]:
    """Certificates of two authorities."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    return issue(tmp_path / "one"), issue(tmp_path / "other")


@on_ranks(2, 3, env=OVER_TCP)
def test_sums(ctx, files):
    tls.configure(*files, None)
    communicator = process.current.join(Cluster.from_environment()).communicator
    for size in (1, 1000, 3_000_000):
        values = tf.range(size, dtype=tf.int32) + ctx.rank
        summed = ops.all_reduce(values, communicator)
        expected = np.arange(size) * ctx.size + sum(range(ctx.size))
        np.testing.assert_array_equal(summed, expected)


@on_ranks(2, env=REFUSED)
def test_another_authority_is_refused(ctx, of_two):
    tls.configure(*of_two[ctx.rank], None)
    # Rank 1 dials, and finds that the certificate of rank 0 is not of its authority.
    with pytest.raises((tf.errors.OpError, TfdistError)) as raised:
        process.current.join(Cluster.from_environment())
    # Rank 0 learns it by an alert.
    expected = (
        r"rank 0 of 2: no data connection from rank 1 .* refused: 127.0.0.1:\d+: TLS: the other "
        r"side refuses this one: .*unknown ca",
        r"rank 1 of 2: cannot connect to rank 0 .*TLS: this side refuses the other one: "
        r"the certificate of 'CN = worker' was not issued by this job's authority",
    )
    assert re.search(expected[ctx.rank], str(raised.value))


@on_ranks(2, env=REFUSED)
def test_a_plain_rank_is_refused(ctx, files):
    if ctx.rank == 0:
        tls.configure(*files, None)
    with pytest.raises((tf.errors.OpError, TfdistError)) as raised:
        process.current.join(Cluster.from_environment())
    sides = ("the other side is plain, and this side", "this side is plain, and the other side")
    assert f"TLS: {sides[ctx.rank]} requires TLS" in str(raised.value)


def _train_recorded(ctx, files: Files | None) -> bytes:
    """Trains one weight with a server, and returns all bytes between the worker and the server."""
    if files is not None:
        tls.configure(*files, None)
    if served():
        return b""
    recorders = []
    connect = ParameterClient.connect

    def through_recorder(self, server, address, *rest):
        recorders.append(Recorder(address))
        connect(self, server, recorders[-1].address, *rest)

    with mock.patch.object(ParameterClient, "connect", through_recorder):
        strategy = tfdist.ParameterServerStrategy()
        with strategy.scope():
            model = sloping_model(1.0)
            tf.Variable([WEIGHT, -WEIGHT], name="the_secret_weight").assign([WEIGHT, -WEIGHT])
        model.fit(endless(), steps_per_epoch=5, verbose=0)
    (weight,) = model.get_weights()
    assert weight == -5.0
    meet(ctx, "trained")
    return b"".join(recorder.recorded for recorder in recorders)


SECRETS = (np.float32([WEIGHT, -WEIGHT]).tobytes(), b"the_secret_weight")


@on_job(1, env=OVER_TCP)
def test_a_plain_training_shows_its_weights(ctx):
    recorded = _train_recorded(ctx, None)
    assert not recorded or all(secret in recorded for secret in SECRETS)


@on_job(1, env=OVER_TCP)
def test_a_training_within_tls_shows_nothing(ctx, files):
    recorded = _train_recorded(ctx, files)
    if recorded:
        assert recorded[0] == 0x16  # a TLS handshake
        assert not any(secret in recorded for secret in (*SECRETS, b"TFD"))
