"""A job whose parameter servers run under sanitizers, for attacks on it.

A chief and a worker train variables and a table (hostile_task.py); two further ranks are hostile.
The job starts from snapshots that have tables of theirs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

from support.hostile import hostile_task
from support.hostile import raw_ps_member as ps
from support.hostile.attacks import ACCOMPLICE, MEMBER, TABLE_WIDTH, TABLES, Target
from support.hostile.sanitized_library import SanitizedLibrary
from support.launching import PACKAGE
from support.raw_data_peer import Door, ask_for_door
from support.training.known_gradient import wait_until
from tfdist.config.cluster import Cluster
from tfdist.launch.ports import free_ports
from tfdist.ops.ps.server import ParameterServer
from tfdist.ps.checkpoint.checkpoint import Checkpoints
from tfdist.ps.config import PsConfig

SERVERS = 2
# Steps that the workers make from the word to their last one.
_STEPS_TO_END = 100
_WARM = 50  # steps after which tasks hold what they need
_START_TIMEOUT = 180.0  # s


def configuration(snapshots: Path | str) -> PsConfig:
    """Returns the job's configuration, as its strategy makes it."""
    return PsConfig.make(
        hostile_task.WORKERS, checkpoint_dir=str(snapshots), **hostile_task.OPTIONS
    )


def make_snapshots(root: Path) -> None:
    """Writes the snapshots that a job begins with: tables of the members', without slots."""
    key = bytes(32)
    for index in range(SERVERS):
        with contextlib.closing(ParameterServer(index, configuration(root))) as server:
            checkpoints = Checkpoints(server, str(root), index, SERVERS)
            checkpoints.restore()
            server.start(key)
            door = Door(server.port, key, server.incarnation)
            with ps.Session(door, MEMBER, process=1) as member:
                tables = (ps.table(f"hostile {i}", TABLE_WIDTH, ps.SGD) for i in range(TABLES))
                answers = [member.ask(ps.TABLE, ps.listed(tables))]
                for table in range(TABLES):
                    meta = ps.edit(table, ps.UPSERT, 1, TABLE_WIDTH)
                    answers.append(member.ask(ps.EDIT_ROWS, meta, bytes(8 + 4 * TABLE_WIDTH)))
            assert {kind for kind, _, _ in answers} == {ps.OK}, answers
            checkpoints.save(1)


