"""A set of ranks that are connected to each other, and its counters."""

import ctypes
import dataclasses
import threading
import weakref
from collections.abc import Sequence
from typing import TypedDict

import tensorflow as tf

from tfdist.ops import library
from tfdist.ops.library import Handle, c_structure

_TEXT_BYTES = 1024


@c_structure("communicator_stats")
class _Stats(ctypes.Structure):
    """Has the layout of `CommunicatorStats` in core/collectives/communicator.h."""

    _fields_ = [
        ("collectives", ctypes.c_uint64),
        ("bytes_sent", ctypes.c_uint64),
        ("bytes_received", ctypes.c_uint64),
        ("busy_nanoseconds", ctypes.c_uint64),
        ("rejected_connections", ctypes.c_uint64),
        ("chunks_sent", ctypes.c_uint64),
        ("bytes_sent_to_other_hosts", ctypes.c_uint64),
        ("chunks_resent", ctypes.c_uint64),
    ]


_C = library.CFunctions(
    "tfdist_communicator_",
    checked={
        "create": [
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.POINTER(Handle),
            ctypes.POINTER(ctypes.c_int),
        ],
        "reconfigure": [
            Handle,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.POINTER(ctypes.c_int),
        ],
        "connect": [
            Handle,
            ctypes.c_char_p,
            ctypes.c_uint64,
            ctypes.POINTER(ctypes.c_char_p),
            ctypes.c_int,
            ctypes.c_double,
        ],
        "status": [Handle],
    },
    plain={
        "abort": [Handle, ctypes.c_char_p],
        "leave": [Handle],
        "close": [Handle],
        "waiting": [Handle, ctypes.c_double, ctypes.c_char_p, ctypes.c_size_t],
        "stats": [Handle, ctypes.POINTER(_Stats)],
        "waits": [Handle, ctypes.POINTER(ctypes.c_uint64), ctypes.c_int],
        "take_longest_wait": [Handle, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t],
        "traffic": [
            Handle,
            ctypes.POINTER(ctypes.c_uint64),
            ctypes.POINTER(ctypes.c_uint64),
            ctypes.c_int,
        ],
    },
)


@dataclasses.dataclass(frozen=True)
class CommunicationStats:
    """Counters of one rank's communication.

    Attributes:
      collectives: finished collectives.
      bytes_sent: bytes of tensors sent to other ranks, without headers.
      bytes_received: bytes of tensors received from other ranks.
      busy_seconds: wall time during which at least one collective was pending; it includes waiting
        for slower ranks.
      rejected_connections: connections to the data port that did not prove this job's key.
      chunks_sent: number of chunks that carried `bytes_sent`; a chunk has at most 256 KB.
      bytes_sent_to_other_hosts: part of `bytes_sent`, to ranks with another host name.
      chunks_resent: chunks that another process of this host could not read in this one's memory,
        and that were sent instead: pages of a device driver, secret memory, or a system call
        filter. From the first on, that process is sent all chunks.
    """

    collectives: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    busy_seconds: float = 0.0
    rejected_connections: int = 0
    chunks_sent: int = 0
    bytes_sent_to_other_hosts: int = 0
    chunks_resent: int = 0


_by_handle: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


class CommunicatorEntry(TypedDict):
    """A communicator in the flight recorder's dumps; see `descriptions`."""

    rank: int
    size: int
    failure: str | None
    waiting: str | None


def descriptions() -> list[CommunicatorEntry]:
    """Returns the open communicators of this process, for the flight recorder; the oldest first.

    Each has its "rank" and "size", and as sentences or `None` the "failure" that ended it and what
    its oldest collective is "waiting" for.
    """
    # In one step, since other threads may make communicators.
    found = [reference() for reference in _by_handle.valuerefs()]
    still_open = [one for one in found if one is not None and not one.closed]
    return [one.describe() for one in sorted(still_open, key=lambda one: one.handle)]


