"""Tracebacks without tfdist's frames, and the line that Ctrl-C leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
import types
from concurrent import futures

import pytest

import tfdist
from support.launching import PACKAGE
from tfdist.config.cluster import Cluster
from tfdist.config.resolver import ClusterResolver
from tfdist.errors import ClusterConfigError
from tfdist.job import process
from tfdist.tracebacks import ends_at_caller, followed, hide_own_frames

INTERRUPTED = """
import os, signal
from tfdist.job.script_failure import ScriptFailure
from tfdist.tracebacks import note_place
ScriptFailure(None, lambda: "worker 1")
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt as error:
    note_place(error, "epoch 2, step 17")
    raise
"""


def own(function):
    """The function, as a part of tfdist."""
    return types.FunctionType(
        function.__code__, {**globals(), "__name__": "tfdist.keras.calls"}, closure=None
    )


def inner():
    raise ValueError("expected a batch")


def outer(call):
    try:
        call()
    except ValueError as error:
        hide_own_frames(error)
        raise


def names_of(call):
    try:
        own(outer)(call)
    except ValueError as error:
        return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def test_the_raising_frame_stays():
    assert names_of(own(inner)) == ["names_of", "inner"]
    assert names_of(inner) == ["names_of", "inner"]


def refuse():
    raise ClusterConfigError("expected a port") from OSError("in use")


def run_later(call):
    with futures.ThreadPoolExecutor() as pool:
        return pool.submit(call).result(timeout=60)


def frames_of(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize("call", [refuse, lambda: own(run_later)(own(refuse))])
def test_an_error_at_the_start_ends_at_the_caller_s_line(call):
    with pytest.raises(ClusterConfigError) as caught:
        ends_at_caller(own(call))()
    assert frames_of(caught.value) == ["test_an_error_at_the_start_ends_at_the_caller_s_line"]
    assert frames_of(caught.value.__cause__) == []


def test_a_refusal_ends_at_the_caller_s_line_and_a_defect_does_not():
    with pytest.raises(ValueError, match="expected a batch") as caught:
        ends_at_caller(own(inner))()
    here = "test_a_refusal_ends_at_the_caller_s_line_and_a_defect_does_not"
    assert frames_of(caught.value) == [here]
    with pytest.raises(ZeroDivisionError) as caught:
        ends_at_caller(own(lambda: 1 / 0))()
    assert frames_of(caught.value) == [here, "<lambda>"]


@pytest.mark.parametrize("variable", ["TF_CONFIG", "TFDIST_SECRET"])
def test_init_shows_the_line_that_calls_it(monkeypatch, variable):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setenv(variable, "{")
    cluster = None if variable == "TF_CONFIG" else Cluster(workers=("here:1", "there:2"))
    monkeypatch.setattr(process, "current", process.Process())
    with pytest.raises(ClusterConfigError, match=variable) as caught:
        tfdist.init(cluster)
    assert frames_of(caught.value) == ["test_init_shows_the_line_that_calls_it"]


def test_init_refuses_a_certificate_before_any_connection(monkeypatch):
    files = {f"TFDIST_TLS_{name}": "/no/such" for name in ("CERT", "KEY", "CA")}
    for name, value in {**files, "TFDIST_TLS": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(process, "current", process.Process())
    with pytest.raises(ClusterConfigError, match="TFDIST_TLS_CERT: .* '/no/such'") as caught:
        tfdist.init(Cluster(workers=("here:1", "there:2")))
    assert frames_of(caught.value) == ["test_init_refuses_a_certificate_before_any_connection"]
    # A task that trains alone has no connections.
    tfdist.init(Cluster())


def test_a_resolver_shows_the_line_that_makes_it(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(ClusterConfigError, match="TF_CONFIG") as caught:
        ClusterResolver()
    assert frames_of(caught.value) == ["test_a_resolver_shows_the_line_that_makes_it"]


def test_a_circle_of_causes_ends():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert list(followed(first)) == [first, second]


def test_an_interrupted_script_leaves_one_line():
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        env={**os.environ, "PYTHONPATH": PACKAGE},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr == "worker 1: interrupted (KeyboardInterrupt) in epoch 2, step 17\n"
