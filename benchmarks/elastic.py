"""Elastic training: the cost of a killed, a leaving and a joining worker, and of elasticity itself.

    python benchmarks/elastic.py [--parts recovery,restart,torchrun,steady,table,network]
                                 [--kills 20] [--leaves 5] [--restarts 3] [--workers 4]
                                 [--width 1024] [--pairs 3] [--rounds 3] [--steps 10] [--scale 1]
                                 [--network_pairs 2] [--gigabits 1]
                                 [--torch_python .venv-torch/bin/python] [--json FILE]

Recovery: four workers on one machine train a dense network of 2.1 M parameters with Adam, 64
examples a worker.

    recovery  a worker is killed (SIGKILL) at a random moment; seconds until all others have
              completed a step without it. Each fourth time the victim is rank 0. Of them
              "noticed": until all others have noticed, and "formed": until they are connected
    leave     a worker is told to leave (SIGTERM): seconds that the others lose, from the last step
              before the signal to the end of the first step without it, compared with as many
              undisturbed steps, also as a number of such steps
    join      the worker is started again: seconds from "ready", when it has traced and announces
              itself, to the end of its first step

All losses are verified: they are equal on all workers, no step is left out, and the first ones
equal the losses of one process of plain Keras. Beside it, the same kill in jobs that restart all
workers from a checkpoint of every tenth step: seconds until all workers have completed a step that
no worker had completed before.

    restart   `tfdist run --workers 4 --restarts N` with `keras.callbacks.BackupAndRestore`
    torchrun  `torchrun --nnodes 1 --nproc-per-node 4 --max-restarts N`, PyTorch's
              DistributedDataParallel over Gloo, the same network. The workers of PyTorch 2.13 find
              the addresses of the killed ones in the agent's store, and fail or hang; so each start
              has a store of its own (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1)

Steady state: steps of the models of training_step.py in two workers, elastic and not. A pair of
jobs is started, verified to reach the same weights, and timed in turns; then comes the next pair.
A round is a `fit` and counts as the median of its steps, of the slower worker. The table shows the
median of the ratios of rounds side by side, and its 95 % interval by bootstrap over the pairs. The
part "table" is the same of a model with an embedding table on a parameter server, of whose 100,000
rows each example uses 26, with Adagrad; the rows are verified, too. The part "network" has the
workers in two network namespaces with 1 Gbit/s links, which needs root.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import random
import secrets
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from absl import app, flags
from baselines import elastic_fit, namespaces, programs
from baselines.elastic_jobs import ElasticJob, LaunchedJob, ends_of_logs
from baselines.elastic_workers import TABLE, PairServer, PairWorker, TableWorker
from baselines.fit_workers import SKIPPED
from baselines.processes import Remote, call
from baselines.step_reports import Inbox, Report
from reporting import elastic_report, results

from tfdist.config.cluster import Cluster
from tfdist.launch.ports import free_ports

PARTS = ("recovery", "restart", "torchrun", "steady", "table", "network")
WANTED = flags.DEFINE_list("parts", list(PARTS), f"of {', '.join(PARTS)}")
WORKERS = flags.DEFINE_integer("workers", 4, "of the jobs with faults", lower_bound=2)
WIDTH = flags.DEFINE_integer("width", 1024, "of their network's hidden layers", lower_bound=1)
KILLS = flags.DEFINE_integer("kills", 20, "of workers of the elastic job", lower_bound=1)
LEAVES = flags.DEFINE_integer("leaves", 5, "of workers of the elastic job", lower_bound=0)
RESTARTS = flags.DEFINE_integer("restarts", 3, "kills in the jobs that restart", lower_bound=1)
PAIRS = flags.DEFINE_integer("pairs", 3, "of an elastic job and another one", lower_bound=1)
NETWORK_PAIRS = flags.DEFINE_integer("network_pairs", 2, "between hosts", lower_bound=1)
ROUNDS = flags.DEFINE_integer("rounds", 3, "counted rounds of each pair", lower_bound=1)
STEPS = flags.DEFINE_integer("steps", 10, "of a round", lower_bound=SKIPPED + 2)
SCALE = flags.DEFINE_float("scale", 1, "of the widths in the steady state", lower_bound=0.01)
GIGABITS = flags.DEFINE_float("gigabits", 1, "per second, between hosts", lower_bound=0.01)
TORCH = flags.DEFINE_string("torch_python", ".venv-torch/bin/python", "Python with PyTorch")
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

SEED = 1
CALM = 10  # undisturbed steps before each fault
VERIFIED_LOSSES = 100  # compared with one process
LOSS_TOLERANCE = 1e-3  # relative
VERIFIED_STEPS = 5
TOLERANCE = 1e-2  # relative, of a variable's change, as in training_step.py
BATCH = 64  # of each worker in the steady state
RESAMPLES = 10_000
PORT = 7100  # no other process uses the namespaces
GOALS = {"recovery": 1.0, "recovery, maximum": 3.0, "leave": 2.0, "join": 2.0, "steady": 1.03}

# Of launchers and their workers.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
# A job that a fault hits.
Job = ElasticJob | LaunchedJob


@contextlib.contextmanager
def faults() -> Iterator[tuple[Inbox, Path]]:
    """An inbox and a folder of logs, whose last lines a failure shows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with contextlib.closing(Inbox(folder / "inbox")) as inbox:
            try:
                yield inbox, folder
            except Exception:
                print(ends_of_logs(folder), file=sys.stderr)
                raise


