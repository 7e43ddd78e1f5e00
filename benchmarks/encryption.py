"""The price of encryption: the same jobs in the clear and within TLS.

    sudo python benchmarks/encryption.py [--hosts 4] [--gigabits 1] [--megabytes 8 --megabytes 64]
                                         [--model_megabytes 25] [--rounds 7] [--tasks 100]
                                         [--parts link,loopback,tasks] [--json FILE]

    link        each task has a host of its own, a network namespace whose link is limited in both
                directions (baselines/namespaces.py)
    loopback    all tasks on this machine, two in a collective
    tasks       one job of `--tasks` workers, which join it at the same time

On both networks all ranks reduce a float32 tensor, and two workers train 100 variables with SGD on
a parameter server, as in parameter_server.py. Tasks share no memory (`TFDIST_PEER_MEMORY=0`), all
have a secret, and one job of each pair has `TFDIST_TLS=secret`. Results are verified first; the two
jobs are timed in turn, round by round.

The table has medians over the rounds: of the time of an operation, and of the time that all tasks
together have used processors for it. "slower" is the median ratio of the times of a round, with
its quartiles: other load on the machine is in both. The goals are 3 % on the link, and for each of
the tasks 1 s of a processor.

Needs root and the commands ip and tc for "link".
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags
from baselines import namespaces
from baselines.all_reducers import TfdistRank
from baselines.joining_tasks import JoiningTask
from baselines.parameter_servers import Model, TfdistServer, TfdistWorker
from baselines.processes import Remote, call, with_variables
from reporting import charts, results

from tfdist.config.cluster import Cluster
from tfdist.launch.ports import free_ports

PARTS = ("link", "loopback", "tasks")
CHOSEN = flags.DEFINE_list("parts", list(PARTS), f"any of: {', '.join(PARTS)}")
HOSTS = flags.DEFINE_integer("hosts", 4, "of the link's collectives", lower_bound=2)
GIGABITS = flags.DEFINE_float("gigabits", 1, "per second, of a link", lower_bound=0.01)
MEGABYTES = flags.DEFINE_multi_float("megabytes", [8, 64], "of the tensors, MB = 2^20")
MODEL = flags.DEFINE_float("model_megabytes", 25, "of all variables together", lower_bound=0.01)
ROUNDS = flags.DEFINE_integer("rounds", 7, "counted rounds", lower_bound=3)
TASKS = flags.DEFINE_integer("tasks", 100, "that join one job", lower_bound=2)
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

MB = 1 << 20
VARIABLES = 100
WORKERS = 2
STEPS = 4  # of each worker in a round
EXCHANGES = 2  # pulls and pushes of all variables in a round
# From the callers of a job to the seconds of an operation, and how many there were.
Measure = Callable[[list[Remote]], tuple[float, int]]
CLEAR, ENCRYPTED = JOBS = ("in the clear", "within TLS")
FIRST_PORT = {CLEAR: 7100, ENCRYPTED: 7300}  # no other process uses the namespaces


def variables_of(job: str) -> dict[str, str]:
    """Variables of a job's tasks."""
    same = {"TFDIST_SECRET": secrets.token_hex(16), "TFDIST_PEER_MEMORY": "0"}
    return same | ({"TFDIST_TLS": "secret"} if job == ENCRYPTED else {})


@dataclasses.dataclass(frozen=True)
class Place:
    """Where the tasks of jobs run: on the hosts of a network, or on this machine."""

    name: str
    network: namespaces.Network | None = None

    def addresses(self, job: str, count: int) -> tuple[str, ...]:
        if self.network is None:
            return tuple(f"127.0.0.1:{port}" for port in free_ports(count))
        hosts = self.network.addresses[:count]
        return tuple(f"{host}:{FIRST_PORT[job]}" for host in hosts)

    @contextlib.contextmanager
    def started(self, job: str, made: Sequence[tuple]) -> Iterator[list[Remote]]:
        """Objects, each in its own process and on its own host, if there are hosts."""
        variables = variables_of(job)
        with contextlib.ExitStack() as stack:
            tasks = []
            for index, what in enumerate(made):
                inside = (namespaces.inside, self.network.hosts[index]) if self.network else ()
                tasks.append(Remote(*inside, with_variables, variables, *what))
                stack.callback(tasks[-1].stop)
            yield tasks


@dataclasses.dataclass(frozen=True)
class Job:
    """The tasks of a job, of which the callers receive commands."""

    tasks: list[Remote]
    callers: list[Remote]

    def timed(self, measure: Measure) -> tuple[float, float]:
        """Seconds of an operation, and processor seconds that all tasks use for it."""
        before = sum(task.processor_seconds() for task in self.tasks)
        seconds, operations = measure(self.callers)
        used = sum(task.processor_seconds() for task in self.tasks) - before
        return seconds, used / operations


def compare(jobs: dict[str, Job], measure: Measure) -> dict[str, Any]:
    """Times the jobs in turn; returns medians, and the quartiles of the ratio less 1."""
    rounds = [
        {name: job.timed(measure) for name, job in jobs.items()} for _ in range(ROUNDS.value + 1)
    ][1:]
    ratios = [one[ENCRYPTED][0] / one[CLEAR][0] for one in rounds]

    def medians(index: int) -> dict[str, float]:
        return {job: statistics.median(one[job][index] for one in rounds) for job in JOBS}

    return {
        "seconds": medians(0),
        "processor": medians(1),
        "slower": [quartile - 1 for quartile in statistics.quantiles(ratios)],
    }


def reduce(callers: list[Remote], size: int) -> tuple[float, int]:
    """All-reduces in a row, 64 MB in all, after as many that wait for the others."""
    in_a_row = max(1, round(64 * MB / size))
    return max(call(callers, "run", 1, size, 1, "exact", in_a_row)), 2 * in_a_row


