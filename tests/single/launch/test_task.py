"""A task of a launched job, without a supervisor."""

from __future__ import annotations

import os
import sys

import pytest

from tfdist.launch import process as launch_process
from tfdist.launch.output import output_streams
from tfdist.launch.process import LocalProcess
from tfdist.launch.task import Task, TaskSpec


@pytest.fixture
def guard():
    readable, writable = os.pipe()
    yield writable
    os.close(readable)
    os.close(writable)


def test_an_end_is_noted_once_also_if_the_signal_handler_notes_it_meanwhile(monkeypatch, guard):
    spec = TaskSpec("worker 0", trains=True, serves=False, tf_config="{}", grace=0.0)
    command = [sys.executable, "-c", "raise SystemExit(7)"]
    environment = dict(os.environ)

    def start(process, sinks):
        return LocalProcess(command, environment, process, sinks, guard)

    task = Task(spec, 0, start, output_streams(), None)
    waitid = os.waitid
    noted = []

    def interrupted(*arguments):
        monkeypatch.setattr(launch_process.os, "waitid", waitid)
        found = waitid(*arguments)
        # As the handler of SIGCHLD does, just before `check` continues.
        noted.append(task.check())
        return found

    # Until it has ended; it is not reaped.
    waitid(os.P_PID, task.process.pid, os.WEXITED | os.WNOWAIT)
    monkeypatch.setattr(launch_process.os, "waitid", interrupted)
    noted.append(task.check())
    noted.append(task.check())
    task.close()
    assert noted == [True, False, False]
    assert task.end.code == 7
