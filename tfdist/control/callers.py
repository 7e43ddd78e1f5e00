"""The fields of requests about their callers: the job's addresses, and a rank."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any


def fingerprint(addresses: Iterable[str]) -> str:
    """Returns 16 hex digits of a hash of a list of addresses."""
    return hashlib.sha256(json.dumps(list(addresses)).encode()).hexdigest()[:16]


def reason_to_refuse(request: Any, fingerprint: str, ranks: int | None = None) -> str | None:
    """Why a request is not one of this job's, or `None`.

    Args:
      request: any request with a fingerprint.
      fingerprint: of this task's cluster.
      ranks: number of the job's training tasks; `None` if the request has no rank.
    """
    if request.fingerprint != fingerprint:
        return "the caller has another cluster than this task"
    return None if ranks is None else reason_to_refuse_rank(request, ranks)


def reason_to_refuse_rank(request: Any, ranks: int) -> str | None:
    """Why a request's rank is not one of `ranks`, or `None`."""
    if 0 <= request.rank < ranks:
        return None
    return f"the caller says rank {request.rank}, expected a rank in [0, {ranks})"
