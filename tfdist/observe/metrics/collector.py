"""The metrics of this process's task for Prometheus. Everything is read when it is asked for.

`describe` yields *families*: a metric's name, its help, and its samples. `docs/operate/metrics.md`
has the table of all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Protocol

import tensorflow as tf

from tfdist._version import __version__
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.data.queue.master import TaskMaster
from tfdist.job import process
from tfdist.ops.local.step_counter import counted
from tfdist.ps.stats.rates import Reading

_CAUSES = {"room": "evicted_for_room", "age": "evicted_by_age", "norm": "evicted_by_norm"}
# Of metrics that several roles have: the peers of their communication.
_PEERS = ("peers",)
_WORKERS, _SERVERS = ("workers",), ("servers",)


class Server(Protocol):
    """A parameter server of this process; `tfdist.ps.server.ServerTask` is one."""

    def reading(self) -> Reading | None:
        """Its statistics; `None` before the first worker has attached."""

    @property
    def latest_snapshot(self) -> tuple[int, float] | None:
        """The number of the latest snapshot, and its time in seconds since 1970; else `None`."""

    @property
    def task_master(self) -> TaskMaster | None:
        """The object that deals out the job's data tasks."""


@dataclasses.dataclass(frozen=True)
class Family:
    """A metric with its samples.

    Attributes:
      name: without the suffix "_total" of counters.
      help: one sentence.
      is_counter: whether it only grows, until the process ends; else it is a gauge.
      labels: the names of the labels.
      samples: the values of the labels, and the number.
    """

    name: str
    help: str
    is_counter: bool
    labels: tuple[str, ...]
    samples: list[tuple[tuple[str, ...], float]]


def describe(cluster: Cluster, settings: Settings, server: Server | None) -> Iterator[Family]:
    """Yields this task's metrics.

    Args:
      cluster: the job.
      settings: of this process.
      server: of a `ps` task.
    """
    labels = (__version__, tf.__version__, cluster.task_type)
    yield _gauge(
        "tfdist_info",
        "The versions of this task, and its role.",
        [(labels, 1.0)],
        ("version", "tensorflow", "role"),
    )
    yield _counter(
        "tfdist_restarts", "How often this task was started again.", [((), settings.restarts)]
    )
    if server is not None:
        yield from _of_server(server)
        yield from _of_queues(server.task_master)
    elif cluster.rank is not None:
        yield from _of_training(cluster)
        yield from _of_communication()
        yield from _of_client()
        job = process.current.job
        yield from _of_queues(None if job is None else job.task_master)


def _of_training(cluster: Cluster) -> Iterator[Family]:
    steps, rows = counted()
    yield _counter("tfdist_steps", "Training steps of this task.", [((), steps)])
    yield _counter("tfdist_samples", "Rows of the batches of these steps.", [((), rows)])
    group = process.current.group
    generation = 0 if group is None else group.generation
    size = cluster.world_size if group is None else group.size
    yield _gauge(
        "tfdist_generation",
        "The number of the set of connected ranks: 1 for the first, 0 before.",
        [((), generation)],
    )
    yield _gauge("tfdist_world_size", "The number of ranks.", [((), size)])


def _of_communication() -> Iterator[Family]:
    seconds, sent, received = [], [], []
    group = process.current.group
    if group is not None:
        stats = group.communicator.stats()
        seconds.append((_WORKERS, stats.busy_seconds))
        sent.append((_WORKERS, stats.bytes_sent))
        received.append((_WORKERS, stats.bytes_received))
        yield _counter(
            "tfdist_collectives",
            "Collectives that this task has completed.",
            [((), stats.collectives)],
        )
        yield _counter(
            "tfdist_wait_seconds",
            "Wall time during which a collective was pending here that this peer had not started.",
            [((name,), waited) for name, waited in group.communicator.waits().items()],
            ("peer",),
        )
    worker = process.current.ps_worker
    if worker is not None:
        client = worker.client.stats()
        seconds.append((_SERVERS, client.pull_seconds + client.lookup_seconds))
        sent.append((_SERVERS, client.bytes_pushed))
        received.append((_SERVERS, client.bytes_pulled + client.lookup_bytes))
    if seconds:
        yield _counter(
            "tfdist_communication_seconds",
            "Time during which a collective, a pull or a lookup was pending here; it includes "
            "waiting for other tasks.",
            seconds,
            _PEERS,
        )
        yield _sent(sent)
        yield _received(received)


def _of_client() -> Iterator[Family]:
    """The metrics of this worker's requests to its parameter servers."""
    worker = process.current.ps_worker
    if worker is None:
        return
    stats = worker.client.stats()
    for name, text, value in (
        ("pulls", "Requests for values, to all servers together.", stats.pulls),
        ("pushes", "Steps whose results were sent to the servers.", stats.pushes),
        ("lookup_ids", "Ids of embedding tables that were looked up.", stats.lookup_ids),
        ("reconnections", "Connections to servers that were made again.", stats.reconnections),
    ):
        yield _counter(f"tfdist_ps_client_{name}", text, [((), value)])


