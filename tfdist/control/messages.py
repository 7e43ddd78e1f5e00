"""The messages of the control plane: JSON objects, which `signing` authenticates."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PROTOCOL = 12
SERVICE = "tfdist.Control"
JOIN = f"/{SERVICE}/Join"
EXIT = f"/{SERVICE}/Exit"
ATTACH = f"/{SERVICE}/Attach"
CHECKPOINT = f"/{SERVICE}/Checkpoint"
STATS = f"/{SERVICE}/Stats"
EPOCH = f"/{SERVICE}/Epoch"
WAITS = f"/{SERVICE}/Waits"
STOP = f"/{SERVICE}/Stop"
TASK_OPEN = f"/{SERVICE}/TaskOpen"
TASK_BEGIN = f"/{SERVICE}/TaskBegin"
TASK_LEASE = f"/{SERVICE}/TaskLease"
TASK_REPORT = f"/{SERVICE}/TaskReport"
TASK_END = f"/{SERVICE}/TaskEnd"
TASK_STATE = f"/{SERVICE}/TaskState"
TASK_STATUS = f"/{SERVICE}/TaskStatus"
OF_TASKS = (TASK_OPEN, TASK_BEGIN, TASK_LEASE, TASK_REPORT, TASK_END, TASK_STATE, TASK_STATUS)
ADDRESS = f"/{SERVICE}/Address"
ELASTIC_PROBE = f"/{SERVICE}/ElasticProbe"
ELASTIC_FOUND = f"/{SERVICE}/ElasticFound"
ELASTIC_FORM = f"/{SERVICE}/ElasticForm"
ELASTIC_ADDRESS = f"/{SERVICE}/ElasticAddress"
ELASTIC_LEAVE = f"/{SERVICE}/ElasticLeave"
ELASTIC_RECORD = f"/{SERVICE}/ElasticRecord"
OF_ELASTIC = (
    ELASTIC_PROBE,
    ELASTIC_FOUND,
    ELASTIC_FORM,
    ELASTIC_ADDRESS,
    ELASTIC_LEAVE,
    ELASTIC_RECORD,
)
CLOCK = f"/{SERVICE}/Clock"
CHALLENGE = f"/{SERVICE}/Challenge"  # empty; the answer has "challenge", see `signing`
MAX_REQUEST_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 16 * 1024 * 1024

Request = TypeVar("Request", bound="DataclassInstance")


class MessageError(Exception):
    """A message does not follow this protocol; the text names the difference."""


@dataclasses.dataclass(frozen=True)
class JoinRequest:
    """A rank joins the rendezvous.

    `process` is unique per process, so that a restarted task is recognised; `attempt` is unique per
    rendezvous, so that a repeated call is. After `wait` seconds without success the answer is
    "waiting"; with `final` the rank is then no longer joined.
    """

    protocol: int
    rank: int
    world_size: int
    fingerprint: str
    data_address: str
    process: str
    attempt: str
    wait: float
    final: bool


@dataclasses.dataclass(frozen=True)
class AddressRequest:
    """Process `rank` of a launcher's tells its host, and asks for those of all; see
    `address_exchange`. `servers` of the `world_size` processes are parameter servers."""

    protocol: int
    rank: int
    world_size: int
    servers: int
    host: str
    process: str
    wait: float


@dataclasses.dataclass(frozen=True)
class ExitRequest:
    """A rank has finished `generation` of `rendezvous`; with `abandon`, another rank never will."""

    protocol: int
    rank: int
    rendezvous: str
    generation: int
    wait: float
    abandon: bool


@dataclasses.dataclass(frozen=True)
class AttachRequest:
    """A worker requests a parameter server's data address; `config` is a PsConfig's text."""

    protocol: int
    rank: int
    world_size: int
    fingerprint: str
    process: str
    config: str
    wait: float


@dataclasses.dataclass(frozen=True)
class CheckpointRequest:
    """The chief, `process`, requests a parameter server's part of checkpoint `number`."""

    fingerprint: str
    process: str
    number: int
    wait: float


@dataclasses.dataclass(frozen=True)
class StatsRequest:
    """A request for a parameter server's statistics."""

    protocol: int
    wait: float


@dataclasses.dataclass(frozen=True)
class EpochRequest:
    """A worker posts its state at the end of an epoch; see ps/epochs/rounds.py for `phase`.

    The state comes in `parts` requests, each with the next piece of the text in `data`. The answer
    to the last one is the round's, or "waiting" after `wait` seconds. A request of 0 parts posts
    nothing and only requests that answer.
    """

    protocol: int
    fingerprint: str
    process: str
    rank: int
    fit: int
    epoch: int
    phase: int
    stop: bool
    part: int
    parts: int
    data: str
    wait: float


@dataclasses.dataclass(frozen=True)
class WaitsRequest:
    """A parameter server asks another one which workers' steps wait there for which others'."""

    protocol: int
    fingerprint: str
    wait: float


