"""Tracebacks without tfdist's frames, and the line that Ctrl-C leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
import types

from support.launching import PACKAGE
from tfdist.tracebacks import followed, hide_own_frames

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
