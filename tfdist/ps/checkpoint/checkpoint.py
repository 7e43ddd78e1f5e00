"""The persistent state of one server: its snapshots, and the redo log since the latest one."""

from __future__ import annotations

import logging
import threading
import time

import numpy as np
import tensorflow as tf

from tfdist.data.queue.master import TaskMaster
from tfdist.errors import CheckpointError
from tfdist.ops.ps.server import ParameterServer
from tfdist.ops.ps.snapshot import ServerSnapshot
from tfdist.ops.trace import events
from tfdist.ps.checkpoint import files, layout, row_chain, snapshot

_log = logging.getLogger("tfdist.ps")
# Maximum number of files of rows that make up a snapshot.
_MAX_CHAIN = 50
# A log is long if it has at least this size and more than the rows' (bytes).
_LONG_LOG = 1 << 30
# Seconds within which all servers save their part of a checkpoint.
_MAX_SPREAD = 60.0


class Checkpoints:
    """The snapshots of one server.

    The first snapshot has all rows of the tables, the following ones only the changed rows. All
    rows are written again once the changed ones are as many together, or after a failed snapshot.

    Args:
      store: the server.
      root: the job's `checkpoint_dir`.
      server: the server's index.
      servers: the number of servers.
      tasks: the master of the job's data tasks, if this server has it.

    Raises:
      CheckpointError: the directory is not writable, and there is nothing to restore.
    """

    def __init__(
        self,
        store: ParameterServer,
        root: str,
        server: int,
        servers: int,
        tasks: TaskMaster | None = None,
    ) -> None:
        self._tasks = tasks
        self._store = store
        self._root = root
        self._server = server
        self._servers = servers
        self._folder = layout.directory(root, server, servers)
        self._lock = threading.Lock()  # guards the following attributes
        self._chain: list[tuple[int, int, int]] = []  # number, checksum, rows
        self._latest = 0
        self._saved_at = 0.0
        self._log_number = 0
        self._saved_changes = 0
        try:
            snapshot.prepare(self._folder)
        except CheckpointError as error:
            if not (layout.numbers(self._folder) or layout.logs(self._folder, 0)):
                raise
            _log.error("%s; it continues from the readable files", error)

    def restore(self) -> str | None:
        """Restores the latest snapshot and the logs since then, and begins a new log.

        Call it before the store is started.

        Returns:
          A description of the restored snapshot; `None` if there was nothing.

        Raises:
          CheckpointError: there are files, but none is usable.
        """
        recorded, of_servers = snapshot.recorded(self._root)
        own = layout.numbers(self._folder)
        if of_servers not in (0, self._servers) and recorded > max(own, default=0):
            self._restore_others(recorded, of_servers)
            self._end_restore()
            self._begin_log(0)
            return f"checkpoint {recorded} of {of_servers} servers in {self._root}"
        latest = snapshot.read_latest(self._folder, self._apply)
        self._end_restore()
        replayed = self._replay(latest.log if latest else 0)
        self._begin_log(latest.log if latest else 0)
        if latest is None:
            return f"{replayed} pushes of rows in {self._folder}" if replayed else None
        self._latest = latest.number
        path = layout.path(self._folder, latest.number, "npz")
        self._saved_at = tf.io.gfile.stat(path).mtime_nsec / 1e9
        more = f", and {replayed} pushes of rows since" if replayed else ""
        return f"snapshot {latest.number} in {self._folder}{more}"

    def save(self, number: int, full: bool = False) -> dict[str, object]:
        """Writes a snapshot while the server continues.

        Args:
          number: the checkpoint's number. If the latest snapshot has it already, this call returns
            that one.
          full: write all rows.

        Returns:

        Raises also the errors of `snapshot.write`.
        """
        with self._lock:
            if number <= self._latest:
                path = layout.path(self._folder, self._latest, "npz")
                return {"file": path, "bytes": tf.io.gfile.stat(path).length}
            return self._save(number, full)

    def expected_numbers(self) -> tuple[int, int]:
        """Returns the first and the last valid number for `save`.

        A request for the latest snapshot may be repeated; another server may have the next one.
        """
        return self._latest, snapshot.next_number(self._root, self._servers)

    def save_now(self) -> dict[str, object]:
        """Writes a snapshot with the next number."""
        with self._lock:
            number = snapshot.next_number(self._root, self._servers)
            return self._save(number, full=False)

    @property
    def latest(self) -> tuple[int, float] | None:
        """The number of the latest snapshot, and its time in seconds since 1970; else `None`."""
        return (self._latest, self._saved_at) if self._latest else None

    def unsaved(self) -> bool:
        """Whether the store has changed since the latest snapshot."""
        return self._changes() > self._saved_changes

    def _changes(self) -> int:
        stats = self._store.stats()
        return stats.pushes + stats.edits + stats.assignments

    def log_has_failed(self) -> bool:
        """Whether rows were changed that are neither in a snapshot nor in the log."""
        return self._store.stats().log_failed > 0

    def log_is_long(self) -> bool:
        """Whether it would take longer to replay the log than to read the rows."""
        size = self._store.stats().log_bytes
        if size < _LONG_LOG:
            return False
        return size > sum(table.bytes for table in self._store.table_stats().values())

    def _save(self, number: int, full: bool) -> dict[str, object]:
        with events.span("checkpoint", f"snapshot {number} in {self._folder}"):
            return self._write(number, full)

    def _write(self, number: int, full: bool) -> dict[str, object]:
        changes = self._changes()
        # Before the values and the positions, which may then be further, never behind.
        tasks = self._tasks.state() if self._tasks is not None else ""
        base = None if full or self._chain_is_long() else self._chain[-1][:2]
        chain, self._chain = self._chain, []  # after a failure no file has the latest changes
        self._log_number += 1
        log = self._log_path(self._log_number)
        with self._store.checkpoint(base is not None, log) as held:
            checksum = None
            if held.tables:
                written = row_chain.write(self._folder, number, base, held.tables)
                checksum = written.checksum
                is_empty = base is not None and not (written.rows or written.removed)
                # Later files follow the last change, so that an idle job's chain does not grow.
                link = [] if is_empty else [(number, checksum, written.rows)]
                self._chain = [*(chain if base else []), *link]
            result = snapshot.write(
                self._folder,
                snapshot.Snapshot(
                    number,
                    held.shards,
                    held.progress,
                    held.unclaimed,
                    checksum,
                    self._log_number,
                    held.time,
                    tasks,
                    held.tasks,
                ),
            )
        self._store.saved()
        if self._tasks is not None:
            self._tasks.saved()
        self._latest = number
        self._saved_at = time.time()
        self._saved_changes = changes
        return result

    def _chain_is_long(self) -> bool:
        if not self._chain or len(self._chain) >= _MAX_CHAIN:
            return True
        changed = sum(rows for _, _, rows in self._chain[1:])
        return 0 < changed >= self._chain[0][2]

    def _apply(self, latest: snapshot.Snapshot) -> None:
        self._store.restore_nothing()
        if latest.rows is not None:
            self._restore_rows(self._folder, latest, 0, 1)
        self._store.restore(
            ServerSnapshot(
                latest.shards,
                latest.progress,
                latest.unclaimed,
                tasks=latest.positions,
                time=latest.time,
            )
        )
        self._restore_tasks(latest)

    def _restore_tasks(self, part: snapshot.Snapshot) -> None:
        if self._tasks is not None and part.tasks:
            self._tasks.restore(part.tasks, part.positions)

    def _restore_others(self, number: int, of_servers: int) -> None:
        """Restores this server's part of a checkpoint of another number of servers.

        The workers decide which shards belong here: all of them stay unclaimed until a worker
        creates them. The progress of pushes is not restored: it belongs to another job.
        """
        unclaimed = {}
        folders = [layout.directory(self._root, other, of_servers) for other in range(of_servers)]
        parts = [snapshot.read(layout.path(folder, number, "npz")) for folder in folders]
        # Each server had its own time; rows keep their age.
        time = max(part.time for part in parts)
        for folder, part in zip(folders, parts, strict=True):
            unclaimed.update({**part.unclaimed, **part.shards})
            if part.rows is not None:
                later = time - part.time if part.time else 0.0
                later = later if later > _MAX_SPREAD else 0.0
                self._restore_rows(folder, part, self._server, self._servers, later)
        self._store.restore(ServerSnapshot({}, np.zeros(0, np.uint64), unclaimed, time=time))
        self._restore_tasks(parts[0])  # ps 0 has them

    def _restore_rows(
        self,
        folder: str,
        part: snapshot.Snapshot,
        server: int,
        servers: int,
        later: float = 0.0,
    ) -> None:
        """Restores rows, with `later` seconds added to their time of use."""
        assert part.rows is not None
        indices: dict[str, int] = {}
        for table, rows in row_chain.read(folder, part.number, part.rows):
            try:
                if rows is None:
                    indices[table.name] = self._store.restore_table(table)
                    continue
                if later:
                    rows = rows.later(later)
                self._store.restore_rows(indices[table.name], rows, server, servers)
            except tf.errors.InvalidArgumentError as error:
                raise CheckpointError(
                    f"snapshot {part.number} in {folder}: {error.message}"
                ) from error

    def _end_restore(self) -> None:
        try:
            self._store.end_restore()
        except tf.errors.InvalidArgumentError as error:
            raise CheckpointError(f"{self._folder}: {error.message}") from error

    def _replay(self, first: int) -> int:
        replayed = 0
        for _, path in layout.logs(self._folder, first):
            try:
                records, left_out = self._store.replay_log(path)
            except tf.errors.OpError as error:
                raise CheckpointError(f"{path}: {error.message}") from error
            replayed += records
            if left_out:
                _log.warning(
                    "%s: its last %d bytes are not whole and left out; after a kill they are one "
                    "record, which was being written",
                    *(path, left_out),
                )
        return replayed

    def _begin_log(self, first: int) -> None:
        written = [number for number, _ in layout.logs(self._folder, 0)]
        self._log_number = max([first, *(number + 1 for number in written)])
        log = self._log_path(self._log_number)
        if log is None:
            _log.warning(
                "%s is no local path: changes of tables' rows after a snapshot are not kept",
                self._folder,
            )
        else:
            self._store.begin_log(log)

    def _log_path(self, number: int) -> str | None:
        return layout.log_path(self._folder, number) if files.is_local(self._folder) else None
