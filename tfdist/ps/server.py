"""The `ps` task: it serves values until the job has ended."""

from __future__ import annotations

import contextlib
import logging
import resource
import secrets
import signal
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from tfdist import _providers
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.control import callers, interfaces
from tfdist.control.held_calls import ClientContext
from tfdist.control.server import ControlServer
from tfdist.control.signing import data_key
from tfdist.control.waiting import Wait
from tfdist.data.queue.master import TaskMaster
from tfdist.errors import ClusterConfigError, Preempted, TfdistError
from tfdist.observe import clock
from tfdist.ops.ps.server import ParameterServer
from tfdist.ops.ps.server_records import ServerEvent
from tfdist.preemption.messages import STOP
from tfdist.preemption.stop_board import StopBoard
from tfdist.ps import messages, step_waits
from tfdist.ps.checkpoint import files
from tfdist.ps.checkpoint.checkpoint import Checkpoints
from tfdist.ps.config import PsConfig, fingerprint
from tfdist.ps.epochs.messages import EPOCH, EpochRequest
from tfdist.ps.epochs.service import EpochService
from tfdist.ps.liveness import Liveness
from tfdist.ps.stats import rates
from tfdist.ps.stats.messages import STATS, StatsRequest
from tfdist.ps.step_waits import StepWaits
from tfdist.ps.task_positions import ServerPositions

_log = logging.getLogger("tfdist.ps")
# Seconds that the serving thread waits for one event of the store.
_EVENT_WAIT = 0.5
# Seconds after SIGTERM in which a worker must say that it was also told to end. Otherwise only this
# server was, and the workers wait for the server that replaces it.
_NOTICE_WAIT = 5.0
# Seconds for which a server that cannot serve tells the workers why, before it ends.
_TELL_WAIT = 30.0
# Seconds for which a call may be held, and characters of the identity of a worker's process.
_MAX_WAIT, _MAX_IDENTITY = 30.0, 100
# Seconds between attempts to write a snapshot: after the first failure, doubled each time; maximum.
_MIN_RETRY_PAUSE, _MAX_RETRY_PAUSE = 1.0, 60.0


