"""The connections of a process to servers of tables, of which some may die."""

from __future__ import annotations

import dataclasses
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tfdist.config.settings import Settings
from tfdist.control.client import ControlClient, UnreachableError
from tfdist.control.encoding import JsonObject
from tfdist.control.signing import data_key
from tfdist.errors import ClusterConfigError, TfdistError
from tfdist.job.encryption import encrypt
from tfdist.observe.observer import Observer
from tfdist.ops.ps.client import ParameterClient
from tfdist.serving.tables import ring
from tfdist.serving.tables.messages import DESCRIBE, DescribeRequest
from tfdist.serving.tables.server_group import ServerGroup

_CALLER = "tfdist.serving"  # in messages
_log = logging.getLogger(_CALLER)
# Seconds for which a server may hold or delay a call about its tables.
_ASK_WAIT = 1.0
# Seconds in which a server must take a data connection.
_CONNECT_WAIT = 2.0
# Seconds between two looks for connections that are lost, or silent.
_LOOK = 0.05
# Seconds between two attempts to reach a partition of which no copy answers.
_RETRY = 0.2
# Seconds after which a partition goes back to the server that is its first choice.
_RETURN = 10.0


@dataclasses.dataclass(frozen=True)
class ServerDescription:
    """The answer of a server about itself.

    Attributes:
      replicas: the number of servers of each partition.
      snapshot: the number of the snapshot that it serves.
      root: the folder of its snapshots.
      tables: the width of each table's rows, by its name.
      stores: by partition, the address, the incarnation and the salt of its store.
    """

    replicas: int
    snapshot: int
    root: str
    tables: Mapping[str, int]
    stores: Mapping[int, tuple[str, int, str]]

    @classmethod
    def parse(cls, answer: JsonObject) -> ServerDescription:
        """Returns the description in an answer.

        Raises:
          KeyError, TypeError, ValueError: the answer has another form.
        """
        stores = {
            int(partition): (
                f"{answer['host']}:{int(store['port'])}",
                int(store["incarnation"]),
                str(store["salt"]),
            )
            for partition, store in answer["partitions"].items()
        }
        tables = {str(name): int(width) for name, width in answer["tables"].items()}
        return cls(
            int(answer["replicas"]), int(answer["snapshot"]), str(answer["root"]), tables, stores
        )


