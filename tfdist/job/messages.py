"""The requests of a fixed job's ranks to rank 0."""

from __future__ import annotations

import dataclasses

from tfdist.control.service import Service


@dataclasses.dataclass(frozen=True)
class JoinRequest:
    """A rank joins the rendezvous.

    `process` is unique per process, so that a restarted task is recognised; `attempt` is unique per
    rendezvous, so that a repeated call is. After `wait` seconds without success the answer is
    "waiting"; with `final` the rank is then no longer joined.
    """

    rank: int
    world_size: int
    fingerprint: str
    data_address: str
    process: str
    attempt: str
    wait: float
    final: bool


@dataclasses.dataclass(frozen=True)
class ExitRequest:
    """A rank has finished `generation` of `rendezvous`; with `abandon`, another rank never will."""

    rank: int
    rendezvous: str
    generation: int
    wait: float
    abandon: bool


@dataclasses.dataclass(frozen=True)
class AddressRequest:
    """Process `rank` of a launcher's tells its host, and asks for all processes' hosts; see
    `address_exchange`. `servers` of the `world_size` processes are parameter servers."""

    rank: int
    world_size: int
    servers: int
    host: str
    process: str
    wait: float


RENDEZVOUS = Service("Rendezvous", 1, "rank 0 of its job")
JOIN = RENDEZVOUS.method(JoinRequest)
EXIT = RENDEZVOUS.method(ExitRequest)

ADDRESSES = Service("Addresses", 1, "the task that collects the hosts of its job")
ADDRESS = ADDRESSES.method(AddressRequest)
