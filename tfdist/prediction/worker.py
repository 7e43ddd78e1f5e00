"""One worker of a job: takes parts until all are there.

While a part is predicted, the records of the next one are read already, so a worker may have two
claims. It computes a part slowly, one batch at a time, if a record is bad or has killed a worker.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent import futures
from typing import Any

from tfdist._types import Nested
from tfdist.prediction import manifest
from tfdist.prediction.batches import Piece
from tfdist.prediction.claims import Claim, Claims
from tfdist.prediction.commits import is_there, publish, read_record, withdraw_vanished
from tfdist.prediction.folder import OutputFolder
from tfdist.prediction.part import PartMaker, PredictedPart, is_of_a_record
from tfdist.prediction.progress import PredictionProgress
from tfdist.prediction.workers import LivingWorker

_log = logging.getLogger("tfdist")
_MAX_COMMITS = 4  # at a time
_SHORTEST, _LONGEST = 0.05, 1.0  # seconds between two looks at the others' parts


class PredictionWorker:
    """This process's work in a job.

    Args:
      maker: of the parts.
      claims: of the job.
      worker: this process.
      progress: of the job.
    """

    def __init__(
        self, maker: PartMaker, claims: Claims, worker: LivingWorker, progress: PredictionProgress
    ) -> None:
        self._maker, self._claims, self._worker = maker, claims, worker
        self._folder, self._job = maker.folder, maker.job
        self._progress = progress
        self._commits = _Commits(claims)
        # Workers begin at different parts, and so meet less often.
        begin = zlib.crc32(worker.id.encode()) % max(1, self._job.parts)
        self._order = [*range(begin, self._job.parts), *range(begin)]

    def run(self) -> None:
        """Works until the job's end is marked.

        Raises:
          PredictionError: a record, the input or the model is bad.
          OSError: a file cannot be written.
        """
        remove_abandoned(self._folder, self._worker)
        try:
            self._reopen_if_vanished()
            with contextlib.closing(self._commits):
                self._take_until_success()
        except OSError as error:
            path = str(self._folder.path)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                text = "no space left; the finished parts stay, and the same call continues"
                raise OSError(error.errno, text, path) from error
            if error.errno == errno.ENOENT and not self._folder.description.exists():
                text = "the output folder was removed while the job ran; the same call begins anew"
                raise FileNotFoundError(error.errno, text, path) from error
            raise
        self._progress.show(now=True)

    def _take_until_success(self) -> None:
        pause = _SHORTEST
        while not self._folder.success.exists():
            self._maker.may_continue()
            done = self._folder.finished()
            self._progress.show()
            if len(done) == self._job.parts:
                has_worked = self._finish()
            else:
                has_worked = self._take_parts(done)
            pause = _SHORTEST if has_worked else min(2 * pause, _LONGEST)
            if not has_worked:
                time.sleep(pause)

    def _take_parts(self, done: set[int]) -> bool:
        """Computes parts, until there is none to take, or a part that needs care."""
        taken = _TakenParts(self._free_parts(done), self._claims)
        try:
            count = self._predict_ahead(taken)
        except BaseException:
            taken.end()
            taken.release_careful()
            raise
        careful = taken.end()
        if careful is None:
            return count > 0
        try:
            with contextlib.closing(PredictedPart(self._maker, careful)) as part:
                part.add_all_carefully()
                part.commit(part.metric_states())
        finally:
            self._claims.release(careful, is_done=self._is_done(careful.part))
        return True

    def _predict_ahead(self, taken: _TakenParts) -> int:
        """Computes parts with one pipeline; returns how many."""
        count = 0
        sizes = self._job.data.plan(0).sizes
        batches = self._maker.batches.ahead(taken.pieces(sizes))
        with contextlib.closing(batches), self._commits.all_done():  # type: ignore[type-var]
            while True:
                self._maker.may_continue()
                part = self._predict_next(batches, taken)
                if part is None:
                    return count
                count += 1
                taken.pop()
                self._commits.begin(part)
                self._progress.show()

    def _predict_next(self, batches: Iterator[Nested], taken: _TakenParts) -> PredictedPart | None:
        """Computes the next part of a pipeline; returns `None` at the end."""
        part = None
        try:
            batch = next(batches, None)
            if batch is None:
                return None
            part = PredictedPart(self._maker, taken.first())
            part.add(batch)
            while not part.is_whole:
                self._maker.may_continue()
                part.add(next(batches))
            whole, part = part, None
            return whole
        except Exception as error:
            if not is_of_a_record(error):
                raise
            # The record is found one by one.
            _log.info("part %d: %s", taken.first().part, error)
            taken.first_needs_care()
            return None
        finally:
            if part is not None:
                part.close()

    def _free_parts(self, done: set[int]) -> Iterator[Claim]:
        """Takes parts, one by one."""
        for part in self._order:
            if part in done or self._is_done(part):
                continue
            claim = self._claims.take(part)
            if claim is None:
                continue
            if self._is_done(part):
                self._claims.release(claim, is_done=True)
                continue
            yield claim

    def _is_done(self, part: int) -> bool:
        return self._folder.record(part).exists()

    def _finish(self) -> bool:
        """Marks the end of the job, unless another worker does; returns whether it has worked."""
        claim = self._claims.take_name("end")
        if claim is None:
            return False
        try:
            vanished = [p for p in range(self._job.parts) if withdraw_vanished(self._folder, p)]
            if vanished:
                names = [self._job.part_name(part) for part in vanished[:5]]
                _log.warning("%d parts have vanished, such as %s", len(vanished), names)
                return True
            records = [read_record(self._folder, part) for part in range(self._job.parts)]
            self._maker.rejections.check_end(
                sum(record.rows for record in records), sum(record.rejected for record in records)
            )
            for record in records:
                if self._maker.metrics.lacks_variables(record.metrics):
                    self._maker.make_metric_variables(record.part)
            metrics = self._maker.metrics.merged(record.metrics for record in records)
            manifest.write(self._folder, self._job, records, metrics)
            remove_abandoned(self._folder, self._worker)
        finally:
            self._claims.release(claim, is_done=True)
        return True

    def _reopen_if_vanished(self) -> None:
        """Continues a job that has ended, if files of it were removed since."""
        if not self._folder.success.exists():
            return
        are_there = all([is_there(self._folder, part) for part in range(self._job.parts)])
        if not are_there or not self._folder.manifest.exists():
            self._folder.success.unlink(missing_ok=True)


class _TakenParts:
    """The claims of a pipeline, whose thread takes them while this one predicts.

    Args:
      claims_of_free_parts: takes parts.
      claims: gives them back.
    """

    def __init__(self, claims_of_free_parts: Iterator[Claim], claims: Claims) -> None:
        self._free, self._claims = claims_of_free_parts, claims
        self._lock = threading.Lock()
        self._taken: deque[Claim] = deque()
        self._careful: Claim | None = None
        self._has_ended = False

    def pieces(self, sizes: tuple[int, ...]) -> Iterator[Piece]:
        """Yields whole parts, until there is none, or a part needs care."""
        while True:
            with self._lock:
                if self._has_ended:
                    return
                claim = next(self._free, None)
                if claim is None:
                    return
                if claim.deaths.is_careful:
                    self._careful = claim
                    return
                claim.note("fast", 0)
                self._taken.append(claim)
            yield Piece(claim.part, 0, sizes[claim.part])

    def first(self) -> Claim:
        """Returns the claim of the part whose batches come now."""
        return self._taken[0]

    def pop(self) -> Claim:
        """Removes that claim: its part is done."""
        return self._taken.popleft()

    def first_needs_care(self) -> None:
        """Leaves the part to `end`."""
        with self._lock:
            self._has_ended = True
            self.release_careful()
            self._careful = self._taken.popleft()

    def release_careful(self) -> None:
        """Gives back the part that needs care, if there is one."""
        if self._careful is not None:
            self._claims.release(self._careful, is_done=False)
            self._careful = None

    def end(self) -> Claim | None:
        """Gives all parts back; returns the claim of a part that needs care."""
        with self._lock:
            self._has_ended = True
            while self._taken:
                self._claims.release(self._taken.pop(), is_done=False)
            return self._careful


class _Commits:
    """Commits parts in threads of their own: the disk may take longer to sync than a part takes.

    Args:
      claims: gives back the claims of committed parts.
    """

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._pool = futures.ThreadPoolExecutor(_MAX_COMMITS, "tfdist-commit")
        self._waiting: deque[futures.Future[None]] = deque()

    def begin(self, part: PredictedPart) -> None:
        """Commits a part and closes it; raises the exception of an earlier one."""
        try:
            while len(self._waiting) >= _MAX_COMMITS or (self._waiting and self._waiting[0].done()):
                self._waiting.popleft().result()
        except BaseException:
            part.close()
            self._claims.release(part.claim, is_done=False)
            raise
        self._waiting.append(self._pool.submit(self._commit, part, part.metric_states()))

    @contextlib.contextmanager
    def all_done(self) -> Iterator[None]:
        """Waits at the end of a `with` block for all commits; raises the exception of the first."""
        try:
            yield
        finally:
            futures.wait(self._waiting)
            done, self._waiting = self._waiting, deque()
        for one in done:
            one.result()

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()

    def _commit(self, part: PredictedPart, metric_states: list[list[Any]]) -> None:
        is_done = False
        try:
            part.commit(metric_states)
            is_done = True
        finally:
            part.close()
            self._claims.release(part.claim, is_done=is_done)


def remove_abandoned(folder: OutputFolder, worker: LivingWorker) -> None:
    """Removes the files of dead workers, after it has completed what they have committed."""
    abandoned = [path for path, owner in folder.staged_files() if not worker.may_come_back(owner)]
    if abandoned:
        for part in folder.finished():
            with contextlib.suppress(FileNotFoundError):  # it was withdrawn in between
                publish(folder, read_record(folder, part))
    for path in abandoned:
        path.unlink(missing_ok=True)
    worker.remove_dead()