class TableConnection:
    """Looks up rows on servers of tables, and goes to another copy when a server dies.

    Args:
      servers: "host:port" of all servers, in their order.
      settings: the secret, TLS, and whether to share memory with servers of this machine.
      timeout: seconds after which a lookup fails that no copy answers.
      patience: seconds after which a silent server is taken for dead, if there is a copy.
      wait: seconds for which servers are awaited that do not answer yet; `None`: `timeout`.

    Raises:
      ClusterConfigError: the servers refuse this process, or contradict each other.
      AuthenticationError: this process does not have the servers' secret.
      tf.errors.UnavailableError: of some partition no server answers.
    """

    def __init__(
        self,
        servers: Sequence[str],
        settings: Settings,
        timeout: float = 10.0,
        patience: float = 1.0,
        wait: float | None = None,
    ) -> None:
        encrypt(settings, _CALLER)
        self._group = ServerGroup.of(servers)
        self._secret = settings.secret
        self._timeout = timeout
        self._patience = patience
        self._closed = threading.Event()
        caller = Observer(_CALLER, training_addresses=self._group.workers)
        self._control = [
            ControlClient(caller, settings.secret, address, self._name(server), settings.tls)
            for server, address in enumerate(self._group.workers)
        ]
        # The latest answer of each server, the server of each partition, and the partitions that
        # are being connected again.
        self._known: dict[int, ServerDescription] = {}
        self._server_of: dict[int, int] = {}
        self._moving: set[int] = set()
        self._lock = threading.Lock()
        self._silenced: dict[int, float] = {}
        self._client = ParameterClient(
            0,
            1,
            secrets.randbits(63),
            servers=len(servers),
            timeout=timeout,
            peer_memory=settings.peer_memory,
        )
        try:
            self._begin(timeout if wait is None else wait)
        except BaseException:
            self.close()
            raise
        self._keeper = threading.Thread(
            target=self._keep, name="tfdist-serving-keeper", daemon=True
        )
        self._keeper.start()

    @property
    def client(self) -> ParameterClient:
        """The connections themselves; `client.handle` names them to lookups."""
        return self._client

    @property
    def widths(self) -> Mapping[str, int]:
        """The width of each table's rows, by its name."""
        return self._description.tables

    @property
    def snapshot(self) -> int:
        """The number of the snapshot that the servers had when this object was made."""
        return self._description.snapshot

    @property
    def answering(self) -> list[int]:
        """The servers that have told what they serve."""
        return sorted(self._known)

    @property
    def origin(self) -> str:
        """Describes the servers and their snapshot in messages."""
        about = self._description
        servers = ", ".join(self._group.workers)
        return f"the servers {servers}, with snapshot {about.snapshot} in {about.root}"

    def close(self) -> None:
        """Closes all connections; pending lookups fail. May be called again."""
        self._closed.set()
        self._client.close()
        for control in self._control:
            control.close()

    def _begin(self, wait: float) -> None:
        problems = self._ask_all(wait)
        if not self._known:
            raise tf.errors.UnavailableError(None, None, f"no server of tables: {problems}")
        self._description = next(iter(self._known.values()))
        self._check_agreement()
        for partition in range(len(self._group.workers)):
            if not self._connect(partition, self._copies(partition)):
                raise tf.errors.UnavailableError(
                    None,
                    None,
                    f"partition {partition} of the tables: none of its servers answers: "
                    f"{', '.join(map(self._name, self._copies(partition)))}; {problems}",
                )

    def _ask_all(self, wait: float) -> str:
        """Asks all servers what they serve; returns why some have not answered."""
        deadline = time.monotonic() + wait
        problems: dict[int, str] = {}
        has_told = False
        while True:
            for server in range(len(self._control)):
                if server not in self._known:
                    problems[server] = self._ask(server) or ""
            enough = self._known and all(
                any(server in self._known for server in self._copies(partition))
                for partition in range(len(self._group.workers))
            )
            reasons = "; ".join(text for text in problems.values() if text)
            if enough or time.monotonic() >= deadline:
                return reasons
            if not has_told:
                has_told = True
                _log.warning("waiting up to %.0f s for servers of tables: %s", wait, reasons)
            time.sleep(_RETRY)

    def _ask(self, server: int) -> str | None:
        """Asks a server what it serves; returns why it has not answered."""
        request = DescribeRequest(self._group.fingerprint, _ASK_WAIT)
        try:
            answer = self._control[server].call(DESCRIBE, request, _ASK_WAIT, patient=False)
            if answer["status"] != "serving":
                return f"{self._name(server)} still reads its snapshot"
            self._known[server] = ServerDescription.parse(answer)
        except UnreachableError as error:
            return f"{self._name(server)}: {error}"
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, TfdistError):
                raise
            return f"{self._name(server)}: expected a description, received {error!r:.200}"
        return None

    def _check_agreement(self) -> None:
        for server, other in self._known.items():
            mine, theirs = self._description, other
            if (mine.replicas, mine.tables) != (theirs.replicas, theirs.tables):
                raise ClusterConfigError(
                    f"{self._name(server)}: expected {mine.replicas} replicas and the tables "
                    f"{dict(mine.tables)}, as another server has, received {theirs.replicas} and "
                    f"{dict(theirs.tables)}"
                )

    def _copies(self, partition: int) -> list[int]:
        replicas = next(iter(self._known.values())).replicas if self._known else 1
        return ring.holders(partition, len(self._group.workers), replicas)

    def _connect(self, partition: int, copies: Sequence[int]) -> bool:
        """Connects a partition to the first of some servers that takes the connection."""
        for server in copies:
            if server in self._known and self._connect_to(partition, server):
                return True
            # It may have been started again, with other ports and keys.
            if self._problem_with(server) is None and self._connect_to(partition, server):
                return True
        return False

    def _problem_with(self, server: int) -> str | None:
        try:
            return self._ask(server)
        except TfdistError as error:
            return str(error)

    def _connect_to(self, partition: int, server: int) -> bool:
        store = self._known[server].stores.get(partition)
        if store is None or self._closed.is_set():
            return False
        address, incarnation, salt = store
        key = data_key(self._secret, "served table", str(partition), salt)
        try:
            self._client.connect(partition, address, key, incarnation, _CONNECT_WAIT)
        except tf.errors.OpError as error:
            _log.info("%s: %s", self._name(server), error.message)
            return False
        self._server_of[partition] = server
        return True

    def _keep(self) -> None:
        """Moves partitions from servers that are lost or silent to others."""
        returns = time.monotonic() + _RETURN
        lost: set[int] = set()
        while not self._closed.is_set():
            try:
                found = self._client.wait_for_lost(_LOOK)
                silent = self._client.silent(self._patience)
            except tf.errors.OpError:  # closed meanwhile
                return
            if found is not None:
                lost.add(found)
            lost = {partition for partition in lost if not self._move(partition, self._leave)}
            if silent is not None and self._may_leave(silent):
                self._move(silent, self._leave)
            if time.monotonic() >= returns:
                returns = time.monotonic() + _RETURN
                for partition, server in list(self._server_of.items()):
                    if server != self._copies(partition)[0]:
                        self._move(partition, self._return)

    def _may_leave(self, partition: int) -> bool:
        """Whether to leave a silent server: once in a while, and if there is another copy."""
        now = time.monotonic()
        if len(self._copies(partition)) < 2:
            return False
        if now < self._silenced.get(partition, 0.0):
            return False
        # A lookup that takes long anywhere must not go round for ever.
        self._silenced[partition] = now + self._timeout
        return True

    def _move(self, partition: int, how: Callable[[int], None]) -> bool:
        """Connects a partition elsewhere, in a thread; returns False if one does so already."""
        with self._lock:
            if partition in self._moving:
                return False
            self._moving.add(partition)
        threading.Thread(target=self._run, args=(how, partition), daemon=True).start()
        return True

    def _run(self, how: Callable[[int], None], partition: int) -> None:
        try:
            how(partition)
        except tf.errors.OpError:  # closed meanwhile
            if not self._closed.is_set():
                raise
        finally:
            with self._lock:
                self._moving.discard(partition)

    def _leave(self, partition: int) -> None:
        """Connects a partition to another copy; while there is none, its lookups fail in time."""
        left = self._server_of[partition]
        copies = self._copies(partition)
        at = copies.index(left)
        others = [*copies[at + 1 :], *copies[: at + 1]]  # the server that was left comes last
        deadline = time.monotonic() + self._timeout
        has_given_up = False
        while not self._closed.is_set():
            if has_given_up:
                # Lookups fail at once until a server answers.
                if all(self._problem_with(server) for server in others):
                    self._closed.wait(_RETRY)
                    continue
                self._client.readmit(partition)
            if self._connect(partition, others):
                now = self._server_of[partition]
                _log.warning(
                    "partition %d: %s is lost or silent, %s answers from now on",
                    *(partition, self._name(left), self._name(now)),
                )
                return
            if has_given_up or time.monotonic() >= deadline:
                has_given_up = True
                names = ", ".join(map(self._name, others))
                self._client.give_up(
                    partition,
                    f"partition {partition} of the tables: none of its servers answers: {names}",
                )
            self._closed.wait(_RETRY)

    def _return(self, partition: int) -> None:
        """Goes back to the first choice, if that answers: else one server has all the work."""
        first, now = self._copies(partition)[0], self._server_of[partition]
        if self._problem_with(first) is not None:
            return
        if not self._connect_to(partition, first) and not self._connect_to(partition, now):
            self._leave(partition)

    def _name(self, server: int) -> str:
        return f"table server {server} at {self._group.workers[server]}"