@dataclasses.dataclass(frozen=True)
class StopRequest:
    """A rank proposes the last step of the job, or asks for it; see `stop_board`.

    `last_step` is the proposal and 0 in a question; `stored` is what this rank has stored, or 0;
    `noticed` says that this rank was told to end.
    """

    protocol: int
    fingerprint: str
    rank: int
    last_step: int
    stored: int
    noticed: bool
    wait: float


@dataclasses.dataclass(frozen=True)
class TaskOpenRequest:
    """A worker, `process`, wants to share a queue of data tasks; see tasks/master.py.

    `digest` identifies what it expects of the queue. In `parts` requests, each with the next piece
    of the text in `data`, it describes the queue; a request of 0 parts describes nothing.
    """

    protocol: int
    fingerprint: str
    process: str
    rank: int
    queue: str
    digest: str
    part: int
    parts: int
    data: str
    wait: float


@dataclasses.dataclass(frozen=True)
class TaskBeginRequest:
    """A worker begins an epoch of a queue, after `ended`, or its `fit`, counted from 1."""

    protocol: int
    fingerprint: str
    process: str
    rank: int
    queue: str
    ended: int
    fit: int
    wait: float


@dataclasses.dataclass(frozen=True)
class TaskLeaseRequest:
    """A worker asks for a task of an epoch; with `waits` it waits for the others at the end."""

    protocol: int
    fingerprint: str
    process: str
    rank: int
    queue: str
    epoch: int
    waits: bool
    wait: float


@dataclasses.dataclass(frozen=True)
class TaskReportRequest:
    """A worker is alive, and has trained records.

    `held` is a JSON list: for each lease its id and how many of the task's records are trained.
    `released` is a JSON list of the leases that it gives back; with `failed`, because it dies.
    `refused` is another one, of those that it gives back because a server has refused their push.
    """

    protocol: int
    fingerprint: str
    process: str
    rank: int
    queue: str
    held: str
    released: str
    refused: str
    failed: bool
    wait: float


@dataclasses.dataclass(frozen=True)
class TaskEndRequest:
    """A worker asks whether all tasks of the last epoch, `epoch`, are done.

    With `idle` it trains nothing more of what it has. With `waits` it waits for the others' tasks,
    too.
    """

    protocol: int
    fingerprint: str
    process: str
    rank: int
    queue: str
    epoch: int
    idle: bool
    waits: bool
    wait: float


@dataclasses.dataclass(frozen=True)
class TaskStateRequest:
    """A worker asks for the state of all queues; or rank 0 sets it, in `parts`."""

    protocol: int
    fingerprint: str
    process: str
    rank: int
    part: int
    parts: int
    data: str
    wait: float


@dataclasses.dataclass(frozen=True)
class TaskStatusRequest:
    """A request for what `tfdist tasks` shows."""

    protocol: int
    wait: float


@dataclasses.dataclass(frozen=True)
class ElasticProbeRequest:
    """A process asks whether the callee lives, and if it is of the same job, in which generation.

    Here and in the other requests `fingerprint` is of the training addresses that the caller knows;
    for `nonce` and `proof` see `proofs`.
    """

    protocol: int
    fingerprint: str
    nonce: str
    proof: str
    wait: float


@dataclasses.dataclass(frozen=True)
class ElasticFoundRequest:
    """A process takes part in the founding of an elastic job; see founders.py.

    `description` is a JSON object of texts, on which all members must agree; `start`, `least` and
    `patience` are the `StartSize` that the caller expects.
    """

    protocol: int
    fingerprint: str
    process: str
    name: str
    address: str
    description: str
    start: int
    least: int
    patience: float
    wait: float


@dataclasses.dataclass(frozen=True)
class ElasticFormRequest:
    """A process wants to be a member of the next generation.

    A newcomer has no `proof`. It waits in the call number `call` of `fit`, from 1, or in none (0):
    see `tfdist.elastic.calls`. Only of a caller with a proof are believed: `number` and `mark` of
    the latest generation that it knows to be established (`Generation.mark`), that it has
    established a generation itself (`holds_state`), the largest generation number that it has seen
    (`highest`), and the processes that it knows to be dead (`dead`, a JSON list).
    """

    protocol: int
    fingerprint: str
    process: str
    name: str
    address: str
    description: str
    call: int
    number: int
    mark: str
    holds_state: bool
    highest: int
    dead: str
    nonce: str
    proof: str
    wait: float


@dataclasses.dataclass(frozen=True)
class ElasticAddressRequest:
    """A member of the generation with this `mark` says where it listens for data connections."""

    protocol: int
    process: str
    mark: str
    description: str
    data_address: str
    nonce: str
    proof: str
    wait: float


@dataclasses.dataclass(frozen=True)
class ElasticLeaveRequest:
    """The process whose `key` this is leaves its job: it counts as dead from now on."""

    protocol: int
    key: str
    wait: float


