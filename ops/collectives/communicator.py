"""The Python face of the C++ communicator."""

import ctypes
import dataclasses
import weakref
from collections.abc import Sequence

import tensorflow as tf

from tfdist.ops import library

_HANDLE = ctypes.c_int64
_TEXT_BYTES = 1024


class _Stats(ctypes.Structure):
    """Laid out as `CommunicatorStats` in core/collectives/communicator.h."""

    _fields_ = [
        ("collectives", ctypes.c_uint64),
        ("bytes_sent", ctypes.c_uint64),
        ("bytes_received", ctypes.c_uint64),
        ("busy_nanoseconds", ctypes.c_uint64),
        ("rejected_connections", ctypes.c_uint64),
        ("chunks_sent", ctypes.c_uint64),
        ("bytes_sent_to_other_hosts", ctypes.c_uint64),
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
            ctypes.POINTER(_HANDLE),
            ctypes.POINTER(ctypes.c_int),
        ],
        "connect": [
            _HANDLE,
            ctypes.c_char_p,
            ctypes.c_uint64,
            ctypes.POINTER(ctypes.c_char_p),
            ctypes.c_int,
            ctypes.c_double,
        ],
        "status": [_HANDLE],
    },
    plain={
        "abort": [_HANDLE, ctypes.c_char_p],
        "leave": [_HANDLE],
        "close": [_HANDLE],
        "waiting": [_HANDLE, ctypes.c_double, ctypes.c_char_p, ctypes.c_size_t],
        "stats": [_HANDLE, ctypes.POINTER(_Stats)],
    },
)


@dataclasses.dataclass(frozen=True)
class CommunicationStats:
    """What one rank has communicated so far.

    Attributes:
      collectives: finished collectives.
      bytes_sent: bytes of tensors sent to other ranks, without headers.
      bytes_received: bytes of tensors received from other ranks.
      busy_seconds: wall time during which at least one collective was pending; it includes waiting
        for slower ranks.
      rejected_connections: connections to the data port that did not prove this job's key.
      chunks_sent: in how many parts of at most 256 KB.
      bytes_sent_to_other_hosts: those of `bytes_sent` that left for a rank with another host name.
    """

    collectives: int
    bytes_sent: int
    bytes_received: int
    busy_seconds: float
    rejected_connections: int
    chunks_sent: int = 0
    bytes_sent_to_other_hosts: int = 0


_by_handle: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


class Communicator:
    """A fixed set of ranks that run collectives together.

    Listens for its peers from its creation on; `connect` makes it usable. It belongs to one
    generation of a job and dies as a whole: after a failure every collective raises that failure.

    Args:
      rank: this process, 0 <= rank < size.
      size: number of ranks.
      port: TCP port of the data connections; 0 lets the kernel choose.
      interface: numeric address of this host to listen on; "" for all there are.
      shared_memory: whether ranks whose addresses name the same host, and which run as the same
        user, talk through memory that they share, where the system lets them; else by TCP, as ranks
        of different hosts do.

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
    ):
        self.rank = rank
        self.size = size
        handle, bound_port = _HANDLE(), ctypes.c_int()
        _C.create(
            *(rank, size, interface.encode(), port, int(shared_memory)),
            *(ctypes.byref(handle), ctypes.byref(bound_port)),
        )
        self.handle = handle.value
        self.port = bound_port.value
        self.closed = False
        _by_handle[self.handle] = self

    @staticmethod
    def of(handle: int) -> "Communicator":
        """Returns the communicator whose number an op carries.

        Raises:
          tf.errors.FailedPreconditionError: there is none any more.
        """
        found = _by_handle.get(handle)
        if found is None:
            raise tf.errors.FailedPreconditionError(
                None, None, f"communicator {handle} was closed, or forgotten, before its ops"
            )
        return found

    def connect(
        self, key: bytes, generation: int, addresses: Sequence[str], timeout: float
    ) -> None:
        """Connects to every other rank.

        Args:
          key: 32 secret bytes, the same on every rank.
          generation: number of this set of processes, the same on every rank.
          addresses: "host:port" of every rank's data port, in rank order.
          timeout: seconds.

        Raises:
          tf.errors.DeadlineExceededError: names the ranks that were not there in time.
          tf.errors.UnavailableError: a peer refused the connection.
        """
        if len(key) != 32:
            raise ValueError(f"expected a key of 32 bytes, received {len(key)}")
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

    def waiting(self, seconds: float) -> str | None:
        """Names the oldest collective that waits for longer, and the missing ranks; or `None`."""
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
        """Ends what is pending and closes the connections. May be called again.

        Peers that still need this rank get `tf.errors.UnavailableError`; what they have been sent
        already they keep.
        """
        self.closed = True
        self.leave()
        _C.close(self.handle)

    def stats(self) -> CommunicationStats:
        """The counters, also while collectives run."""
        raw = _Stats()
        _C.stats(self.handle, ctypes.byref(raw))
        return CommunicationStats(
            collectives=raw.collectives,
            bytes_sent=raw.bytes_sent,
            bytes_received=raw.bytes_received,
            busy_seconds=raw.busy_nanoseconds / 1e9,
            rejected_connections=raw.rejected_connections,
            chunks_sent=raw.chunks_sent,
            bytes_sent_to_other_hosts=raw.bytes_sent_to_other_hosts,
        )

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, *exc_info) -> None:
        self.close()