def wait_for_calm(job: Job, count: int = CALM) -> float:
    """Waits for `count` undisturbed steps of all workers, then for a moment of the next one.

    Returns:
      The median seconds of a step.
    """
    inbox, workers = job.inbox, job.workers
    least = max((report.step for report in inbox.latest.values()), default=0) + count

    def is_calm() -> bool:
        latest = inbox.latest.values()
        return len(latest) == workers and all(
            report.size == workers and report.step >= least for report in latest
        )

    job.wait(f"{count} steps of {workers} workers", is_calm)
    ends = [report.at for report in steps_of(inbox, 0)][-CALM:]
    step = statistics.median(after - before for before, after in itertools.pairwise(ends))
    time.sleep(random.random() * step)  # no synchronisation: a fault may come at any time
    return step


def steps_of(inbox: Inbox, worker: int, since: float = 0.0) -> list[Report]:
    """The reports of a worker's steps that ended later than `since`, the earliest first."""
    return [
        report
        for report in list(inbox.reports)
        if report.what == "step" and report.worker == worker and report.at > since
    ]


def lose(job: ElasticJob, victim: int, number: signal.Signals) -> tuple[float, dict[int, Report]]:
    """Signals a worker; waits until each of the others has made a step without it.

    Returns:
      The time of the signal, and the first such step of each of the others.
    """
    inbox, left = job.inbox, job.workers - 1
    others = [worker for worker in range(job.workers) if worker != victim]
    began = time.monotonic()
    job.signal(victim, number)

    def have_gone_on() -> bool:
        return all(inbox.latest[worker].size == left for worker in others)

    job.wait(f"steps without worker {victim}, {number.name}", have_gone_on)
    return began, {
        worker: next(step for step in steps_of(inbox, worker, began) if step.size == left)
        for worker in others
    }


def kill(job: ElasticJob, victim: int) -> dict[str, Any]:
    """Kills a worker; returns the seconds of the recovery."""
    rank = job.inbox.latest[victim].rank
    began, first = lose(job, victim, signal.SIGKILL)
    ended = max(step.at for step in first.values())
    during = [r for r in list(job.inbox.reports) if began < r.at < ended and r.worker != victim]
    noticed = {r.worker: r.at for r in reversed(during) if r.what == "forming"}
    formed = {r.worker: r.at for r in during if r.what == "formed"}
    return {
        "rank": rank,
        "seconds": ended - began,
        "noticed": max(noticed.values()) - began,
        "formed": max(formed.values()) - began,
    }


