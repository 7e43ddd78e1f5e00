"""A whole script under `tfdist run --workers`, with faults at chosen places or moments.

    alone = run_alone("two_stage", folder)
    found = run("two_stage", Course("1:4:2", (Fault("kill", 1, "predict"),)), folder)
    broken = differences(alone, found)

Each worker is `under_faults.py` with the script. Processes are signalled by their descriptors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import tfdist

SUPPORT = Path(__file__).resolve().parents[1]
SCRIPTS = SUPPORT / "scripts"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))
PACKAGE = str(Path(tfdist.__file__).parents[1])
# Seconds for a script whose workers are killed and started again.
DEADLINE = float(os.environ.get("SCRIPT_DEADLINE", "240"))
_FAILURE = re.compile(r"tfdist run: worker (\d+) (?:failed|has ended): ([^;]*)")
_TOO_LATE = re.compile(r"tfdist run: worker (\d+) came too late")
_LEFT = re.compile(r"tfdist run: worker (\d+) has left")
_ALL_LOST = "a newcomer: no member of the job has answered"


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
      kind: "kill", "stop" (and continue), "leave" (SIGTERM), or "join", of one more worker.
      worker: its number; of no meaning for "join".
      place: where it comes from inside (see under_faults.py), or "" for one from outside.
      count: how often the process has reached the place by then, from 1.
      life: the number of the worker's process that suffers it, from 0.
      step: of a fault from outside: it comes when a worker has done as many steps.
      delay: seconds from then to the fault.
      seconds: how long a stop lasts.
    """

    kind: str
    worker: int = 0
    place: str = ""
    count: int = 1
    life: int = 0
    step: int = 1
    delay: float = 0.0
    seconds: float = 2.0

    def __str__(self) -> str:
        if self.place:
            where = f"at {self.place!r} number {self.count}"
        else:
            where = f"{self.delay:.2f} s after step {self.step}"
        what = "join" if self.kind == "join" else f"{self.kind} worker {self.worker}"
        if self.life:
            what += f" in its life {self.life}"
        if self.kind == "stop":
            what += f" for {self.seconds:.1f} s"
        return f"{what} {where}"


@dataclasses.dataclass(frozen=True)
class Course:
    """The faults of a run of a script.

    Args:
      workers: "MIN:MAX:START", as for `tfdist run`.
      faults: faults from outside come in this order.
      pause: seconds that each worker waits after each step.
      is_quick: whether silent processes are given up after 3 seconds.
    """

    workers: str
    faults: tuple[Fault, ...] = ()
    pause: float = 0.0
    is_quick: bool = False

    def __str__(self) -> str:
        return f"{self.workers}: " + ("; ".join(map(str, self.faults)) or "no fault")


@dataclasses.dataclass
class Found:
    """The results of a run.

    Attributes:
      folder: with `output`, which is the script's, and what workers have reported.
      seconds: how long it took.
      came: the faults that came.
      broken: promises that were broken, without those about the result.
      excused: workers whose last process need not have come to the end.
      may_begin_again: whether all members may have been lost, after which the job begins again.
    """

    folder: Path
    seconds: float = 0.0
    came: list[Fault] = dataclasses.field(default_factory=list)
    broken: list[str] = dataclasses.field(default_factory=list)
    excused: set[int] = dataclasses.field(default_factory=set)
    may_begin_again: bool = False

    def lives(self) -> dict[int, list[Path]]:
        """The files of places of each worker's processes, in their order."""
        lives: dict[int, list[Path]] = {}
        for path in self.folder.glob("places-*"):
            lives.setdefault(int(path.name.split("-")[1]), []).append(path)
        return {
            worker: sorted(paths, key=lambda path: int(path.name.split("-")[2]))
            for worker, paths in sorted(lives.items())
        }

    def reached(self, path: Path) -> Counter[str]:
        """How often a process has reached each place."""
        lines = [line.split(" ") for line in path.read_text().splitlines()]
        return Counter(" ".join(words[:-2]) for words in lines if words[0] not in ("pid", "FAULT"))

    def last_lines(self, count: int = 12) -> str:
        """The ends of the workers' logs, and what the launcher said."""
        shown = []
        for path in [self.folder / "launcher.log", *sorted(self.folder.glob("logs/*.log"))]:
            with contextlib.suppress(OSError):
                lines = path.read_text(errors="replace").splitlines()
                lines = [line[:300] for line in lines if line.strip()]
                shown += [f"--- {path.name}", *lines[-count:]]
        return "\n".join(shown)


