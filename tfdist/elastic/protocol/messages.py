"""The requests of an elastic job's processes to each other."""

from __future__ import annotations

import dataclasses

from tfdist.control.service import Service


@dataclasses.dataclass(frozen=True)
class ElasticProbeRequest:
    """A process asks whether the callee lives, and if it is of the same job, in which generation.

    Here and in the other requests `fingerprint` is of the training addresses that the caller knows;
    for `nonce` and `proof` see `proofs`.
    """

    fingerprint: str
    nonce: str
    proof: str
    wait: float


@dataclasses.dataclass(frozen=True)
class ElasticFoundRequest:
    """A process takes part in the founding of an elastic job; see founders.py.

    `description` has texts by name, on which all members must agree; `start`, `least` and
    `patience` are the `StartSize` that the caller expects.
    """

    fingerprint: str
    process: str
    name: str
    address: str
    description: dict[str, str]
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
    established a generation itself (`holds_state`); the largest generation number that it has seen
    (`highest`); and the processes that it knows to be dead (`dead`).
    """

    fingerprint: str
    process: str
    name: str
    address: str
    description: dict[str, str]
    call: int
    number: int
    mark: str
    holds_state: bool
    highest: int
    dead: list[str]
    nonce: str
    proof: str
    wait: float


@dataclasses.dataclass(frozen=True)
class ElasticAddressRequest:
    """A member of the generation with this `mark` says where it listens for data connections."""

    process: str
    mark: str
    description: dict[str, str]
    data_address: str
    nonce: str
    proof: str
    wait: float


@dataclasses.dataclass(frozen=True)
class ElasticLeaveRequest:
    """The process whose `key` this is leaves its job: it counts as dead from now on."""

    key: str
    wait: float


@dataclasses.dataclass(frozen=True)
class ElasticRecordRequest:
    """A newcomer, `process`, asks for the record of a call that the members have ended, or a part.

    `part` is a part's digest, and `offset` the number of its first byte; an empty `part` asks for
    the digest of the record of call number `call`.
    """

    fingerprint: str
    process: str
    call: int
    part: str
    offset: int
    wait: float


ELASTIC = Service("Elastic", 1, "TFDIST_ELASTIC on every task or on none")
ELASTIC_PROBE = ELASTIC.method(ElasticProbeRequest)
ELASTIC_FOUND = ELASTIC.method(ElasticFoundRequest)
ELASTIC_FORM = ELASTIC.method(ElasticFormRequest)
ELASTIC_ADDRESS = ELASTIC.method(ElasticAddressRequest)
ELASTIC_LEAVE = ELASTIC.method(ElasticLeaveRequest)

RECORDS = Service("Records", 1, "TFDIST_ELASTIC on every task or on none")
ELASTIC_RECORD = RECORDS.method(ElasticRecordRequest)
