"""Starting `tfdist run` in tests, with small scripts that need no TensorFlow."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import textwrap
from pathlib import Path

import tfdist.launch.run
from support.patience import PATIENCE

PACKAGE = str(Path(tfdist.__file__).parents[1])
# Functions for each script. `say` writes whole lines at once.
PRELUDE = """
import json, os, signal, subprocess, sys, threading, time
from pathlib import Path
config = json.loads(os.environ["TF_CONFIG"])
me = f'{config["task"]["type"]} {config["task"]["index"]}'
here = Path(sys.argv[0]).parent
def say(text): os.write(1, (text + "\\n").encode())
def wait_for_ever():
    # In short waits: a signal that comes just before a wait is handled after it.
    while True: time.sleep(0.05)
def wait_for_file(name, count=1):
    while len(list(here.glob(name))) < count: time.sleep(0.01)
def wait_for_end(name):
    wait_for_file(name)
    while not (text := (here / name).read_text()): time.sleep(0.01)
    # Ended tasks are zombies until the launcher ends.
    while Path(f"/proc/{text}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
def leave_pid():
    # In one step: this process may be killed as soon as the file is there.
    (here / f".pid {me}").write_text(str(os.getpid()))
    (here / f".pid {me}").rename(here / f"pid {me}")
"""


_JOB_FILE = "this job's file, for 'tfdist top --job': "


class Launched:
    """A running launcher, ended by its handle."""

    def __init__(self, command, environment, **streams):
        self.process = subprocess.Popen(
            # A shell's background processes ignore these signals, and so would their children.
            ["env", "--default-signal=INT,HUP", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
        )

    def read_lines(self, count):
        """Waits for the next `count` lines of output; returns them as a set."""
        return {self.process.stdout.readline().decode().rstrip("\n") for _ in range(count)}

    def finish(self, timeout=60):
        """Returns the exit code, and the lines of output and of errors.

        The paths of job files that the launcher has told are in `told` instead.
        """
        try:
            out, err = self.process.communicate(timeout=timeout * PATIENCE)
        except subprocess.TimeoutExpired as error:
            error.add_note(f"the launcher and its children: {self._describe_processes()}")
            raise
        out, err = [(text or b"").decode().splitlines() for text in (out, err)]
        self.told = [line.partition(_JOB_FILE)[2] for line in err if _JOB_FILE in line]
        return self.process.returncode, out, [line for line in err if _JOB_FILE not in line]

    def _describe_processes(self):
        """Returns state, signals and system call of the launcher and its children."""
        proc = Path("/proc")
        children = (proc / f"{self.process.pid}/task/{self.process.pid}/children").read_text()
        found = {}
        for pid in (self.process.pid, *children.split()):
            with contextlib.suppress(OSError):  # it has just ended
                lines = (proc / f"{pid}/status").read_text().splitlines()
                told = [line for line in lines if line.startswith(("State", "Shd", "Sig"))]
                found[pid] = [*told, (proc / f"{pid}/syscall").read_text().strip()]
        return found

    def close(self):
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class Launcher:
    """Starts launchers in a directory, with a `python`; `close` ends all of them."""

    def __init__(self, directory, python=sys.executable):
        self._directory = directory
        self._python = python
        self._running = []

    def __call__(self, body, *options, arguments=(), streams=None, **keywords):
        """Starts `tfdist run *options script`, or `run.run` with options that the command lacks."""
        script = self._directory / "script.py"
        script.write_text(PRELUDE + textwrap.dedent(body))
        environment = {**os.environ, "PYTHONPATH": PACKAGE}
        if keywords:
            text = "import sys; from pathlib import Path, PosixPath\n"
            text += "from tfdist.launch import run\n"
            text += "from tfdist.launch.policies.elastic import Backoff, WorkerRange\nsys.exit("
            text += f"run.run(run.LaunchOptions(Path({str(script)!r}), **{keywords!r})))"
            command = [self._python, "-c", text]
        else:
            command = [self._python, "-m", "tfdist", "run", *options, str(script), *arguments]
        self._running.append(Launched(command, environment, **(streams or {})))
        return self._running[-1]

    def close(self):
        for launched in self._running:
            launched.close()


def wait_until_gone(pid, timeout=60):
    """Waits for the end of a process that need not be our child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended = select.poll()  # not select, which knows no descriptor above 1024
        ended.register(descriptor, select.POLLIN)
        assert ended.poll(1000 * timeout), f"process {pid} is still there"
    finally:
        os.close(descriptor)


def without_locks(folder):
    """The files in a folder for temporary files, without locks of ports and entries of jobs."""
    left = set(folder.iterdir())
    shared = folder / f"tfdist-{os.getuid()}"
    stays = all(
        path.name == "ports" or path.suffix in (".job", ".log", ".states")
        for path in shared.glob("*")
    )
    return left - {shared} if stays else left