class AttackedJob:
    """A running job; a context manager that leaves no process behind.

    Args:
      folder: for its files; it is made.
      library: of the `ps` tasks.
      snapshots: of `make_snapshots`.
      secret: the job's, or None.
      pause: of a worker after each step, in seconds.
      steps: the last step, if it is known already.
    """

    def __init__(
        self,
        folder: Path,
        library: SanitizedLibrary,
        snapshots: Path,
        secret: str | None,
        pause: float,
        steps: int | None = None,
    ) -> None:
        folder.mkdir()
        shutil.copytree(snapshots, folder / "snapshots")
        if steps is not None:
            hostile_task.write(folder / "stop", str(steps))
        self.folder = folder
        self.library = library
        self.secret = secret
        self._pause = pause
        ports = free_ports(hostile_task.WORKERS + 2 * SERVERS)
        addresses = [f"127.0.0.1:{port}" for port in ports]
        workers = hostile_task.WORKERS
        self._cluster = {
            "chief": addresses[:1],
            "worker": addresses[1:workers],
            "ps": addresses[workers : workers + SERVERS],
        }
        self._metrics = ports[workers + SERVERS :]
        self.tasks: dict[str, subprocess.Popen] = {}

    def __enter__(self) -> AttackedJob:
        try:
            for index in range(SERVERS):
                # The variable is the first task's port; the others' follow.
                global_index = Cluster.from_tf_config(self._config("ps", index)).global_index
                metrics = {"TFDIST_METRICS_PORT": str(self._metrics[index] - global_index)}
                self._start("ps", index, {**self.library.environment(), **metrics})
            self._start("chief", 0, {"PYTHONPATH": PACKAGE})
            self._start("worker", 0, {"PYTHONPATH": PACKAGE})
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for task in self.tasks.values():
            task.kill()
        for task in self.tasks.values():
            task.wait()

    def _start(self, kind: str, index: int, variables: dict[str, str]) -> None:
        name = f"{kind} {index}"
        environment = {**os.environ, **variables, "TF_CONFIG": self._config(kind, index)}
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        for variable in ("TFDIST_SECRET", "TFDIST_SECRET_FILE"):
            environment.pop(variable, None)
        if self.secret is not None:
            environment["TFDIST_SECRET"] = self.secret
        if kind == "ps":
            environment["TFDIST_CHECKPOINT_DIR"] = str(self.folder / "snapshots")
        command = [sys.executable, hostile_task.__file__, str(self.folder), str(self._pause)]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.tasks[name] = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _config(self, kind: str, index: int) -> str:
        return json.dumps({"cluster": self._cluster, "task": {"type": kind, "index": index}})

    def check(self, ended: bool = False) -> None:
        """Fails if a sanitizer has reported, or a task has ended (unless `ended`: not with 0)."""
        if self.library.reports():
            with contextlib.suppress(AssertionError):  # the task ends when its report is complete
                wait_until(self._has_lost_a_server, "the end of the report", 30.0)
            raise AssertionError("a sanitizer reports:\n" + "\n".join(self.library.reports()))
        for name, task in self.tasks.items():
            code = task.poll()
            log = (self.folder / f"{name}.log").read_text(errors="replace")
            assert code is None or (ended and code == 0), f"{name} ended: {code}\n{log[-4000:]}"

    def descriptors(self) -> int:
        """Returns how many descriptors the servers hold."""
        pids = [self.tasks[f"ps {index}"].pid for index in range(SERVERS)]
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)

    def _has_lost_a_server(self) -> bool:
        return any(self.tasks[f"ps {index}"].poll() is not None for index in range(SERVERS))

    def wait_until_warm(self) -> None:
        """Waits until training is under way, on servers of the sanitized library."""

        def is_warm() -> bool:
            self.check()
            return self.steps() >= _WARM

        wait_until(is_warm, "the first steps", _START_TIMEOUT)
        for index in range(SERVERS):
            pid = self.tasks[f"ps {index}"].pid
            assert self.library.is_loaded_by(pid), f"ps {index} runs another library"

    def steps(self) -> int:
        """Returns how many steps the chief has made, a little later."""
        path = self.folder / "step"
        return int(path.read_text()) if path.exists() else 0

    def targets(self) -> list[Target]:
        """Returns the servers, as a hostile member knows them."""
        secret = None if self.secret is None else self.secret.encode()
        # As the first hostile rank: worker 1, beside a chief and worker 0.
        cluster = Cluster.from_tf_config(self._config("worker", MEMBER - 1))
        config = configuration(self.folder / "snapshots")
        return [
            Target(
                cluster,
                secret,
                index,
                ask_for_door(cluster, secret, index, MEMBER, config),
                self._metrics[index],
            )
            for index in range(SERVERS)
        ]

    def stop_training(self) -> int:
        """Tells the workers their last step; returns it."""
        last = self.steps() + _STEPS_TO_END
        hostile_task.write(self.folder / "stop", str(last))
        return last

    def wait_for_results(self, timeout: float) -> dict[str, np.ndarray]:
        """Waits until the workers have ended; returns the weights, and the rows."""
        workers = [self.tasks[name] for name in ("chief 0", "worker 0")]
        self._wait_for_ends(workers, timeout, "the last step")
        with np.load(self.folder / "result.npz") as found:
            return dict(found)

    def end(self, targets: list[Target]) -> None:
        """Lets the hostile ranks leave, and waits for the end of the servers."""
        for target in targets:
            for rank in (MEMBER, ACCOMPLICE):
                with ps.Session(target.door, rank, target.process + rank) as session:
                    assert session.ask(ps.LEAVE)[0] == ps.OK
        self._wait_for_ends(list(self.tasks.values()), 60.0, "the servers' end")

    def _wait_for_ends(self, tasks: list[subprocess.Popen], timeout: float, what: str) -> None:
        """Waits until tasks have ended with 0."""

        def ended() -> bool:
            self.check(ended=True)
            return all(task.poll() == 0 for task in tasks)

        wait_until(ended, what, timeout)
        self.check(ended=True)


def held_by(pid: int) -> float:
    """Returns the MB of memory that a process holds, without what the kernel may take back."""
    fields = dict.fromkeys(("Rss", "LazyFree"), 0)
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in fields:
            fields[name] = int(value.split()[0])
    return (fields["Rss"] - fields["LazyFree"]) / 1024


class MemoryWatch:
    """Samples the memory of a job's tasks while it is open.

    Attributes:
      samples: by task, in MB.
    """

    def __init__(self, job: AttackedJob, period: float = 0.5) -> None:
        self.samples: dict[str, list[float]] = {name: [] for name in job.tasks}
        self._job = job
        self._period = period
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory watch", daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ends.set()
        self._thread.join()

    def latest(self) -> dict[str, float]:
        """Returns the last sample of each task."""
        return {name: held[-1] for name, held in self.samples.items()}

    def _watch(self) -> None:
        while not self._ends.wait(self._period):
            for name, task in self._job.tasks.items():
                # It may have ended.
                with contextlib.suppress(OSError):
                    if (held := held_by(task.pid)) > 0:
                        self.samples[name].append(held)
