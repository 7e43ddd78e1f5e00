"""How a newcomer reads the records of calls that the members have ended.

Members serve them beside their training, in messages of a megabyte. Parts that a newcomer has
already, because an earlier call left the same, are not sent again.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator

from tfdist.control.client import RefusedError, UnreachableError
from tfdist.control.held_calls import ClientContext
from tfdist.control.server import Handler
from tfdist.control.service import Method
from tfdist.elastic.peers import Peers
from tfdist.elastic.protocol import messages
from tfdist.elastic.records import CallRecords, Record, RecordGoneError, digest_of
from tfdist.errors import TfdistError

_log = logging.getLogger("tfdist.elastic")
_CHUNK = 1 << 20  # bytes
# A part is put together in memory before its digest is compared: a larger one cannot be read.
_MAX_PART = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # bytes
# Seconds for which a process that has read a record may be busy before it reads the next one, and
# for which it may read the parts of the last one. A process that waits asks again after about a
# second.
_BETWEEN, _AFTER_LAST = 15.0, 3.0
# Newcomers whose places are known. A caller may make up any number of them.
_MAX_READERS = 64


@dataclasses.dataclass
class _Reader:
    """A newcomer that reads records here.

    Attributes:
      asked: the last call whose record it has asked for.
      at: monotonic time at which it has got on.
    """

    asked: int
    at: float


class RecordServer:
    """Answers newcomers.

    Args:
      records: this process's.
      knows_job: whether a caller may read them: any process that may join may.
    """

    def __init__(
        self, records: CallRecords, knows_job: Callable[[messages.ElasticRecordRequest], bool]
    ) -> None:
        self._records = records
        self._knows_job = knows_job
        self._lock = threading.Lock()
        self._readers: dict[str, _Reader] = {}  # by process

    @property
    def is_read(self) -> bool:
        """Whether a newcomer is about to read records, as far as its last request tells."""
        now, ended = time.monotonic(), len(self._records)
        with self._lock:
            return any(
                now < reader.at + (_BETWEEN if reader.asked < ended else _AFTER_LAST)
                for reader in self._readers.values()
                if reader.asked <= ended  # else it waits for a call that has not ended
            )

    def answer(
        self, request: messages.ElasticRecordRequest, context: ClientContext
    ) -> dict[str, object]:
        """Answers one request.

        Returns:
          {"status": "here", "part" (the record's digest)} or {"status": "here", "bytes", "size"
          (of the whole part)}; {"status": "none"} if this process has not ended the call;
          {"status": "gone"} if it has no such part; or {"status": "refused", "reason"}.
        """
        if not self._knows_job(request):
            reason = (
                "only processes of this job are told what its calls of fit have left: expected the "
                "same training addresses in TF_CONFIG, or a shared secret (TFDIST_SECRET)"
            )
            return {"status": "refused", "reason": reason}
        if not request.part:
            head = self._records.head(request.call)
            self._note_call(request, head is not None)
            return {"status": "none"} if head is None else {"status": "here", "part": head}
        size = self._records.size(request.part)
        if size is None or request.offset < 0:
            return {"status": "gone"}
        if request.offset < size or not request.offset:
            self._note_part(request)
        try:
            content = self._records.read(request.part, request.offset, _CHUNK)
        except OSError as error:  # another member may have it
            _log.warning("a part of a record of an ended call cannot be read: %s", error)
            return {"status": "gone"}
        return {"status": "here", "bytes": content, "size": size}

    def _note_call(self, request: messages.ElasticRecordRequest, has_ended: bool) -> None:
        if request.call < 1:
            return
        now = time.monotonic()
        with self._lock:
            reader = self._readers.get(request.process)
            # A process that asks for the same record for ever makes no progress.
            if reader is not None and has_ended and request.call <= reader.asked:
                return
            if reader is None and len(self._readers) >= _MAX_READERS:
                oldest = min(self._readers, key=lambda name: self._readers[name].at)
                del self._readers[oldest]
            self._readers[request.process] = _Reader(request.call, now)

    def _note_part(self, request: messages.ElasticRecordRequest) -> None:
        with self._lock:
            reader = self._readers.get(request.process)
            if reader is not None:
                reader.at = time.monotonic()

    @property
    def handlers(self) -> dict[Method, Handler]:
        """The handler, by method."""
        return {messages.ELASTIC_RECORD: self.answer}


class _Gone(Exception):
    """A member has not all parts of a record."""


class MemberRecords:
    """Reads records of the members.

    Args:
      peers: the other processes.
      records: this process's, which get what is read.

    Attributes:
      heard: monotonic time at which a member has answered last.
    """

    def __init__(self, peers: Peers, records: CallRecords) -> None:
        self._peers = peers
        self._records = records
        self.heard = time.monotonic()

    def read(self, call: int) -> Record | None:
        """Returns the record of a call, all of whose parts this process then has.

        Args:
          call: its number, from 1.

        Returns:
          None if no member that answers has ended the call.

        Raises:
          RecordGoneError: no member has all parts of it.
          ClusterConfigError: the members refuse this process.
        """
        is_gone = False
        for address in self._members():
            reply = self._call(address, call, "", 0)
            if reply is None:
                continue
            if reply.get("status") != "here":
                continue
            try:
                return self._from(address, call, str(reply.get("part")))
            except UnreachableError:
                continue
            except _Gone:
                is_gone = True
        if is_gone:
            raise RecordGoneError(
                f"{self._peers.me.name}: no member has the results of call number {call} of fit, "
                "evaluate and predict"
            )
        return None

    def _members(self) -> Iterator[str]:
        """Yields the addresses of members that answer."""
        began = time.monotonic()
        others = self._peers.others()
        self._peers.ask(others, every=0.0)
        told: set[str] = set()
        while True:
            under_way = self._peers.probes.under_way(others)
            for address in others:
                answer = self._peers.probes.answer(address, began)
                if address not in told and answer is not None and answer.is_member:
                    told.add(address)
                    yield address
            if not under_way:
                return
            self._peers.pause(self._peers.timing.check)

    def _from(self, address: str, call: int, head: str) -> Record:
        """Reads a record of one member.

        Raises:
          UnreachableError: it does not answer any more.
          _Gone: it has not all parts.
        """
        try:
            record = Record.from_bytes(self._part(address, call, head))
        except ValueError as error:
            raise _Gone from error
        for part in record.parts:
            if part and self._records.size(part) is None:
                self._records.keep(self._part(address, call, part))
        return record

    def _part(self, address: str, call: int, digest: str) -> bytes:
        parts: list[bytes] = []
        received, whole = 0, None
        while True:
            reply = self._call(address, call, digest, received)
            if reply is None:
                raise UnreachableError("no answer")
            chunk, size = reply.get("bytes"), reply.get("size")
            if reply.get("status") != "here" or not isinstance(chunk, bytes):
                raise _Gone
            if type(size) is not int or size > _MAX_PART:
                raise _Gone
            # A size that grows, or pieces that get smaller and smaller, would never end.
            whole = size if whole is None else whole
            if size != whole or len(chunk) != min(_CHUNK, whole - received):
                raise _Gone
            parts.append(chunk)
            received += len(chunk)
            if received < whole:
                continue
            content = b"".join(parts)
            if digest_of(content) != digest:
                raise _Gone
            return content

    def _call(self, address: str, call: int, part: str, offset: int) -> dict[str, object] | None:
        request = messages.ElasticRecordRequest(
            self._peers.fingerprint,
            self._peers.me.process,
            call,
            part,
            offset,
            wait=0.0,
        )
        name = self._peers.names.get(address, address)
        try:
            reply = self._peers.probes.call(address, name, messages.ELASTIC_RECORD, request)
        except RefusedError:
            raise
        except (UnreachableError, TfdistError):
            return None  # it has ended, and perhaps another program has its address
        # Parts, too: they may take longer than a silent member is waited for.
        self.heard = time.monotonic()
        return reply