def environment(course: Course, folder: Path) -> dict[str, str]:
    """The environment of a run."""
    of_workers = dataclasses.asdict(course) | {"folder": str(folder)}
    return {
        **{name: value for name, value in os.environ.items() if name != "TF_CONFIG"},
        "PYTHONPATH": os.pathsep.join([PACKAGE, str(SUPPORT.parent)]),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OUTPUT": str(folder / "output"),
        "SCRIPT_COURSE": json.dumps(of_workers),
    }


def run_alone(name: str, folder: Path, python: str = sys.executable) -> Found:
    """Runs a script in one process, without faults.

    Raises:
      subprocess.CalledProcessError: it fails.
    """
    folder.mkdir(parents=True)
    began = time.monotonic()
    with open(folder / "launcher.log", "wb") as log:
        subprocess.run(
            [python, str(Path(__file__).with_name("under_faults.py")), SCRIPTS / f"{name}.py"],
            env=environment(Course("1:1:1"), folder),
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=DEADLINE,
            check=True,
        )
    return Found(folder, time.monotonic() - began)


class _Run:
    """A running launcher, and the faults that are still to come."""

    def __init__(self, course: Course, found: Found, launcher: subprocess.Popen) -> None:
        self._course = course
        self._found = found
        self._launcher = launcher
        self._outside = [fault for fault in course.faults if not fault.place]
        self._inside = [fault for fault in course.faults if fault.place]
        self._due: float | None = None
        # When stopped processes continue.
        self._continue: list[tuple[float, int]] = []
        self._handles: dict[Path, int] = {}
        self._began = time.monotonic()

    def _say(self, what: str) -> None:
        print(f"    {time.monotonic() - self._began:6.1f} s: {what}", flush=True)

    def _handle(self, path: Path) -> int | None:
        """Returns the descriptor of a process that wrote a file of places, if it runs."""
        if path not in self._handles:
            with contextlib.suppress(OSError, IndexError, ValueError):
                pid = int(path.read_text().split()[1])
                handle = os.pidfd_open(pid)
                # Another process may have its number by now; it has not opened this file.
                if any(path.samefile(opened) for opened in Path(f"/proc/{pid}/fd").iterdir()):
                    self._handles[path] = handle
                else:
                    os.close(handle)
        return self._handles.get(path)

    def _signal(self, handle: int, number: signal.Signals) -> bool:
        try:
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        return True

    def _scale(self) -> bool:
        text = (self._found.folder / "launcher.log").read_text(errors="replace")
        changes = re.findall(r"workers: \d+ before, (\d+) now|workers now: (\d+)", text)
        min_workers, max_workers, start = map(int, self._course.workers.split(":"))
        now = int("".join(changes[-1])) if changes else start
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "tfdist",
                "scale",
                str(min(now + 1, max_workers)),
                "--job",
                str(self._found.folder / "job.json"),
            ],
            env=environment(self._course, self._found.folder),
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode == 0

    def _strike(self, fault: Fault) -> None:
        lives = self._found.lives()
        if fault.kind == "join":
            came = self._scale()
        else:
            handle = self._handle(lives[fault.worker][-1]) if fault.worker in lives else None
            kinds = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "leave": signal.SIGTERM}
            came = handle is not None and self._signal(handle, kinds[fault.kind])
            if came and fault.kind == "stop":
                self._continue.append((time.monotonic() + fault.seconds, handle))
        if came:
            self._found.came.append(fault)
        self._say(f"{fault}{'' if came else ': did not come'}")

    def _look(self) -> int:
        """Notes the faults from inside; returns the steps of the process that has done most."""
        steps = 0
        for worker, paths in self._found.lives().items():
            for life, path in enumerate(paths):
                self._handle(path)
                text = path.read_text()
                steps = max(steps, text.count("\nstep "))
                if "\nFAULT" not in text:
                    continue
                for fault in list(self._inside):
                    if (fault.worker, fault.life) == (worker, life):
                        if text.count("\nFAULT") > sum(
                            (other.worker, other.life) == (worker, life) and bool(other.place)
                            for other in self._found.came
                        ):
                            self._inside.remove(fault)
                            self._found.came.append(fault)
                            self._say(str(fault))
                            if fault.kind == "stop":
                                at = time.monotonic() + fault.seconds
                                self._continue.append((at, self._handles[path]))
        return steps

    def _go_on(self, steps: int) -> None:
        now = time.monotonic()
        for at, handle in list(self._continue):
            if now >= at:
                self._continue.remove((at, handle))
                self._signal(handle, signal.SIGCONT)
                self._say("a stopped worker continues")
        if self._outside and self._due is None and steps >= self._outside[0].step:
            self._due = now + self._outside[0].delay
        if self._due is not None and now >= self._due:
            self._due = None
            self._strike(self._outside.pop(0))

    def until_the_end(self) -> int | None:
        """Waits for the launcher; returns its exit code, or None if the deadline was over."""
        while time.monotonic() < self._began + DEADLINE:
            steps = self._look()
            self._go_on(steps)
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._launcher.wait(0.02)
                self._look()
                return code
        for handle in self._handles.values():
            self._signal(handle, signal.SIGCONT)
            self._signal(handle, signal.SIGUSR1)
        time.sleep(2.0)  # for the stacks, which go to the logs
        return None

    def close(self) -> None:
        self._launcher.kill()
        self._launcher.wait()
        for handle in self._handles.values():
            os.close(handle)