def leave(job: ElasticJob, victim: int, step: float) -> dict[str, Any]:
    """Tells a worker to leave; returns what the others lose, with their usual `step` in seconds."""
    rank = job.inbox.latest[victim].rank
    began, first = lose(job, victim, signal.SIGTERM)
    lost = []
    for worker, end in first.items():
        last = max(r.at for r in steps_of(job.inbox, worker) if r.at <= began)
        count = sum(last < r.at <= end.at for r in steps_of(job.inbox, worker))
        lost.append(end.at - last - count * step)
    if (code := job.wait_for_end(victim)) != 128 + signal.SIGTERM:
        raise AssertionError(f"worker {victim} was to leave with code 143, and did with {code}")
    return {"rank": rank, "seconds": max(lost), "steps": max(lost) / step}


def come_back(job: ElasticJob, worker: int) -> dict[str, Any]:
    """Starts a worker again; returns its seconds until it is ready, and from then to its step."""
    inbox, began = job.inbox, time.monotonic()
    job.start(worker)

    def is_in() -> bool:
        latest = inbox.latest[worker]
        return latest.at > began and latest.size == job.workers

    job.wait(f"worker {worker}, started again", is_in)
    ready = next(
        r.at
        for r in list(inbox.reports)
        if r.worker == worker and r.at > began and r.what == "forming"
    )
    return {"ready": ready - began, "seconds": steps_of(inbox, worker, began)[0].at - ready}


def measure_recovery() -> dict[str, Any]:
    """Kills, leaves and joins in one elastic job, which is verified at the end."""
    expected = reference_losses()
    kills, leaves, joins, steps = [], [], [], []
    with faults() as (inbox, folder), contextlib.ExitStack() as stack:
        job = ElasticJob(inbox, folder, WORKERS.value, WIDTH.value)
        stack.callback(job.stop)
        for worker in range(job.workers):
            job.start(worker)
        for i in range(KILLS.value + LEAVES.value):
            steps.append(wait_for_calm(job))
            rank = 0 if i % 4 == 0 else random.randrange(job.workers)
            victim = next(w for w, report in inbox.latest.items() if report.rank == rank)
            if i < KILLS.value:
                kills.append(kill(job, victim))
            else:
                leaves.append(leave(job, victim, steps[-1]))
            joins.append(come_back(job, victim))
        wait_for_calm(job)
        verify_losses(inbox, expected)
    return {"step": statistics.median(steps), "kills": kills, "leaves": leaves, "joins": joins}


def reference_losses() -> list[float]:
    with contextlib.ExitStack() as stack:
        remote = Remote(elastic_fit.Reference)
        stack.callback(remote.stop)
        return remote.call("losses", WIDTH.value, WORKERS.value, VERIFIED_LOSSES)


def verify_losses(inbox: Inbox, expected: list[float]) -> None:
    """Raises unless all workers have made all steps, with the same losses as one process."""
    steps = [report for report in inbox.reports if report.what == "step"]
    losses: dict[int, float] = dict(enumerate(expected, 1))
    first = {report.process: report.step for report in reversed(steps)}
    count = dict.fromkeys(first, 0)
    for report in steps:
        due = first[report.process] + count[report.process]
        count[report.process] += 1
        if report.step != due:
            raise AssertionError(f"worker {report.worker}: expected step {due}, found {report}")
        loss = losses.setdefault(report.step, report.loss)
        if abs(report.loss - loss) > LOSS_TOLERANCE * abs(loss):
            raise AssertionError(f"step {report.step}: expected a loss of {loss}, found {report}")


def measure_restarts(command: Callable[[Path], list[str]]) -> dict[str, Any]:
    """Kills in a job whose launcher starts all workers again.

    Args:
      command: the launcher's, of a folder that has the inbox and is for checkpoints.
    """
    kills = []
    with faults() as (inbox, folder), contextlib.ExitStack() as stack:
        log = folder / "launcher.log"
        job = LaunchedJob(inbox, WORKERS.value, command(folder), log, ENVIRONMENT)
        stack.callback(job.stop)
        steps = []
        for i in range(RESTARTS.value):
            # The first checkpoint exists by then; the distance to the last one is random.
            count = 2 * elastic_fit.SAVED_EVERY + random.randrange(elastic_fit.SAVED_EVERY)
            steps.append(wait_for_calm(job, count))
            kills.append(restart(job, 0 if i % 4 == 0 else random.randrange(WORKERS.value)))
    return {"step": statistics.median(steps), "kills": kills}


