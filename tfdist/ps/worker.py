"""A worker of a parameter-server job: its connections to all servers."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Callable

import tensorflow as tf

from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.control.client import ControlClient, UnreachableError
from tfdist.control.signing import data_key
from tfdist.control.waiting import LOG_INTERVAL, Wait
from tfdist.errors import CheckpointError, ClusterConfigError, RendezvousTimeoutError, TfdistError
from tfdist.ops.ps.client import ParameterClient
from tfdist.ops.ps.server import ParameterServer
from tfdist.preemption.messages import STOP, StopRequest
from tfdist.preemption.stop_watch import StopWatch
from tfdist.ps import messages
from tfdist.ps.checkpoint import snapshot
from tfdist.ps.config import PsConfig, fingerprint
from tfdist.ps.epochs.client import EpochClient
from tfdist.ps.epochs.metric_states import MetricStates
from tfdist.ps.epochs.rounds import TRAINING, Key
from tfdist.ps.stats import rates
from tfdist.ps.stats.rates import Reading

_log = logging.getLogger("tfdist.ps")
# Seconds for a server of the same process.
_LOCAL_TIMEOUT = 5.0


class PsWorker:
    """One worker's connections to all parameter servers of its job.

    Args:
      cluster: the job; this process must be a chief or a worker.
      config: the configuration that all workers must agree on.
      settings: secret and timeouts.
      leads: whether this worker asks for the checkpoints now; `None`: the chief does.

    Raises:
      RendezvousTimeoutError: a server did not answer in time.
      ClusterConfigError: a server was given another cluster or configuration.
      AuthenticationError: the tasks do not hold the same secret.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: PsConfig,
        settings: Settings,
        leads: Callable[[], bool] | None = None,
    ) -> None:
        assert cluster.rank is not None
        self._leads = leads or (lambda: cluster.is_chief)
        self.cluster = cluster
        self._rank = cluster.rank
        self.config = config
        self._settings = settings
        # The number of trainings by an Estimator, by model, over all strategy objects.
        self.trainings: dict[str, int] = {}
        self.closed = threading.Event()
        self._leaving = threading.Event()
        self._pid = os.getpid()
        self._writes_checkpoints = False
        identity = secrets.randbits(63)
        self.identity = str(identity)
        self._incarnations: dict[int, int] = {}
        # Knows the last step of a job that is told to end.
        self.stop_watch: StopWatch | None = None
        self._control = [
            ControlClient(cluster, settings.secret, address, self._name(server), settings.tls)
            for server, address in enumerate(cluster.ps)
        ]
        self.client = ParameterClient(
            self._rank,
            cluster.world_size,
            identity,
            len(cluster.ps),
            peer_memory=settings.peer_memory,
            n_push=config.n_push,
            n_fetch=config.n_fetch,
        )
        try:
            for server in range(len(cluster.ps)):
                self._attach(server)
        except BaseException:
            self.close()
            raise
        # The workers' rounds at the end of an epoch, and the number of `fit`s that have begun.
        self.epochs = EpochClient(
            cluster, self.identity, self._control[0], settings.rendezvous_timeout, self.closed
        )
        self.fits = 0
        self.stop_watch = StopWatch(
            cluster.task_name, self._rank, fingerprint(cluster), self._call_stop_hub
        )
        self._keeper = threading.Thread(target=self._keep, name="tfdist-ps-keeper", daemon=True)
        self._keeper.start()

    @property
    def has_others(self) -> bool:
        """Whether the job has more workers than this one."""
        return self.config.workers > 1

    @property
    def steps_ahead(self) -> int | None:
        """How many steps a worker can be ahead of another one; `None` without a bound.

        With "sync" a worker ends a step with its push, and the next one begins with a pull, which
        waits for all pushes.
        """
        needs_all = self.config.mode == "sync" and self.config.num_aggregate == self.config.workers
        return 1 if needs_all else None

    def tell_of_notice(self, told: bool, stops: bool) -> None:
        """Tells the servers that a worker was told to end.

        A server that is told to end as well then serves until the workers have left.

        Args:
          told: it is this worker.
          stops: the workers stop now because of it, so that the servers' work is not done.
        """
        request = StopRequest(
            fingerprint=fingerprint(self.cluster),
            rank=self._rank,
            last_step=int(stops),
            stored=0,
            noticed=told,
            wait=0.0,
        )
        for server, control in enumerate(self._control):
            try:
                control.call(STOP, request, 0.0, patient=False)
            except (UnreachableError, TfdistError) as error:
                _log.warning(
                    "%s: %s does not know that the job stops: %s",
                    self.cluster.task_name,
                    self._name(server),
                    error,
                )

    def _call_stop_hub(self, request: StopRequest) -> dict[str, object]:
        return self._control[0].call(STOP, request, request.wait, patient=True)

    def checkpoint_every(self, seconds: float) -> None:
        """Begins to write a checkpoint every `seconds`, and a last one when this worker leaves.

        Only the chief of a job with a `checkpoint_dir` does, in an elastic job the worker that is
        rank 0 then; other workers ignore this call.
        """
        may_lead = self.cluster.is_chief or self.config.elastic
        if may_lead and self.config.checkpoint_dir is not None:
            self._writes_checkpoints = True
            threading.Thread(
                target=self._checkpoint_periodically, args=(seconds,), daemon=True
            ).start()

    def checkpoint(self) -> str:
        """Makes all servers write a snapshot, then writes the manifest.

        Returns:
          The manifest's path.

        Raises:
          ClusterConfigError: the job has no `checkpoint_dir`, or this is not the chief.
          CheckpointError: a server could not write; names the server and the reason.
        """
        root = self.config.checkpoint_dir
        if root is None or not self._leads():
            raise ClusterConfigError(
                "checkpoint: expected the chief of a job with a checkpoint_dir, received "
                f"{self.cluster.task_name} with checkpoint_dir={root!r}"
            )
        self.flush()
        number = snapshot.next_number(root, len(self.cluster.ps))
        # All servers begin before this waits for one. No threads: the interpreter may be ending.
        for server in range(len(self.cluster.ps)):
            self._ask_to_save(server, number, wait=0.0)
        files = [self._save(server, number) for server in range(len(self.cluster.ps))]
        return snapshot.write_manifest(root, number, files)

    def flush(self) -> None:
        """Pushes the steps that `n_push` has held back, and waits as `wait_for_pushes`.

        Raises:
          tf.errors.OpError: a server answered with an error.
        """
        self.client.parameters.push_accumulated()
        self.wait_for_pushes()

    def wait_for_pushes(self) -> None:
        """Waits until the servers have applied all pushes of this worker.

        Raises:
          tf.errors.OpError: a server answered with an error.
        """
        self.client.flush(self._settings.rendezvous_timeout)

    def wait_for_workers(self) -> None:
        """Waits until all workers have called this, with all their pushes applied.

        Raises:
          TfdistError: a worker has not come within the `epoch_timeout`, or is gone.
          tf.errors.OpError: a server answered with an error.
        """
        self.flush()
        if not self.has_others:
            return
        # A round of its own, as in a `fit` of one epoch. It is joined again if it has ended without
        # a worker, which may not have connected yet.
        self.fits += 1
        wait = Wait(self.config.epoch_timeout, self.closed)
        while True:
            answer = self.epochs.join_round(Key(self.fits, 0, TRAINING), MetricStates())
            came = set() if answer is None else set(answer.ranks)
            absent = [rank for rank in range(self.config.workers) if rank not in came]
            if not absent:
                return
            if answer is None or wait.is_over:
                break
            wait.pause()
        missing = {} if answer is None else answer.missing
        reasons = [
            f"{self.cluster.describe_rank(rank)} {missing.get(rank, 'has not come')}"
            for rank in absent
        ]
        raise TfdistError(
            f"{self.cluster.task_name}: wait_for_workers: expected all workers within the "
            f"epoch_timeout of {self.config.epoch_timeout:g} s: "
            f"{'ps 0 does not answer' if answer is None else '; '.join(reasons)}"
        )

    def readings(self) -> list[Reading | None]:
        """Returns the statistics of each server; `None` for a server that does not answer."""
        return [self._reading(control) for control in self._control]

    def leave(self, failure: bool = False) -> None:
        """Leaves the job; later calls, and calls in a forked child process, do nothing.

        Args:
          failure: this process ends before its work is done, so that a new one may replace it. It
            then writes no checkpoint.
        """
        if self.closed.is_set() or os.getpid() != self._pid:
            return
        if self._writes_checkpoints and self._leads() and not failure:
            self._try_checkpoint()
        self._leaving.set()  # servers may be gone as soon as the last worker has left
        if not failure:
            self.client.leave(self._settings.exit_timeout)
        self.close()

    def end(self) -> None:
        """Ends what this process serves to the other workers, who have left: nothing."""

    def close(self) -> None:
        """Closes all connections; may be called again."""
        self.closed.set()
        if self.stop_watch is not None:
            self.stop_watch.close()
        self.client.close()
        for control in self._control:
            control.close()

    def _checkpoint_periodically(self, seconds: float) -> None:
        while not self.closed.wait(seconds):
            if self._leads():
                self._try_checkpoint()

    def _try_checkpoint(self) -> None:
        try:
            self.checkpoint()
        except Exception as error:  # training continues, and earlier snapshots exist
            _log.error("%s: %s", self.cluster.task_name, error)

    def _attach(self, server: int) -> None:
        """Gets a server's data address and connects; waits for a server that is starting."""
        timeout = self._settings.rendezvous_timeout
        name = self._name(server)
        wait = Wait(timeout, self.closed)
        problem = "no answer yet"
        while not wait.is_closed:
            if wait.is_over:
                raise RendezvousTimeoutError(
                    f"{self.cluster.task_name}: {name} was not there within {timeout:g} s: "
                    f"{problem}"
                )
            if wait.is_log_due():
                _log.warning("%s: waiting for %s (%s)", self.cluster.task_name, name, problem)
            poll, remaining = wait.poll(), wait.remaining
            try:
                answer = self._control[server].call(
                    messages.ATTACH, self._request(poll), poll, patient=True
                )
                if answer["status"] == "attached":
                    return self._connect(server, answer, max(1.0, remaining))
                problem = "it reads its snapshot"
            except (UnreachableError, tf.errors.OpError) as error:
                problem = str(error)
                wait.pause()
        raise TfdistError(f"{self.cluster.task_name}: closed while it waited for {name}")

    def _request(self, wait: float) -> messages.AttachRequest:
        return messages.AttachRequest(
            rank=self._rank,
            world_size=self.cluster.world_size,
            fingerprint=fingerprint(self.cluster),
            process=self.identity,
            config=self.config.text(),
            wait=wait,
        )

    def _connect(self, server: int, answer: dict, timeout: float) -> None:
        address = f"{answer['host']}:{answer['port']}"
        incarnation = int(answer["incarnation"])
        key = data_key(self._settings.secret, "ps", str(server), answer["salt"])
        self.client.connect(server, address, key, incarnation, timeout)
        before = self._incarnations.setdefault(server, incarnation)
        self._incarnations[server] = incarnation
        if before != incarnation and self.config.checkpoint_dir is None:
            _log.warning(
                "%s: %s was started again and keeps no snapshots (checkpoint_dir): its rows of "
                "embeddings and its optimizers' slots begin anew",
                self.cluster.task_name,
                self._name(server),
            )

    def _reading(self, control: ControlClient) -> Reading | None:
        try:
            return rates.ask(control)
        except UnreachableError:
            return None

    def _save(self, server: int, number: int) -> dict[str, object]:
        wait = Wait(self._settings.rendezvous_timeout)
        while not wait.is_over:
            answer = self._ask_to_save(server, number, wait.poll())
            if answer["status"] == "written":
                return {"file": answer["file"], "bytes": answer["bytes"]}
        raise CheckpointError(f"{self._name(server)} did not finish its snapshot in time")

    def _ask_to_save(self, server: int, number: int, wait: float) -> dict[str, object]:
        request = messages.CheckpointRequest(fingerprint(self.cluster), self.identity, number, wait)
        try:
            answer = self._control[server].call(messages.CHECKPOINT, request, wait, patient=True)
        except UnreachableError as error:
            reason = str(error)
        else:
            if answer["status"] in ("written", "waiting"):
                return answer
            reason = answer["reason"]
        raise CheckpointError(f"{self._name(server)} did not write its snapshot: {reason}")

    def _name(self, server: int) -> str:
        return f"ps {server} at {self.cluster.ps[server]}"

    def _keep(self) -> None:
        """Reconnects to servers whose connection broke, until this worker leaves."""
        wait = Wait(closed=self.closed)
        while not wait.is_closed:
            server = self.client.wait_for_lost(1.0)
            if wait.is_log_due():
                line = self.client.waiting(LOG_INTERVAL)
                if line is not None:
                    _log.warning("%s: %s", self.cluster.task_name, line)
            if server is None or self._leaving.is_set() or self.closed.is_set():
                continue
            threading.Thread(target=self._return_to, args=(server,), daemon=True).start()

    def _return_to(self, server: int) -> None:
        name = self._name(server)
        _log.warning("%s: lost %s; connecting again", self.cluster.task_name, name)
        try:
            self._attach(server)
        except TfdistError as error:
            if not self.closed.is_set():
                self.client.give_up(server, str(error))
        else:
            _log.warning("%s: connected to %s again", self.cluster.task_name, name)