def _sent(samples: Iterable[tuple[tuple[str, ...], float]]) -> Family:
    text = "Bytes of tensors sent to other tasks, without headers."
    return _counter("tfdist_bytes_sent", text, samples, _PEERS)


def _received(samples: Iterable[tuple[tuple[str, ...], float]]) -> Family:
    text = "Bytes of tensors received from other tasks, without headers."
    return _counter("tfdist_bytes_received", text, samples, _PEERS)


def _of_server(server: Server) -> Iterator[Family]:
    reading = server.reading()
    if reading is None:
        return
    of_server, tables = reading["server"], reading["tables"]
    for name, field, text in (
        ("pulls", "pulls", "Pulls that this server has answered."),
        ("pushes", "pushes", "Pushes that were applied, or collected for a step."),
        ("dropped_pushes", "dropped_pushes", "Pushes that came too late."),
    ):
        yield _counter(f"tfdist_ps_{name}", text, [((), of_server[field])])
    yield _sent([(_WORKERS, of_server["bytes_sent"])])
    yield _received([(_WORKERS, of_server["bytes_received"])])
    for name, field, text in (
        ("value_bytes", "value_bytes", "Bytes of the variables on this server."),
        ("workers", "connections", "Connected workers."),
        ("log_bytes", "log_bytes", "Bytes of the redo log since the rows were last saved."),
        (
            "log_failed",
            "log_failed",
            "1 if rows were changed that are neither in a snapshot nor in the log, else 0.",
        ),
        ("memory_held_bytes", "memory_held", "Counted bytes: values, rows, buffers of requests."),
        ("memory_budget_bytes", "memory_budget", "Maximum of these bytes; 0: there is none."),
    ):
        yield _gauge(f"tfdist_ps_{name}", text, [((), of_server[field])])
    for name, field, text in (
        ("rows", "rows", "Rows of an embedding table on this server."),
        ("table_bytes", "bytes", "Bytes of these rows."),
    ):
        yield _gauge(f"tfdist_ps_{name}", text, _of_tables(tables, field), ("table",))
    for name, field, text in (
        ("lookups", "lookups", "Ids that were looked up."),
        ("lookup_hits", "hits", "Looked-up ids that had a row."),
        ("row_updates", "updates", "Gradients of rows that were applied."),
        ("lost_updates", "lost_updates", "Gradients whose ids had no row."),
    ):
        yield _counter(f"tfdist_ps_{name}", text, _of_tables(tables, field), ("table",))
    yield _counter(
        "tfdist_ps_evictions",
        "Rows that were evicted.",
        [
            ((table, cause), stats[field])
            for table, stats in tables.items()
            for cause, field in _CAUSES.items()
        ],
        ("table", "cause"),
    )
    snapshot = server.latest_snapshot
    if snapshot is not None:
        yield _gauge("tfdist_ps_snapshot", "The latest snapshot's number.", [((), snapshot[0])])
        yield _gauge(
            "tfdist_ps_snapshot_timestamp_seconds",
            "The latest snapshot's time, in seconds since 1970.",
            [((), snapshot[1])],
        )


def _of_tables(
    tables: dict[str, dict[str, int]], field: str
) -> list[tuple[tuple[str, ...], float]]:
    return [((name,), stats[field]) for name, stats in tables.items()]


def _of_queues(master: TaskMaster | None) -> Iterator[Family]:
    queues = [*([] if master is None else master.queues()), *process.current.shown_queues()]
    # A queue without numbers waits for the worker that counts its records.
    queues = [queue for queue in queues if "counted_by" not in queue]
    if not queues:
        return
    yield _gauge(
        "tfdist_tasks",
        "Data tasks of the current epoch by their state, as 'tfdist tasks' shows them.",
        [
            ((str(queue["name"]), state), number)
            for queue in queues
            for state, number in (
                ("to do", queue["todo"]),
                ("pending", len(queue["pending"])),
                ("done", queue["done"]),
                ("parked", len(queue["parked"])),
            )
        ],
        ("queue", "state"),
    )
    yield _counter(
        "tfdist_records",
        "Records of data tasks that are trained.",
        [((str(queue["name"]),), queue["records"]) for queue in queues],
        ("queue",),
    )


def _counter(
    name: str,
    text: str,
    samples: Iterable[tuple[tuple[str, ...], float]],
    labels: tuple[str, ...] = (),
) -> Family:
    return Family(name, text, True, labels, list(samples))


def _gauge(
    name: str,
    text: str,
    samples: Iterable[tuple[tuple[str, ...], float]],
    labels: tuple[str, ...] = (),
) -> Family:
    return Family(name, text, False, labels, list(samples))