class Communicator:
    """A fixed set of ranks that run collectives together.

    It listens for its peers as soon as it exists; `connect` makes it usable. It belongs to one
    generation of a job and fails as a whole: after a failure every collective raises that failure,
    until `reconfigure` gives it the ranks of the next generation.

    Args:
      rank: this process, 0 <= rank < size.
      size: number of ranks.
      port: TCP port of the data connections; 0 lets the kernel choose.
      interface: numeric address of this host to listen on; "" for all addresses.
      shared_memory: whether ranks whose addresses name the same host, and that run as the same
        user, communicate through shared memory where the system permits it. All other ranks
        communicate by TCP.
      resizable: whether the ranks may change while graphs use them: `reconfigure`. Shapes in a
        graph then do not depend on the number of ranks.

    Raises:
      tf.errors.InvalidArgumentError: rank or size out of range.
      tf.errors.UnavailableError: the port cannot be bound.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        port: int = 0,
        *,
        interface: str = "127.0.0.1",
        shared_memory: bool = True,
        resizable: bool = False,
    ):
        self.rank = rank
        self.size = size
        self.resizable = resizable
        self._listens_on = interface.encode(), port, int(shared_memory)
        handle, bound_port = Handle(), ctypes.c_int()
        _C.create(rank, size, *self._listens_on, ctypes.byref(handle), ctypes.byref(bound_port))
        self.handle = handle.value
        self.port = bound_port.value
        self.closed = False
        self._former = CommunicationStats()
        self._names = tuple(f"rank {other}" for other in range(size))
        self._former_waits: dict[str, float] = {}
        self._former_traffic: dict[str, tuple[int, int]] = {}
        # Held while the ranks change, in which counters would go back for a moment.
        self._changes = threading.Lock()
        _by_handle[self.handle] = self

    @staticmethod
    def of(handle: int) -> "Communicator":
        """Returns the communicator whose handle an op carries.

        Raises:
          tf.errors.FailedPreconditionError: it does not exist any more.
        """
        found = _by_handle.get(handle)
        if found is None:
            raise tf.errors.FailedPreconditionError(
                None, None, f"communicator {handle} was closed, or forgotten, before its ops"
            )
        return found

    @property
    def fixed_size(self) -> int | None:
        """The number of ranks; `None` if it may change."""
        return None if self.resizable else self.size

    def reconfigure(self, rank: int, size: int) -> None:
        """Disconnects, and listens for other ranks; `connect` makes it usable again.

        Functions that were traced with this communicator need no new trace: their collectives run
        among the new ranks. No collective may be running.

        Args:
          rank: this process among the new ranks, 0 <= rank < size.
          size: their number.

        Raises:
          tf.errors.FailedPreconditionError: it was closed, or is not resizable.

        Raises also the errors of the constructor.
        """
        if not self.resizable:
            raise tf.errors.FailedPreconditionError(
                None, None, f"rank {self.rank} of {self.size}: this communicator is not resizable"
            )
        with self._changes:
            self._reconfigure(rank, size)

    def _reconfigure(self, rank: int, size: int) -> None:
        former, former_waits, former_traffic = self._stats(), self._waits(), self._traffic()
        bound_port = ctypes.c_int()
        _C.reconfigure(self.handle, rank, size, *self._listens_on, ctypes.byref(bound_port))
        self.rank, self.size, self.port = rank, size, bound_port.value
        self._former, self._former_waits = former, former_waits
        self._former_traffic = former_traffic
        self._names = tuple(f"rank {other}" for other in range(size))

    def connect(
        self,
        key: bytes,
        generation: int,
        addresses: Sequence[str],
        timeout: float,
        names: Sequence[str] | None = None,
    ) -> None:
        """Connects to every other rank.

        Args:
          key: 32 secret bytes, the same on every rank.
          generation: number of this set of processes, the same on every rank.
          addresses: "host:port" of every rank's data port, in rank order.
          timeout: seconds.
          names: the names of the ranks in `waits`, in rank order; `None` means "rank 0" and so on.

        Raises:
          ValueError: the key has another length, or `names` another number of names.
          tf.errors.DeadlineExceededError: some ranks did not connect in time; names them.
          tf.errors.UnavailableError: a peer refused the connection.
        """
        if len(key) != 32:
            raise ValueError(f"expected a key of 32 bytes, received {len(key)}")
        if names is not None:
            if len(names) != self.size:
                raise ValueError(f"expected {self.size} names, received {len(names)}")
            self._names = tuple(names)
        texts = (ctypes.c_char_p * len(addresses))(*(a.encode() for a in addresses))
        _C.connect(self.handle, key, generation, texts, len(addresses), timeout)

    def check(self) -> None:
        """Raises the failure that ended this communicator, if one has."""
        _C.status(self.handle)

    def failed(self) -> bool:
        """Whether a failure, here or on a peer, has ended this communicator."""
        try:
            self.check()
        except tf.errors.OpError:
            return True
        return False

    def describe(self) -> CommunicatorEntry:
        """Returns its entry of `descriptions`."""
        failure = None
        try:
            self.check()
        except tf.errors.OpError as error:
            failure = error.message
        return {
            "rank": self.rank,
            "size": self.size,
            "failure": failure,
            "waiting": self.waiting(0.0),
        }

    def waiting(self, seconds: float) -> str | None:
        """Names the oldest collective that has waited for `seconds`, and the missing ranks."""
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        _C.waiting(self.handle, seconds, text, _TEXT_BYTES)
        return text.value.decode(errors="replace") or None

    def abort(self, why: str) -> None:
        """Ends every collective, here and on the peers, with `tf.errors.UnavailableError(why)`."""
        _C.abort(self.handle, why.encode())

    def leave(self) -> None:
        """Tells the peers that this rank starts no further collective; connections stay open."""
        _C.leave(self.handle)

    def close(self) -> None:
        """Ends pending collectives and closes the connections. May be called again.

        Peers that still need this rank get `tf.errors.UnavailableError`; they keep the data that
        was sent to them before.
        """
        self.closed = True
        self.leave()
        _C.close(self.handle)

    def stats(self) -> CommunicationStats:
        """Returns the counters since the constructor; collectives may be running."""
        with self._changes:
            return self._stats()

    def _stats(self) -> CommunicationStats:
        raw = _Stats()
        _C.stats(self.handle, ctypes.byref(raw))
        former = self._former
        return CommunicationStats(
            collectives=former.collectives + raw.collectives,
            bytes_sent=former.bytes_sent + raw.bytes_sent,
            bytes_received=former.bytes_received + raw.bytes_received,
            busy_seconds=former.busy_seconds + raw.busy_nanoseconds / 1e9,
            rejected_connections=former.rejected_connections + raw.rejected_connections,
            chunks_sent=former.chunks_sent + raw.chunks_sent,
            bytes_sent_to_other_hosts=former.bytes_sent_to_other_hosts
            + raw.bytes_sent_to_other_hosts,
            chunks_resent=former.chunks_resent + raw.chunks_resent,
        )

    def waits(self) -> dict[str, float]:
        """Returns how long this rank has waited for each other rank to start, by its name.

        That is the wall time in seconds, since the constructor, during which a collective was
        pending here that the other rank takes part in and had not started. It grows while the
        collective waits. A rank exchanges data with some of the others only, and knows nothing of
        ranks that it does not hear from: the sum over all ranks names the late one.
        """
        with self._changes:
            return self._waits()

    def _waits(self) -> dict[str, float]:
        waits = dict(self._former_waits)
        nanoseconds = (ctypes.c_uint64 * self.size)()
        _C.waits(self.handle, nanoseconds, self.size)
        for rank, name in enumerate(self._names):
            if rank != self.rank:
                waits[name] = waits.get(name, 0.0) + nanoseconds[rank] / 1e9
        return waits

    def take_longest_wait(self, name: str) -> str:
        """Returns in which collective this rank has waited longest for another one.

        Waits shorter than 1 ms do not count, nor do waits from before the last call for this rank,
        nor a wait that has not ended.

        Args:
          name: the other rank's, as `waits` calls it.

        Returns:
          The collective, such as "all_reduce 'dense/kernel'"; empty without such a wait.
        """
        with self._changes:
            if name not in self._names:
                return ""  # a rank that has left
            text = ctypes.create_string_buffer(_TEXT_BYTES)
            _C.take_longest_wait(self.handle, self._names.index(name), text, _TEXT_BYTES)
            return text.value.decode(errors="replace")

    def traffic(self) -> dict[str, tuple[int, int]]:
        """Returns the bytes of tensors sent to and received from each other rank, by its name.

        They count from the constructor on, without headers; a chunk counts as sent once it is
        queued.
        """
        with self._changes:
            return self._traffic()

    def _traffic(self) -> dict[str, tuple[int, int]]:
        found = dict(self._former_traffic)
        sent, received = (ctypes.c_uint64 * self.size)(), (ctypes.c_uint64 * self.size)()
        _C.traffic(self.handle, sent, received, self.size)
        for rank, name in enumerate(self._names):
            if rank != self.rank:
                before = found.get(name, (0, 0))
                found[name] = before[0] + sent[rank], before[1] + received[rank]
        return found

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
