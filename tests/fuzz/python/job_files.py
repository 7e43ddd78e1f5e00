"""Files that commands read of a job: the job file, dumps, and the parts of a timeline.

Input: a byte for the kind of file, then its content, or how a right one is altered. It is read, or
refused with the error that the reader documents, which names the file.
"""

import functools
import tempfile
from pathlib import Path

from altered_json import altered

from tfdist.config.job_file import JobFile
from tfdist.errors import ClusterConfigError
from tfdist.observe import dumps
from tfdist.observe.clock import Offset
from tfdist.observe.timeline import parts


def run(data: bytes) -> None:
    readers = (_job_file, _dump, _part)
    form, content = data[0] if data else 0, data[1:]
    if form >= 128:
        # Of a part only the first line.
        first, end, rest = _right()[form % 3].partition(b"\n")
        content = altered(first, content) + end + rest
    with tempfile.TemporaryDirectory() as folder:
        readers[form % 3](Path(folder), content)


def _job_file(folder: Path, content: bytes) -> None:
    path = folder / "job.json"
    path.write_bytes(content)
    path.chmod(0o600)
    try:
        found = JobFile.read(path)
    except ClusterConfigError as error:
        assert str(path) in str(error)
        return
    assert isinstance(found.cluster, str)
    assert all(isinstance(address, str) for address in found.metrics.values())


def _dump(folder: Path, content: bytes) -> None:
    (folder / "worker-0.json").write_bytes(content)
    try:
        found = dumps.read_all(folder)
    except ValueError as error:
        assert "worker-0.json" in str(error)
        return
    assert len(found) == 1


def _part(folder: Path, content: bytes) -> None:
    path = folder / "worker-0.part"
    path.write_bytes(content)
    try:
        parts.read_part(path)
    except ValueError as error:
        assert path.name in str(error)


def seeds() -> list[bytes]:
    whole = [bytes([number]) + content for number, content in enumerate(_right())]
    nested = [bytes([number]) + b"[" * 2000 for number in range(3)]
    changed = [bytes([128 + number, number // 3, number]) for number in range(96)]
    return [*whole, *nested, *changed]


@functools.cache
def _right() -> list[bytes]:
    """A job file, a dump and a part of a timeline, as tfdist writes them."""
    with tempfile.TemporaryDirectory() as folder:
        return _written(Path(folder))


def _written(folder: Path) -> list[bytes]:
    with JobFile("{}", "secret", None, "/tmp", {"worker 0": "host:1"}).written(
        folder / "seed"
    ) as path:
        job = path.read_bytes()
    event = {"sequence": 1, "state": "started"}
    thread = {"name": "MainThread", "main": True, "stack": []}
    dump = dumps.Dump(
        "worker 0", 0, ["worker 0"], ["ps 0"], False, 1, "host", {"tfdist": "1"}, 1.5, 2, ["asked"],
        False, None, [{"rank": 0, "size": 2}], [event], 0, [thread],
    )  # fmt: skip
    header = parts.Header("worker 0", 0, ["worker 0"], 1, "host", "1", "domain", 1, 2)
    writer = parts.PartWriter(folder / "job.trace", header)
    writer.clock(Offset("worker 0", 1, 2, 3))
    writer.close()
    part = next(folder.glob("*.parts/*.part")).read_bytes()
    return [job, dump.write(folder).read_bytes(), part]