def step(callers: list[Remote]) -> tuple[float, int]:
    """Steps of all workers at the same time."""
    began = time.perf_counter()
    call(callers, "steps", STEPS)
    return (time.perf_counter() - began) / STEPS, STEPS


def exchange(callers: list[Remote]) -> tuple[float, int]:
    """Pushes, each with a pull of the changed values."""
    seconds = callers[0].call("exchange", 0, EXCHANGES)
    return seconds["push"] + seconds["pull"], EXCHANGES


def reductions(place: Place, ranks: int) -> list[dict[str, Any]]:
    """Rows of collectives."""
    with contextlib.ExitStack() as stack:
        jobs = {}
        for name in JOBS:
            addresses = place.addresses(name, ranks)
            made = [
                (TfdistRank, rank, ranks, Cluster(workers=addresses, task_index=rank).tf_config())
                for rank in range(ranks)
            ]
            tasks = stack.enter_context(place.started(name, made))
            jobs[name] = Job(tasks, tasks)
        rows = []
        for megabytes in MEGABYTES.value:
            size = round(megabytes * MB)
            for job in jobs.values():
                call(job.callers, "verify", 1, size)
            what = f"all-reduce of {megabytes:g} MB, {ranks} ranks"
            figures = compare(jobs, functools.partial(reduce, size=size))
            rows.append({"place": place.name, "what": what, **figures})
        return rows


def servers(place: Place) -> list[dict[str, Any]]:
    """Rows of a parameter server."""
    model = Model(VARIABLES, max(25, int(MODEL.value * MB) // 4 // VARIABLES))
    with contextlib.ExitStack() as stack:
        jobs = {}
        for name in JOBS:
            chief, other, server = place.addresses(name, WORKERS + 1)
            roles = {"chief": (chief,), "workers": (other,), "ps": (server,)}
            chief, other, server = (
                Cluster(**roles, task_type=kind).tf_config() for kind in ("chief", "worker", "ps")
            )
            made = [(TfdistWorker, config, (model,)) for config in (chief, other)]
            tasks = stack.enter_context(place.started(name, [*made, (TfdistServer, server)]))
            jobs[name] = Job(tasks, tasks[:WORKERS])
        for job in jobs.values():
            for caller in job.callers:
                caller.call("steps", 2)
            job.callers[0].call("exchange", 0, 1)
            call(job.callers, "verify", 0, 2 * WORKERS, 1)
        size = f"{model.bytes / MB:.3g} MB"
        measured = {f"step of {WORKERS} workers": step, "push and pull": exchange}
        return [
            {"place": place.name, "what": f"{what}, {size}", **compare(jobs, measure)}
            for what, measure in measured.items()
        ]


def joining() -> dict[str, Any]:
    """The cost of joining a large job for its tasks: each connects with each."""
    count, place = TASKS.value, Place("loopback")
    found: dict[str, Any] = {"tasks": count, "seconds": {}, "processor": {}, "most": {}}
    for name in JOBS:
        addresses = place.addresses(name, count)
        made = [
            (JoiningTask, Cluster(workers=addresses, task_index=rank).tf_config())
            for rank in range(count)
        ]
        with place.started(name, made) as tasks:
            call(tasks, "ready")
            began = time.perf_counter()
            used = call(tasks, "join")
            found["seconds"][name] = time.perf_counter() - began
        found["processor"][name], found["most"][name] = sum(used), max(used)
    return found


def show(rows: list[dict[str, Any]], joined: dict[str, Any] | None) -> None:
    if rows:
        print(f"\n{os.cpu_count()} processors, {ROUNDS.value} rounds; ms, and ms of processors\n")
        print(f"{'':50}" + "".join(f"{job:>19}" for job in JOBS) + f"{'slower':>10}")
    for row in rows:
        pairs = "".join(
            f"{1e3 * row['seconds'][job]:10.1f} {1e3 * row['processor'][job]:8.0f}" for job in JOBS
        )
        low, median, high = row["slower"]
        print(f"{row['place']:10} {row['what']:39}{pairs}{median:+10.1%} [{low:+.1%}, {high:+.1%}]")
    if joined:
        print(f"\n{joined['tasks']} tasks join one job")
        for job in JOBS:
            mean = joined["processor"][job] / joined["tasks"]
            print(
                f"  {job:12} {joined['seconds'][job]:7.2f} s; of processors {mean:6.3f} s a task, "
                f"at most {joined['most'][job]:.3f} s, {joined['processor'][job]:.2f} s together"
            )


def draw(file: Path, rows: list[dict[str, Any]]) -> None:
    groups = {
        f"{row['what']},\n{row['place']}": {job: 1e3 * row["seconds"][job] for job in JOBS}
        for row in rows
    }
    if groups:
        charts.bars(file, "The price of encryption", "milliseconds (median)", groups, log=True)


def main(argv: list[str]) -> None:
    del argv
    rows = []
    if "link" in CHOSEN.value:
        with namespaces.network(max(HOSTS.value, WORKERS + 1), GIGABITS.value) as network:
            place = Place(f"{GIGABITS.value:g} Gbit/s", network)
            rows += reductions(place, HOSTS.value) + servers(place)
    if "loopback" in CHOSEN.value:
        place = Place("loopback")
        rows += reductions(place, 2) + servers(place)
    joined = joining() if "tasks" in CHOSEN.value else None
    show(rows, joined)
    results.save(JSON.value, {"rows": rows, "joining": joined}, lambda file: draw(file, rows))


if __name__ == "__main__":
    # For the processes, which are forked from a process that has imported TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
