"""The requests of workers to parameter servers, and of these to each other."""

from __future__ import annotations

import dataclasses

from tfdist.control.service import Service


@dataclasses.dataclass(frozen=True)
class AttachRequest:
    """A worker requests a parameter server's data address; `config` is a PsConfig's text."""

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
class SnapshotRequest:
    """An observer, which is no task, requests a parameter server's snapshot `number`.

    Number 0 asks for the next number, and where the snapshots are.
    """

    fingerprint: str
    number: int
    wait: float


@dataclasses.dataclass(frozen=True)
class WaitsRequest:
    """A parameter server asks another one about its workers whose steps wait for others'."""

    fingerprint: str
    wait: float


PARAMETERS = Service("Parameters", 1, "a parameter server")
ATTACH = PARAMETERS.method(AttachRequest)
CHECKPOINT = PARAMETERS.method(CheckpointRequest)
SNAPSHOT = PARAMETERS.method(SnapshotRequest)
WAITS = PARAMETERS.method(WaitsRequest)