@dataclasses.dataclass(frozen=True)
class ElasticRecordRequest:
    """A newcomer, `process`, asks for the record of a call that the members have ended, or a part.

    `part` is a part's digest, and `offset` the number of its first byte; an empty `part` asks for
    the digest of the record of call number `call`.
    """

    protocol: int
    fingerprint: str
    process: str
    call: int
    part: str
    offset: int
    wait: float


@dataclasses.dataclass(frozen=True)
class ClockRequest:
    """A task asks any other one for its clock; see `clock`."""

    protocol: int
    wait: float


REQUESTS: dict[str, type[Any]] = {
    CLOCK: ClockRequest,
    JOIN: JoinRequest,
    EXIT: ExitRequest,
    ATTACH: AttachRequest,
    CHECKPOINT: CheckpointRequest,
    STATS: StatsRequest,
    EPOCH: EpochRequest,
    WAITS: WaitsRequest,
    STOP: StopRequest,
    TASK_OPEN: TaskOpenRequest,
    TASK_BEGIN: TaskBeginRequest,
    TASK_LEASE: TaskLeaseRequest,
    TASK_REPORT: TaskReportRequest,
    TASK_END: TaskEndRequest,
    TASK_STATE: TaskStateRequest,
    TASK_STATUS: TaskStatusRequest,
    ADDRESS: AddressRequest,
    ELASTIC_PROBE: ElasticProbeRequest,
    ELASTIC_FOUND: ElasticFoundRequest,
    ELASTIC_FORM: ElasticFormRequest,
    ELASTIC_ADDRESS: ElasticAddressRequest,
    ELASTIC_LEAVE: ElasticLeaveRequest,
    ELASTIC_RECORD: ElasticRecordRequest,
}


def wire_name(kind: type[Any]) -> str:
    """Returns the name of a kind of request in its method, in proofs and in errors."""
    return kind.__name__.removesuffix("Request")


def encode(message: Any) -> bytes:
    """Returns a dataclass or dict as JSON bytes."""
    fields = message if isinstance(message, dict) else dataclasses.asdict(message)
    return json.dumps(fields).encode()


def decode_object(body: bytes) -> dict[str, Any]:
    """Returns the JSON object in `body`, all of whose texts UTF-8 can encode.

    Raises:
      MessageError: it has something else.
    """
    try:
        message = json.loads(body)
        # Fails for a lone surrogate, which nobody could hash, send or print later.
        json.dumps(message, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise MessageError(
            f"expected a JSON object, received {len(body)} bytes with half of a surrogate pair"
        ) from None
    # RecursionError: thousands of nested brackets.
    except (ValueError, RecursionError):
        raise MessageError(
            f"expected a JSON object, received {len(body)} bytes of no JSON"
        ) from None
    if not isinstance(message, dict):
        raise MessageError(f"expected a JSON object, received {type(message).__name__}")
    return message


def decode(kind: type[Request], body: bytes) -> Request:
    """Returns the `kind` of request in `body`.

    Raises:
      MessageError: a field has another type, or a number is none that a float can hold.
    """
    message = decode_object(body)
    types: dict[object, type | tuple[type, ...]] = {
        "int": int,
        "float": (int, float),
        "str": str,
        "bool": bool,
    }
    values = {}
    for field in dataclasses.fields(kind):
        value = message.get(field.name)
        matches = isinstance(value, types[field.type])
        if not matches or (isinstance(value, bool) and field.type != "bool"):
            raise MessageError(
                f"{wire_name(kind)}: expected {field.name} to be {field.type}, received "
                f"{repr(value)[:80]}"
            )
        if field.type == "float" and not _is_finite(value):
            raise MessageError(
                f"{wire_name(kind)}: expected {field.name} to be a finite number, received "
                f"{repr(value)[:80]}"
            )
        values[field.name] = value
    return kind(**values)


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that no float can hold
        return False


def reason_to_refuse(
    request: Any, fingerprint: str | None = None, ranks: int | None = None
) -> str | None:
    """Why a request is not one of this job's, or `None`.

    Args:
      request: any message.
      fingerprint: of this task's cluster; `None` if the message has none.
      ranks: number of the job's training tasks; `None` if the message has no rank.
    """
    if request.protocol != PROTOCOL:
        return (
            f"the caller speaks control protocol {request.protocol}, this task {PROTOCOL}: "
            "expected the same tfdist version on every task"
        )
    if fingerprint is not None and request.fingerprint != fingerprint:
        return "the caller has another cluster than this task"
    if ranks is not None and not 0 <= request.rank < ranks:
        return f"the caller says rank {request.rank}, expected a rank in [0, {ranks})"
    return None


def fingerprint(addresses: Iterable[str]) -> str:
    """Returns 16 hex digits of a hash of a list of addresses."""
    return hashlib.sha256(json.dumps(list(addresses)).encode()).hexdigest()[:16]
