"""The paths of snapshots and logs; `snapshot` has the overview."""

from __future__ import annotations

import re

import tensorflow as tf

_SNAPSHOT = re.compile(r"snapshot-(\d{8,12})\.npz")
_ROWS = re.compile(r"snapshot-(\d{8,12})\.rows")
_LOG = re.compile(r"rows-(\d{8,12})\.log")


def directory(root: str, server: int, servers: int) -> str:
    """Returns the directory of a server's snapshots."""
    return f"{root.rstrip('/')}/ps-{server}-of-{servers}"


def path(folder: str, number: int, kind: str) -> str:
    """Returns the path of a snapshot's file; `kind` is "npz" or "rows"."""
    return f"{folder}/snapshot-{number:08d}.{kind}"


def manifest(root: str) -> str:
    """Returns the path of the manifest: the record of the latest complete checkpoint."""
    return f"{root.rstrip('/')}/manifest.json"


def numbers(folder: str) -> list[int]:
    """Returns the numbers of a server's snapshots in ascending order."""
    return _matching(folder, _SNAPSHOT)


def logs(folder: str, first: int) -> list[tuple[int, str]]:
    """Returns numbers and paths of a server's logs from `first` on, in ascending order."""
    return [(n, log_path(folder, n)) for n in _matching(folder, _LOG) if n >= first]


def log_path(folder: str, number: int) -> str:
    """Returns the path of a server's log `number`."""
    return f"{folder}/rows-{number:08d}.log"


def values_path(log: str) -> str:
    """Returns the path of the values beside a log, which a log need not have."""
    return f"{log}.values"


def row_files(folder: str) -> list[int]:
    """Returns the numbers of a server's files of rows in ascending order."""
    return _matching(folder, _ROWS)


def _matching(folder: str, pattern: re.Pattern[str]) -> list[int]:
    try:
        names = tf.io.gfile.listdir(folder)
    except tf.errors.NotFoundError:
        return []
    matches = map(pattern.fullmatch, names)
    return sorted(int(match[1]) for match in matches if match)