def restart(job: LaunchedJob, victim: int) -> dict[str, Any]:
    """Kills a worker; returns the seconds until all workers have made a step that is new."""
    inbox, workers = job.inbox, range(job.workers)
    before = {report.process for report in inbox.latest.values()}
    began = time.monotonic()
    job.signal(victim, signal.SIGKILL)

    def is_restarted() -> bool:
        return all(inbox.latest[worker].process not in before for worker in workers)

    job.wait(f"steps after a restart of all, of worker {victim}", is_restarted)
    done = max(r.step for r in list(inbox.reports) if r.what == "step" and r.process in before)

    def is_new() -> bool:
        return all(inbox.latest[worker].step > done for worker in workers)

    job.wait(f"steps after step {done}", is_new)
    again = [[s for s in steps_of(inbox, w, began) if s.process not in before] for w in workers]
    first = {steps[0].step for steps in again}
    if len(first) != 1 or not 1 < max(first) <= done + 1:
        raise AssertionError(
            f"expected to continue after a checkpoint before {done + 1}, not {first}"
        )
    ended = max(next(step.at for step in steps if step.step > done) for steps in again)
    return {"rank": victim, "seconds": ended - began, "repeated": done + 1 - max(first)}


def tfdist_run(folder: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "tfdist", "run", "--workers", str(WORKERS.value)),
        *("--restarts", str(RESTARTS.value), elastic_fit.__file__),
        *(str(folder / "inbox"), str(WIDTH.value), str(WORKERS.value), str(folder / "backup")),
    ]


def torchrun(folder: Path) -> list[str]:
    script = Path(elastic_fit.__file__).with_name("ddp_fit.py")
    return [
        *(TORCH.value, "-m", "torch.distributed.run", "--standalone", "--nnodes=1"),
        *(f"--nproc-per-node={WORKERS.value}", f"--max-restarts={RESTARTS.value}", str(script)),
        *(str(folder / "inbox"), str(WIDTH.value), str(folder / "checkpoint")),
    ]


def start_pair(
    stack: contextlib.ExitStack, network: namespaces.Network | None, servers: int
) -> dict[str, list[Remote]]:
    """Starts two workers of an elastic job, and two of another one; with `servers`, for tables."""
    pair: dict[str, list[Remote]] = {}
    secret = secrets.token_hex(32)
    for i, (name, elastic) in enumerate((("elastic", "1:2:2"), ("other", ""))):
        if network is None:
            addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(2))
        else:
            addresses = tuple(f"{host}:{PORT + i}" for host in network.addresses)
        serving = tuple(f"127.0.0.1:{port}" for port in free_ports(servers))
        cluster = Cluster(workers=addresses, ps=serving)
        for index in range(servers):
            task = dataclasses.replace(cluster, task_type="ps", task_index=index)
            stack.callback(Remote(PairServer, task.tf_config(), elastic, secret).stop)
        pair[name] = []
        for rank in range(2):
            tf_config = dataclasses.replace(cluster, task_index=rank).tf_config()
            worker = TableWorker if servers else PairWorker
            make: tuple = (worker, rank, SCALE.value, BATCH, tf_config, elastic, secret)
            if network is not None:
                make = (namespaces.inside, network.hosts[rank], *make)
            pair[name].append(Remote(*make))
            stack.callback(pair[name][-1].stop)
    return pair


