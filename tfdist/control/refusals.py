"""The refusals of a control server, and which of them it logs.

A task of the job that is refused must be seen in the log. A stranger may be refused a thousand
times a second, in as many words. So they do not share a budget: each rank has one, for calls in its
name that come from its host; so have the other callers on each host of the job; all others share
one.
"""

from __future__ import annotations

import asyncio
import collections
import enum
import itertools
import logging
import time
from concurrent import futures

from tfdist.config.cluster import Cluster
from tfdist.config.printing import printable_line
from tfdist.control import encoding, interfaces

_log = logging.getLogger("tfdist.control")
_PERIOD = 60.0  # s
# Different refusals that are logged in a period: in each budget of the job's own, and of strangers.
_MAX_OF_OURS = 10
_MAX_OF_STRANGERS = 20
# Texts that are remembered, so that each is logged once; and hosts that are counted.
_MAX_TEXTS = 1000
_MAX_HOSTS = 1000
# Names that are looked up at a time, and seconds for which a refusal waits for that.
_MAX_LOOKUPS = 16
_LOOKUP_TIMEOUT = 0.5


class Likely(enum.IntEnum):
    """How likely it is that a caller is a task of the job."""

    RANK = 0
    ON_ITS_HOSTS = 1
    STRANGER = 2


class Refusals:
    """Logs refusals, from one event loop.

    Args:
      cluster: the cluster, in which this task has an address.
      executor: where the resolver is asked for the hosts of ranks.
    """

    def __init__(self, cluster: Cluster, executor: futures.Executor) -> None:
        self._cluster = cluster
        self._executor = executor
        self._name = f"{cluster.task_name} at {cluster.address}"
        tasks = itertools.chain(*cluster.as_dict().values())
        self._hosts = set(map(interfaces.host_of, tasks))  # and their addresses, once known
        self._resolved: dict[int, asyncio.Future[list[str]]] = {}  # by rank
        self._texts: dict[str, None] = {}  # in order
        self._logged: collections.Counter[str] = collections.Counter()  # by budget, this period
        self._period_ends = time.monotonic() + _PERIOD
        self._left_out = 0
        self._left_out_hosts: set[str] = set()
        self._last: dict[tuple[Likely, int], str] = {}  # the less the better

    @property
    def last(self) -> str | None:
        """The latest refusal of those callers that are most likely tasks of the job.

        A refusal logged at a lower level tells less: it yields to any other of such callers.
        """
        return self._last[min(self._last)] if self._last else None

    async def add(
        self, host: str, body: bytes | None, reason: str, level: int = logging.WARNING
    ) -> None:
        """Logs a refusal, unless it was logged before or there are too many.

        Args:
          host: the caller's, a numeric address.
          body: the request, which may name a rank; None if it is malformed.
          reason: why it is refused.
          level: of the log line.
        """
        self.proceed()
        rank = _rank_in(body or b"")
        if body is None:
            text = f"refused a message from {host}: {reason}"
        elif rank is None or rank >= self._cluster.world_size:
            rank, text = None, f"refused a caller from {host}: {reason}"
        else:
            text = f"refused {self._cluster.name_of_rank(rank)}, calling from {host}: {reason}"
        if rank is not None and host in await self._addresses(rank):
            likely, budget, limit = Likely.RANK, f"rank {rank}", _MAX_OF_OURS
        elif host in self._hosts:
            likely, budget, limit = Likely.ON_ITS_HOSTS, f"host {host}", _MAX_OF_OURS
        else:
            likely, budget, limit = Likely.STRANGER, "strangers", _MAX_OF_STRANGERS
        self._last[likely, -level] = text
        if text in self._texts:
            return
        if self._logged[budget] >= limit:
            self._left_out += 1
            if len(self._left_out_hosts) < _MAX_HOSTS:
                self._left_out_hosts.add(host)
            return
        self._logged[budget] += 1
        self._texts[text] = None
        if len(self._texts) > _MAX_TEXTS:
            del self._texts[next(iter(self._texts))]
        _log.log(level, "%s: %s", self._name, printable_line(text))

    def proceed(self) -> None:
        """Logs at the end of a period how many refusals it left out. Call it now and then."""
        if time.monotonic() < self._period_ends:
            return
        if self._left_out:
            hosts = len(self._left_out_hosts)
            _log.warning(
                "%s: and %s other refused calls within %g s, from %s",
                self._name,
                f"{self._left_out:,}",
                _PERIOD,
                f"1 host: {next(iter(self._left_out_hosts))}"
                if hosts == 1
                else f"{hosts:,} hosts{' or more' if hosts == _MAX_HOSTS else ''}",
            )
        self._logged.clear()
        self._left_out = 0
        self._left_out_hosts.clear()
        self._period_ends = time.monotonic() + _PERIOD

    async def _addresses(self, rank: int) -> list[str]:
        """Returns the numeric addresses of a rank, as far as they are known in half a second."""
        under_way = sum(not future.done() for future in self._resolved.values())
        if rank not in self._resolved and under_way < _MAX_LOOKUPS:
            host = interfaces.host_of(self._cluster.address_of_rank(rank) or "")
            loop = asyncio.get_running_loop()
            self._resolved[rank] = loop.run_in_executor(self._executor, interfaces.resolve, host)
            # Only the first caller waits: a name without a resolver may take ten seconds.
            await asyncio.wait({self._resolved[rank]}, timeout=_LOOKUP_TIMEOUT)
        future = self._resolved.get(rank)
        if future is None or not future.done():
            return []
        found = future.result()
        if not found:
            del self._resolved[rank]  # the name may have an address later
        self._hosts.update(found)
        return found


class QuietBrokenCalls(logging.Filter):
    """Keeps from the log of gRPC the calls whose connections broke before their answers.

    gRPC logs each with a traceback, so that a stranger who leaves in time could fill the log.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        error = record.exc_info[1] if record.exc_info else None
        return type(error).__name__ != "ExecuteBatchError"


def _rank_in(body: bytes) -> int | None:
    """Returns the rank that the caller says it is, if the rank is not negative."""
    try:
        rank = encoding.decode_object(body).get("rank")
    except encoding.MessageError:
        return None
    return rank if type(rank) is int and rank >= 0 else None
