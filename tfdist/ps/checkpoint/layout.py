"""Where servers keep their snapshots: see `snapshot`."""

from __future__ import annotations

import re

import tensorflow as tf

_SNAPSHOT = re.compile(r"snapshot-(\d{8,12})\.npz")
_ROWS = re.compile(r"snapshot-(\d{8,12})\.rows")
_LOG = re.compile(r"rows-(\d{8,12})\.log")


def directory(root: str, server: int, servers: int) -> str:
    """Returns where a server keeps its snapshots."""
    return f"{root.rstrip('/')}/ps-{server}-of-{servers}"


def path(folder: str, number: int, kind: str) -> str:
    """Returns the path of a snapshot's file of a kind: "npz" or "rows"."""
    return f"{folder}/snapshot-{number:08d}.{kind}"


def manifest(root: str) -> str:
    """Returns the path of the record of what all servers have completed."""
    return f"{root.rstrip('/')}/manifest.json"


def numbers(folder: str) -> list[int]:
    """Returns the numbers of a server's snapshots, rising."""
    return _matching(folder, _SNAPSHOT)


def logs(folder: str, first: int) -> list[tuple[int, str]]:
    """Returns numbers and paths of a server's logs from number `first` on, rising."""
    return [(n, log_path(folder, n)) for n in _matching(folder, _LOG) if n >= first]


def log_path(folder: str, number: int) -> str:
    """Returns where a server keeps log `number`."""
    return f"{folder}/rows-{number:08d}.log"


def row_files(folder: str) -> list[int]:
    """Returns the numbers of a server's files of rows, rising."""
    return _matching(folder, _ROWS)


def _matching(folder: str, pattern: re.Pattern[str]) -> list[int]:
    if not tf.io.gfile.isdir(folder):
        return []
    matches = map(pattern.fullmatch, tf.io.gfile.listdir(folder))
    return sorted(int(match[1]) for match in matches if match)