def measure_pair(pair: dict[str, list[Remote]], model: str) -> list[dict[str, float]]:
    """Seconds of a step of each job, in each round; verifies the weights first."""
    for job in pair.values():
        call(job, "fit", model, VERIFIED_STEPS)
    expected = pair["other"][0].call("progress", model)
    for name, job in pair.items():
        for rank, progress in enumerate(call(job, "progress", model)):
            for i, (a, b) in enumerate(zip(progress, expected, strict=True)):
                if abs(a - b) > TOLERANCE * abs(b):
                    raise AssertionError(
                        f"{name}, {model}, worker {rank}: variable {i} went {a}, expected {b}"
                    )
    rounds = []
    for i in range(ROUNDS.value):
        names = list(pair) if i % 2 == 0 else list(reversed(pair))
        rounds.append({name: max(call(pair[name], "fit", model, STEPS.value)) for name in names})
    return rounds


def measure_steady(
    models: tuple[str, ...],
    pairs: int,
    network: namespaces.Network | None = None,
    servers: int = 0,
) -> list[dict[str, Any]]:
    """A row for each model."""
    rounds: dict[str, list[list[dict[str, float]]]] = {model: [] for model in models}
    for _ in range(pairs):
        with contextlib.ExitStack() as stack:
            pair = start_pair(stack, network, servers)
            for model in models:
                rounds[model].append(measure_pair(pair, model))
    rows = []
    for model, of_pairs in rounds.items():
        ratios = [[found["elastic"] / found["other"] for found in one] for one in of_pairs]
        median, low, high = bootstrap(ratios)
        seconds = {
            name: statistics.median(found[name] for one in of_pairs for found in one)
            for name in ("elastic", "other")
        }
        row = {"model": model, **seconds, "ratio": median, "low": low, "high": high}
        rows.append({**row, "ratios": ratios, "gigabits": network and GIGABITS.value})
    return rows


def bootstrap(ratios: list[list[float]]) -> tuple[float, float, float]:
    """The median of all ratios, and its 95 % interval from resampled pairs and rounds."""
    medians = []
    for _ in range(RESAMPLES):
        pairs = random.choices(ratios, k=len(ratios))
        drawn = [random.choices(rounds, k=len(rounds)) for rounds in pairs]
        medians.append(statistics.median(itertools.chain(*drawn)))
    medians.sort()
    low, high = (medians[round(share * (RESAMPLES - 1))] for share in (0.025, 0.975))
    return statistics.median(itertools.chain(*ratios)), low, high


def measure() -> dict[str, Any]:
    figures: dict[str, Any] = {"workers": WORKERS.value, "width": WIDTH.value, "goals": GOALS}
    if "recovery" in WANTED.value:
        figures["recovery"] = measure_recovery()
    if "restart" in WANTED.value:
        figures["restart"] = measure_restarts(tfdist_run)
    if "torchrun" in WANTED.value:
        figures["no_torch"] = programs.why_no_torch(TORCH.value)
        if figures["no_torch"] is None:
            figures["torchrun"] = measure_restarts(torchrun)
    figures["steady"] = []
    if "steady" in WANTED.value:
        figures["steady"] += measure_steady(("dense, SGD", "cnn, SGD", "dense, AdamW"), PAIRS.value)
    if "table" in WANTED.value:
        figures["steady"] += measure_steady((TABLE,), PAIRS.value, servers=1)
    if "network" in WANTED.value:
        try:
            network = namespaces.Network(2, GIGABITS.value)
        except namespaces.NotPermitted as error:
            figures["no_network"] = str(error)
        else:
            with contextlib.closing(network):
                figures["steady"] += measure_steady(("dense, AdamW",), NETWORK_PAIRS.value, network)
    return figures


def main(argv: list[str]) -> None:
    del argv
    if unknown := set(WANTED.value) - set(PARTS):
        raise app.UsageError(f"--parts: expected some of {', '.join(PARTS)}, received {unknown}")
    # So that processes and namespaces end with this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    random.seed(SEED)
    began = time.perf_counter()
    figures = measure()
    figures["took"] = time.perf_counter() - began
    elastic_report.show(figures)
    results.save(JSON.value, figures, lambda file: elastic_report.draw(file, figures))


if __name__ == "__main__":
    # For the processes, which are forked from a process that has imported TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