class ServerTask:
    """One parameter server of a job.

    Args:
      cluster: the job; this process is one of its `ps` tasks.
      settings: secret, data port, timeouts, and the default of `checkpoint_dir`.
      checkpoint_dir: the snapshot directory that this task's own script names; workers cannot
        choose it.

    Raises:
      ClusterConfigError: this process is no `ps` task.
      AddressInUseError: this task's port is taken.
    """

    def __init__(
        self, cluster: Cluster, settings: Settings, checkpoint_dir: str | None = None
    ) -> None:
        if cluster.task_type != "ps":
            raise ClusterConfigError(
                f"expected a ps task to serve, received {cluster.task_name}: only tasks that "
                "TF_CONFIG calls ps hold variables"
            )
        self._cluster = cluster
        self._settings = settings
        self._root = settings.checkpoint_dir if checkpoint_dir is None else checkpoint_dir
        self._fingerprint = fingerprint(cluster)
        self._lock = threading.Lock()
        self._config: PsConfig | None = None
        self._serving = threading.Event()  # `serve` was called
        self._opening: threading.Thread | None = None
        self._problem: Exception | None = None
        self._store: ParameterServer | None = None
        self._salt = secrets.token_hex(16)
        self._checkpoints: Checkpoints | None = None
        # The identity of each rank's process that attached last.
        self._attached: dict[int, str] = {}
        self._refused: set[int] = set()  # ranks
        self._informed: set[int] = set()  # ranks that know why this server cannot serve
        self._epochs: EpochService | None = None
        self._board = StopBoard(cluster.world_size, self._fingerprint)
        self._told_at: float | None = None
        # ps 0 deals out the job's data tasks, once it has read its snapshot.
        self._tasks = TaskMaster(cluster, is_ready=False) if cluster.task_index == 0 else None
        self._waits = StepWaits(cluster, settings, self._fingerprint, self._own_waits)
        self._written: dict[int, _Writing] = {}
        self._own_snapshot: _Writing | None = None
        self._retry_pause = _MIN_RETRY_PAUSE
        self._next_try = 0.0
        self._stop = threading.Event()
        self._saves_at_stop = True
        self._control = ControlServer(
            cluster,
            settings.secret,
            {
                **clock.HANDLERS,
                messages.ATTACH: self._attach,
                messages.CHECKPOINT: self._checkpoint,
                messages.SNAPSHOT: self._observed_snapshot,
                STATS: self._stats,
                EPOCH: self._epoch,
                messages.WAITS: self._step_waits,
                STOP: self._board.answer,
                **(self._tasks.handlers if self._tasks is not None else {}),
            },
            interface=settings.interface,
            tls=settings.tls,
        )

    def serve(self) -> int:
        """Serves until the job has ended.

        After SIGTERM it still serves workers that were told to end as well, until they have left;
        otherwise it ends. A second signal, or SIGINT, ends it at once. In a thread that is not the
        main one it handles no signals.

        Returns:
          The process's exit code: 0 once the chief and all other workers have left; 1 if the chief
          or the last snapshot is lost, or records of data tasks are; 128 + the signal's number
          after SIGTERM or SIGINT, and as after SIGTERM if the workers have left because they were
          told to end.
        """
        received: list[int] = []

        def stop(number: int, frame: object) -> None:
            received.append(number)
            if number == signal.SIGTERM and self._told_at is None:
                self._told_at = time.monotonic()
            else:
                self._stop.set()

        # Python lets only the main thread handle signals.
        in_main = threading.current_thread() is threading.main_thread()
        if in_main:
            # The system's maximum of descriptors: unauthenticated connections must leave some for
            # snapshots.
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        numbers = (signal.SIGTERM, signal.SIGINT) if in_main else ()
        previous = {n: signal.signal(n, stop) for n in numbers}
        try:
            code = self._serve()
            if code is None and self._saves_at_stop:
                self._save_at_exit()
            if received:
                return 128 + received[0]
            if code is None or (code == 0 and self._board.stops):
                return Preempted.EXIT_CODE
            return code
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            self.close()

    def refuse(self, problem: Exception) -> None:
        """Lets `serve` only tell the workers why this task cannot serve, and end."""
        self._problem = problem

    def stop(self, saves: bool = True) -> None:
        """Ends `serve`, which another thread runs.

        Args:
          saves: whether a last snapshot is written, if the latest one lacks changes.
        """
        self._saves_at_stop = (
            saves and self._checkpoints is not None and self._checkpoints.unsaved()
        )
        self._stop.set()

    def close(self) -> None:
        """Stops answering and frees the store."""
        self._board.close()
        self._control.close()
        if self._epochs is not None:
            self._epochs.close()
        self._waits.close()
        if self._store is not None:
            self._store.close()

    def reading(self) -> rates.Reading | None:
        """Returns the server's statistics; `None` before the first worker has attached."""
        return None if self._store is None else rates.reading(self._store)

    @property
    def latest_snapshot(self) -> tuple[int, float] | None:
        """The number of the latest snapshot, and its time in seconds since 1970; else `None`."""
        return None if self._checkpoints is None else self._checkpoints.latest

    @property
    def task_master(self) -> TaskMaster | None:
        """The object that deals out the job's data tasks; only ps 0 has it."""
        return self._tasks

    def _serve(self) -> int | None:
        """Serves; returns the exit code, or `None` if this task or the job was told to end."""
        liveness = Liveness(
            self._cluster,
            self._settings.rendezvous_timeout,
            time.monotonic(),
            lambda: self._is_elastic,
        )
        event: ServerEvent | None = None
        self._serving.set()
        while not self._stop.is_set():
            if self._problem is not None:
                _log.error("%s: %s", self._cluster.task_name, self._problem)
                self._inform_workers()
                return 1
            if self._store is None:
                self._stop.wait(_EVENT_WAIT)
                if self._store is not None:
                    continue  # its events first
            else:
                event = self._store.wait_for_event(_EVENT_WAIT)
                self._handle_event(event, liveness)
                self._save_if_needed(time.monotonic())
            while self._refused:
                liveness.give_up(self._refused.pop())
            line = liveness.line(time.monotonic())
            if line is not None:
                _log.warning("%s: %s", self._cluster.task_name, line)
            verdict = liveness.verdict(time.monotonic())
            if verdict is not None:
                break
            # Not while events wait, which may say that workers have come.
            if event is None and self._may_end(liveness, time.monotonic()):
                return None
        else:
            return None
        is_saved = True
        if verdict or (self._checkpoints is not None and self._checkpoints.unsaved()):
            is_saved = self._save_at_exit()
        is_trained = self._tell_of_tasks()
        if not verdict:
            return 0 if is_saved and is_trained else 1
        _log.error("%s: %s", self._cluster.task_name, verdict)
        return 1

    def _inform_workers(self) -> None:
        """Waits for a while until all workers know why this server cannot serve.

        They would only learn that no process listens here, and wait for longer.
        """
        wait = Wait(min(_TELL_WAIT, self._settings.rendezvous_timeout), self._stop)
        while len(self._informed) < self._cluster.world_size and not wait.is_over:
            if self._told_at is not None or wait.is_closed:
                return
            wait.pause()

    def _tell_of_tasks(self) -> bool:
        """Logs which records of data tasks are not trained; returns whether none was lost."""
        if self._tasks is None:
            return True
        for sentence in self._tasks.unfinished():
            _log.warning("%s: %s", self._cluster.task_name, sentence)
        lost = self._tasks.lost()
        for sentence in lost:
            _log.error(
                "%s: %s, and all workers have left: a worker that is started again trains them "
                "if this server comes back from its checkpoint_dir",
                self._cluster.task_name,
                sentence,
            )
        return not lost or self._board.stops

    @property
    def _is_elastic(self) -> bool:
        return self._config is not None and self._config.elastic

    def _may_end(self, liveness: Liveness, now: float) -> bool:
        """Whether this server or the job was told to end, and no worker needs this server."""
        if self._told_at is None:
            return self._board.stops and not liveness.is_anyone_connected
        if not liveness.is_anyone_connected:
            return True
        return not self._board.noticed and now - self._told_at >= _NOTICE_WAIT

    def _handle_event(self, event: ServerEvent | None, liveness: Liveness) -> None:
        if event is None:
            return
        if event.kind == "log":
            _log.warning("%s: %s", self._cluster.task_name, event.text)
        else:
            liveness.record(event, time.monotonic())
            assert self._epochs is not None
            self._epochs.record(event.kind, event.worker)

    def _attach(self, request: messages.AttachRequest, context: ClientContext) -> dict[str, object]:
        reason = self._reason_to_refuse(request)
        if reason:
            if 0 <= request.rank < self._cluster.world_size:
                self._refused.add(request.rank)
            return {"status": "refused", "reason": reason}
        # Before, this task may find out that it cannot serve.
        if not self._serving.wait(_bounded(request.wait)):
            return {"status": "waiting"}
        if self._problem is not None:
            return self._refusal(request.rank, self._problem)
        with self._lock:
            if self._opening is None:
                self._config = PsConfig.parse(request.config)
                self._epochs = EpochService(
                    self._config.workers, self._config.epoch_timeout, self._waits.ask
                )
                self._opening = threading.Thread(target=self._open, name="tfdist-ps-open")
                self._opening.start()
            self._attached[request.rank] = request.process
            assert self._epochs is not None
            self._epochs.attach(request.rank, request.process)
        self._opening.join(_bounded(request.wait))
        if self._problem is not None:
            return self._refusal(request.rank, self._problem)
        if self._opening.is_alive():
            return {"status": "waiting"}
        assert self._store is not None
        return {
            "status": "attached",
            "host": interfaces.data_interface(self._cluster, self._settings)[1],
            "port": self._store.port,
            "salt": self._salt,
            "incarnation": str(self._store.incarnation),
        }

    def _refusal(self, rank: int, problem: Exception) -> dict[str, object]:
        """Tells a worker why this server cannot serve."""
        self._informed.add(rank)
        return {"status": "refused", "reason": f"it cannot serve, and ends: {problem}"}

    def _reason_to_refuse(self, request: messages.AttachRequest) -> str | None:
        reason = callers.reason_to_refuse(request, self._fingerprint, self._cluster.world_size)
        if reason:
            return reason
        if not 0 < len(request.process) <= _MAX_IDENTITY:
            return (
                f"expected the identity of a process, of at most {_MAX_IDENTITY} characters, "
                f"received {len(request.process)}"
            )
        try:
            config = PsConfig.parse(request.config)
        except ClusterConfigError as error:
            return str(error)
        if config.workers != self._cluster.world_size:
            return (
                f"expected a strategy of {self._cluster.world_size} workers, as the cluster has, "
                f"received one of {config.workers}"
            )
        if config.checkpoint_dir not in (None, self._root):
            return (
                f"{self._cluster.name_of_rank(request.rank)} asks for snapshots in "
                f"{config.checkpoint_dir!r}, but this server keeps "
                + ("none" if self._root is None else "them elsewhere")
                + ": expected the same checkpoint_dir in its own script, or in "
                "TFDIST_CHECKPOINT_DIR where it has none"
            )
        with self._lock:
            if self._config is not None and config != self._config:
                return (
                    f"{self._cluster.name_of_rank(request.rank)} asks for another strategy than "
                    f"the job has (asked for / the job's): {config.differences(self._config)}"
                )
        return None

    def _open(self) -> None:
        """Makes the store, from the latest snapshot if there is one, then admits connections."""
        try:
            assert self._config is not None
            store = ParameterServer(
                self._cluster.task_index,
                self._config,
                self._settings.data_port,
                has_chief=bool(self._cluster.chief),
                interface=interfaces.data_interface(self._cluster, self._settings)[0],
                peer_memory=self._settings.peer_memory,
                memory=self._settings.ps_memory,
            )
            root = self._root
            if self._config.durability == "refuse" and (root is None or not files.is_local(root)):
                raise ClusterConfigError(
                    "durability='refuse': expected a local checkpoint_dir, where there is a log of "
                    f"rows, received {root!r}"
                )
            if root is not None and self._config.checkpoint_dir is not None:
                checkpoints = Checkpoints(
                    store, root, self._cluster.task_index, len(self._cluster.ps), self._tasks
                )
                origin = checkpoints.restore()
                if origin is not None:
                    _log.warning("%s: continues from %s", self._cluster.task_name, origin)
                self._checkpoints = checkpoints
            store.start(
                data_key(self._settings.secret, "ps", str(self._cluster.task_index), self._salt)
            )
            self._store = store
            if self._tasks is not None:
                is_saved = self._checkpoints is not None
                self._tasks.start(ServerPositions(store, is_saved))
        except Exception as error:  # `_attach` returns it to the worker, and `_serve` logs it
            self._problem = error

    def _checkpoint(
        self, request: messages.CheckpointRequest, context: ClientContext
    ) -> dict[str, object]:
        if request.fingerprint != self._fingerprint:
            return {"status": "refused", "reason": "the caller has another cluster"}
        checkpoints = self._checkpoints
        if self._store is None or checkpoints is None:
            return {"status": "refused", "reason": "there is nothing to write, or nowhere"}
        # The leader of an elastic job may be any of them.
        chiefs = self._attached.values() if self._is_elastic else [self._attached.get(0)]
        if request.process not in chiefs:
            return {"status": "refused", "reason": "only the chief that is attached may ask for it"}
        return self._write(checkpoints, request.number, request.wait)

    def _observed_snapshot(
        self, request: messages.SnapshotRequest, context: ClientContext
    ) -> dict[str, object]:
        reason = callers.reason_to_refuse(request, self._fingerprint)
        checkpoints = self._checkpoints
        if reason is None and checkpoints is None:
            reason = "expected a job with a checkpoint_dir, whose workers have come, received " + (
                "one without" if self._config is not None else "no worker yet"
            )
        if reason is not None:
            return {"status": "refused", "reason": reason}
        assert checkpoints is not None
        if request.number == 0:
            following = checkpoints.expected_numbers()[1]
            return {"status": "told", "next": following, "root": self._root}
        return self._write(checkpoints, request.number, request.wait)

    def _write(self, checkpoints: Checkpoints, number: int, wait: float) -> dict[str, object]:
        """Begins a snapshot unless it was begun already; returns the answer to the request."""
        with self._lock:
            job = self._written.get(number)
            if job is None:
                first, last = checkpoints.expected_numbers()
                if not first <= number <= last:
                    reason = f"expected snapshot {first} to {last}, received {number}"
                    return {"status": "refused", "reason": reason}
                self._written.clear()
                job = self._written[number] = _Writing(lambda: checkpoints.save(number))
        return job.answer(_bounded(wait))

    def _epoch(self, request: EpochRequest, context: ClientContext) -> dict[str, object]:
        reason = callers.reason_to_refuse(request, self._fingerprint)
        if reason:
            return {"status": "refused", "reason": reason}
        if self._store is None:  # the server was started again, and the worker must attach first
            return {"status": "missing"}
        assert self._epochs is not None
        return self._epochs.answer(request, context)

    def _own_waits(self) -> list[int]:
        assert self._store is not None
        return self._store.waits()

    def _step_waits(
        self, request: messages.WaitsRequest, context: ClientContext
    ) -> dict[str, object]:
        reason = callers.reason_to_refuse(request, self._fingerprint)
        if reason:
            return {"status": "refused", "reason": reason}
        if self._store is None:
            return {"status": "waiting"}
        return step_waits.encoded(self._store.waits())

    def _stats(self, request: StatsRequest, context: ClientContext) -> dict[str, object]:
        if self._store is None:
            return {"status": "waiting"}
        return {"status": "stats", **rates.reading(self._store)}

    def _save_if_needed(self, now: float) -> None:
        """Writes a snapshot without a request if the redo log of rows is long or has failed."""
        if self._checkpoints is None:
            return
        if self._own_snapshot is not None:
            if not self._own_snapshot.has_ended:
                return
            answer, self._own_snapshot = self._own_snapshot.answer(0), None
            if answer["status"] == "written":
                self._retry_pause = _MIN_RETRY_PAUSE
                _log.warning("%s: wrote %s", self._cluster.task_name, answer["file"])
            else:
                _log.error(
                    "%s: no snapshot could be written, next try in %g s: %s",
                    self._cluster.task_name,
                    self._retry_pause,
                    answer["reason"],
                )
                self._next_try = now + self._retry_pause
                self._retry_pause = min(2 * self._retry_pause, _MAX_RETRY_PAUSE)
        if now < self._next_try:
            return
        if self._checkpoints.log_has_failed() or self._checkpoints.log_is_long():
            self._own_snapshot = _Writing(self._checkpoints.save_now)

    def _save_at_exit(self) -> bool:
        """Writes a last snapshot; returns whether everything is saved."""
        if self._store is None or self._checkpoints is None:
            return True
        try:
            written = self._checkpoints.save_now()
        except Exception:
            _log.exception("%s: the last snapshot failed", self._cluster.task_name)
            return False
        _log.warning("%s: wrote %s", self._cluster.task_name, written["file"])
        return True