def run(name: str, course: Course, folder: Path, python: str = sys.executable) -> Found:
    """Runs a script as an elastic job under a course of faults."""
    folder.mkdir(parents=True)
    found = Found(folder)
    began = time.monotonic()
    command = [
        *(python, "-m", "tfdist", "run", "--workers", course.workers, "--max-restarts", "50"),
        *("--job-file", str(folder / "job.json"), "--log-dir", str(folder / "logs")),
        *(str(Path(__file__).with_name("under_faults.py")), str(SCRIPTS / f"{name}.py")),
    ]
    with open(folder / "launcher.log", "wb") as log:
        launcher = subprocess.Popen(
            command,
            env=environment(course, folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        running = _Run(course, found, launcher)
        try:
            code = running.until_the_end()
        finally:
            running.close()
    found.seconds = time.monotonic() - began
    _judge(found, code, start=int(course.workers.split(":")[2]))
    return found


def _judge(found: Found, code: int | None, start: int) -> None:
    """Finds workers that ended by themselves with an error, and jobs that did not end.

    Args:
      found: the results of the run.
      code: the launcher's exit code; `None` if it has not ended in time.
      start: the number of workers at the beginning.
    """
    if code is None:
        found.broken.append(f"hang: the job has not ended within {DEADLINE:g} s")
    text = (found.folder / "launcher.log").read_text(errors="replace")
    lives = {worker: len(paths) for worker, paths in found.lives().items()}
    struck = Counter(fault.worker for fault in found.came if fault.kind == "kill")
    found.may_begin_again = struck.total() >= start
    leaving = {fault.worker for fault in found.came if fault.kind == "leave"}

    def all_lost(worker: int) -> bool:
        # It had left out calls, and cannot continue alone; all begin again.
        log = found.folder / "logs" / f"worker-{worker}.log"
        return found.may_begin_again and _ALL_LOST in log.read_text()

    for line in text.splitlines():
        if match := _FAILURE.match(line):
            worker = int(match[1])
            if "SIGKILL" in match[2] and struck[worker]:
                struck[worker] -= 1
            elif not ("SIGTERM" in match[2] and worker in leaving or all_lost(worker)):
                found.broken.append(f"died: worker {worker}: {match[2]}")
    for pattern in (_TOO_LATE, _LEFT):
        found.excused |= {int(match[1]) for match in pattern.finditer(text)}
    for fault in found.came:
        # Killed as the last one: others may have finished, and it is not started again.
        is_last = fault.life == lives[fault.worker] - 1 if fault.worker in lives else False
        if fault.kind in ("kill", "leave") and (is_last or not fault.place):
            found.excused.add(fault.worker)
    if (
        code not in (0, None)
        and not found.broken
        and not any(fault.kind in ("kill", "leave") for fault in found.came)
    ):
        found.broken.append(f"died: the launcher's exit code is {code}")


def chosen_scripts(names: Sequence[str]) -> list[str]:
    """Returns the names, or the names of all scripts if there are none."""
    return list(names) or NAMES
