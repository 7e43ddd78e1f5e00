"""Jobs whose workers benchmarks/elastic.py kills and stops."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from baselines import elastic_fit
from baselines.processes import PROCESSES
from baselines.step_reports import Inbox

from tfdist.config.cluster import Cluster
from tfdist.launch.ports import free_ports

PATIENCE = 60.0  # seconds for the slowest part: all workers import TensorFlow, and trace
LOG_LINES = 60  # of each log in an error


class ElasticJob:
    """Workers of an elastic job, each a process of its own.

    Args:
      inbox: receives their reports.
      folder: of their logs.
      workers: at the start.
      width: of the model.
    """

    def __init__(self, inbox: Inbox, folder: Path, workers: int, width: int) -> None:
        self.inbox, self.workers = inbox, workers
        self._folder, self._width = folder, width
        addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(workers))
        self._clusters = [Cluster(workers=addresses, task_index=i) for i in range(workers)]
        self._processes: dict[int, PROCESSES.Process] = {}
        self._running: set[int] = set()

    def start(self, worker: int) -> None:
        """Starts a worker, also after it was killed or has left."""
        job = {
            "TF_CONFIG": self._clusters[worker].tf_config(),
            "TFDIST_ELASTIC": f"1:{self.workers}:{self.workers}",
        }
        log = str(self._folder / f"worker-{worker}.log")
        arguments = (self.inbox.path, worker, self._width, self.workers, job, log)
        self._processes[worker] = PROCESSES.Process(target=elastic_fit.train, args=arguments)
        self._processes[worker].start()
        self._running.add(worker)

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Waits until a condition on the reports holds; raises if a worker fails meanwhile."""
        self.inbox.wait(what, condition, PATIENCE, self._check)

    def signal(self, worker: int, number: signal.Signals) -> None:
        """Sends a signal to a worker, which may end from then on."""
        self._check()
        self._running.discard(worker)
        os.kill(self._processes[worker].pid, number)

    def _check(self) -> None:
        for worker in self._running:
            code = self._processes[worker].exitcode
            if code is not None:
                raise RuntimeError(f"worker {worker} has ended, with exit code {code}")

    def wait_for_end(self, worker: int) -> int:
        """Returns the exit code of a worker that was told to end."""
        self._processes[worker].join(PATIENCE)
        code = self._processes[worker].exitcode
        if code is None:
            raise TimeoutError(f"worker {worker} has not ended within {PATIENCE:g} s")
        return code

    def stop(self) -> None:
        """Ends all workers."""
        for process in self._processes.values():
            process.kill()
            process.join()


class LaunchedJob:
    """Workers that a launcher starts, and starts again after a failure.

    Args:
      inbox: receives their reports.
      workers: their number.
      command: the launcher's.
      log: the file that receives its output.
      environment: variables besides this process's.
    """

    def __init__(
        self,
        inbox: Inbox,
        workers: int,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.inbox, self.workers = inbox, workers
        with open(log, "ab") as file:
            self._process = subprocess.Popen(
                command, stdout=file, stderr=file, env=os.environ | dict(environment)
            )

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Waits until a condition on the reports holds; raises if the launcher ends meanwhile."""
        self.inbox.wait(what, condition, PATIENCE, self._check)

    def _check(self) -> None:
        if self._process.poll() is not None:
            raise RuntimeError(f"the launcher has ended, with code {self._process.returncode}")

    def signal(self, worker: int, number: signal.Signals) -> None:
        """Sends a signal to a worker."""
        self._check()
        os.kill(self.inbox.latest[worker].process, number)

    def stop(self) -> None:
        """Ends the launcher, which ends its workers; at the latest the inbox's end ends them."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)
        self._process.kill()
        self._process.wait()


def ends_of_logs(folder: Path) -> str:
    """The last lines of all logs, for the message of a failure."""
    return "\n".join(
        "\n".join([f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-LOG_LINES:]])
        for log in sorted(folder.glob("*.log"))
    )