class _Writing:
    """A snapshot that is being written."""

    def __init__(self, write: Callable[[], dict[str, object]]) -> None:
        self._write = write
        self._answer: dict[str, object] | None = None
        self._thread = threading.Thread(target=self._run, name="tfdist-ps-snapshot")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer = {"status": "written", **self._write()}
        except Exception as error:  # the chief that has requested it gets the reason
            self._answer = {"status": "failed", "reason": f"{type(error).__name__}: {error}"}

    @property
    def has_ended(self) -> bool:
        """Whether it was written or has failed."""
        return not self._thread.is_alive()

    def answer(self, wait: float) -> dict[str, object]:
        self._thread.join(wait)
        return self._answer or {"status": "waiting"}


def _bounded(wait: float) -> float:
    return max(0.0, min(wait, _MAX_WAIT))


def serve(cluster: Cluster, settings: Settings, checkpoint_dir: str | None = None) -> NoReturn:
    """Serves as a `ps` task until the job has ended, then ends this process.

    Args:
      cluster: the job.
      settings: as for `ServerTask`.
      checkpoint_dir: the snapshot directory; `None`: the directory of the settings, if there is
        one.

    Raises:
      SystemExit: always; see `ServerTask.serve` for its code.
    """
    task = ServerTask(cluster, settings, checkpoint_dir)
    with contextlib.ExitStack() as stack:
        stack.callback(task.close)
        if settings.metrics_port is not None:
            serve_metrics = _providers.provider("serve_metrics")
            try:
                exporter = serve_metrics(cluster, settings, task)
                if exporter is not None:
                    stack.enter_context(contextlib.closing(exporter))
            except (TfdistError, OSError) as error:
                task.refuse(error)
        raise SystemExit(task.serve())