class LocalPsWorker:
    """The only worker of a process without a cluster, with a server in the same process."""

    has_others = False
    stop_watch: StopWatch | None = None
    steps_ahead: int | None = None

    def __init__(self, cluster: Cluster, config: PsConfig) -> None:
        if config.checkpoint_dir is not None:
            raise ClusterConfigError(
                "ParameterServerStrategy: expected no checkpoint_dir without a cluster, received "
                f"{config.checkpoint_dir!r}: there is no ps task to write there"
            )
        self.cluster = cluster
        self.config = config
        self.trainings: dict[str, int] = {}
        self.closed = threading.Event()
        self._pid = os.getpid()
        key = secrets.token_bytes(32)
        self._store = ParameterServer(0, config)
        self._store.start(key)
        self.client = ParameterClient(
            0, 1, secrets.randbits(63), servers=1, n_push=config.n_push, n_fetch=config.n_fetch
        )
        address = f"127.0.0.1:{self._store.port}"
        self.client.connect(0, address, key, self._store.incarnation, _LOCAL_TIMEOUT)

    def wait_for_workers(self) -> None:
        """Pushes what is held back: there is no other worker."""
        self.client.parameters.push_accumulated()
        self.client.flush(_LOCAL_TIMEOUT)

    def readings(self) -> list[Reading | None]:
        """As `PsWorker.readings`."""
        return [rates.reading(self._store)]

    def tell_of_notice(self, told: bool, stops: bool) -> None:
        """Does nothing: there is no other task."""

    def checkpoint_every(self, seconds: float) -> None:
        """Does nothing: there is no `checkpoint_dir`."""

    def leave(self, failure: bool = False) -> None:
        """Closes the connection and the server, except in a forked child process."""
        if os.getpid() != self._pid:
            return
        self.closed.set()
        self.client.close()
        self._store.close()

    def end(self) -> None:
        """Does nothing: `leave` has closed the server."""
