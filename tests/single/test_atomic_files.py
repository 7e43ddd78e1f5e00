"""Files that are replaced at once: always whole, without litter, and never by a former term."""

from __future__ import annotations

import errno
import itertools
import os
import random
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from support.tiers import rounds
from tfdist import atomic_files
from tfdist.atomic_files import Term

NAME = "best.keras"
# Each call of these is one moment at which a process may stop.
CALLS = ("link", "listdir", "replace", "unlink", "fsync")


def term_of(path: str) -> Term | None:
    """The term is the first line of these files."""
    try:
        return Term("job", int(Path(path).read_text().partition("\n")[0]))
    except (ValueError, FileNotFoundError):
        return None


def replace(path, number, content="", former=None, term=True):
    """Replaces a file in two writes, as a process of a term."""

    def write(new: str) -> None:
        with open(new, "x") as file:
            file.write(f"{number}\n")
        with open(new, "r+") as file:
            file.write(f"{number}\n{content}")

    own = Term("job", number) if term else None
    return atomic_files.replace(str(path), write, former=former, term=own, term_of=term_of)


def litter(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def test_the_new_content_and_the_former(tmp_path):
    path, former = tmp_path / NAME, tmp_path / "before"
    for number in range(3):
        assert replace(path, number, "x", former=str(former), term=False)
        assert path.read_text() == f"{number}\nx"
        assert not number or former.read_text() == f"{number - 1}\nx"
    assert not litter(tmp_path)


def test_names_differ_and_end_as_the_file(tmp_path):
    names = []
    for name in (NAME, NAME, "x" * 243 + ".weights.h5", "ä" * 120 + ".weights.h5"):
        atomic_files.replace(
            str(tmp_path / name), lambda new: names.append(Path(new).name) or Path(new).touch()
        )
    assert len(set(names)) == 4
    assert [name.endswith(NAME) for name in names[:2]] == [True, True]
    assert all(name.endswith(".weights.h5") for name in names[2:])
    assert not litter(tmp_path)


def test_a_failed_write_leaves_nothing(tmp_path):
    path = tmp_path / NAME
    replace(path, 1, term=False)

    def fail(new):
        Path(new).write_text("part")
        raise KeyError("no such layer")

    with pytest.raises(KeyError, match="no such layer"):
        atomic_files.replace(str(path), fail)
    assert path.read_text() == "1\n"
    assert not litter(tmp_path)


def test_a_full_disk_names_the_file(tmp_path):
    path = tmp_path / NAME
    replace(path, 1, term=False)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="cannot be written: File too large") as caught:
            replace(path, 2, "x" * 5000, term=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(path))
    assert path.read_text() == "1\n"
    assert not litter(tmp_path)


def test_too_little_space_names_the_file(tmp_path):
    path, written = tmp_path / NAME, []
    with pytest.raises(OSError, match="expected 1,000,000,000,000,000,000 bytes of free") as caught:
        atomic_files.replace(str(path), written.append, needs=10**18)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert not written
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_still_open_frees_its_space(tmp_path):
    """As HDF5 leaves it after a failure."""
    held = []

    def fail(new):
        held.append(open(new, "wb", buffering=0))  # noqa: SIM115
        held[0].write(bytes(100_000))
        raise OSError(errno.ENOSPC, "")

    with pytest.raises(OSError, match="No space left on device"):
        atomic_files.replace(str(tmp_path / NAME), fail)
    with held[0]:
        assert os.fstat(held[0].fileno()).st_blocks == 0
    assert not litter(tmp_path)


def test_what_dead_processes_have_left_is_removed(tmp_path):
    """Not what a process of another machine may be writing, unless it is old."""
    left = """
import os, sys
from tfdist import atomic_files
atomic_files.replace(sys.argv[1], lambda new: (open(new, "w").close(), os._exit(3)))
"""
    path = tmp_path / NAME
    for name in (NAME, "other.keras"):
        assert subprocess.run([sys.executable, "-c", left, tmp_path / name]).returncode == 3
    dead, other = sorted(litter(tmp_path), key=lambda name: name.endswith("other.keras"))
    machine, process = dead.split("-")[1:3]
    names = {
        "of this process": dead.replace(process, str(os.getpid())),
        "elsewhere": dead.replace(machine, "0" * 8),
        "elsewhere, old": dead.replace(machine, "1" * 8),
    }
    for name in names.values():
        (tmp_path / name).touch()
    hour_ago = (tmp_path / names["elsewhere"]).stat().st_mtime - 3700
    os.utime(tmp_path / names["elsewhere, old"], (hour_ago, hour_ago))
    replace(path, 1, term=False)
    assert litter(tmp_path) == sorted([other, names["of this process"], names["elsewhere"]])


def test_other_jobs_have_other_terms(tmp_path):
    path = tmp_path / NAME
    assert replace(path, 7)
    write = lambda new: Path(new).write_text("2\nother")  # noqa: E731
    assert atomic_files.replace(str(path), write, term=Term("other", 2), term_of=term_of)
    assert path.read_text() == "2\nother"


class Moments:
    """Lets two threads make the calls of `os` in a given order, one at a time.

    Args:
      order: which thread makes the next call, 0 or 1; at its end each makes all that are left.
    """

    def __init__(self, monkeypatch, order):
        self._order = list(order)
        self._turn = threading.Condition()
        self._names: dict[int, int] = {}
        self._ended: set[int] = set()
        self.calls = [0, 0]
        for name in CALLS:
            monkeypatch.setattr(os, name, self._wrapped(getattr(os, name)))

    def run(self, *bodies):
        results = [None, None]

        def enter(number):
            self._names[threading.get_ident()] = number
            try:
                self._wait(number)
                results[number] = bodies[number]()
            except BaseException as error:
                results[number] = error
            with self._turn:
                self._ended.add(number)
                self._turn.notify_all()

        threads = [threading.Thread(target=enter, args=(number,)) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        return results

    def _wait(self, number):
        with self._turn:
            while self._order and self._order[0] != number:
                if self._order[0] in self._ended:
                    self._order.pop(0)
                    self._turn.notify_all()
                    continue
                assert self._turn.wait(60)

    def _wrapped(self, original):
        def call(*arguments, **options):
            number = self._names.get(threading.get_ident())
            if number is None:
                return original(*arguments, **options)
            self._wait(number)
            try:
                return original(*arguments, **options)
            finally:
                self.calls[number] += 1
                with self._turn:
                    if self._order:
                        self._order.pop(0)
                    self._turn.notify_all()

        return call


def orders():
    """Where one of the two is stopped once, at each call, and some in which they take turns."""
    longest = 14
    for stopped, calls in itertools.product((0, 1), range(longest)):
        yield [stopped] * calls + [1 - stopped] * 2 * longest
    drawn = random.Random(4)
    for _ in range(rounds(150, long=1000)):
        yield [drawn.randrange(2) for _ in range(2 * longest)]


def test_a_process_of_a_former_term_never_replaces_the_file_of_a_later_one(tmp_path):
    """Wherever it was stopped, and however both continue."""
    replaced_by_former = 0
    for number, order in enumerate(orders()):
        folder = tmp_path / str(number)
        folder.mkdir()
        path, former = folder / NAME, str(folder / "before")
        replace(path, 5, "of rank 0", former=former)
        with pytest.MonkeyPatch.context() as patched:
            moments = Moments(patched, order)
            results = moments.run(
                lambda path=path, former=former: replace(path, 6, "stopped", former=former),
                lambda path=path, former=former: replace(path, 7, "its successor", former=former),
            )
        assert results[1] is True, (order, results)
        assert results[0] in (True, False), (order, results)
        assert path.read_text() == "7\nits successor", (order, results)
        assert Path(former).read_text() in ("5\nof rank 0", "6\nstopped", "7\nits successor")
        assert not litter(folder), order
        replaced_by_former += results[0]
    assert 0 < replaced_by_former < number


class Killed(BaseException):
    """Ends a process in the middle."""


def killed_at(moment, body):
    """Calls `body`, and ends it before one of its calls of `os`; returns whether it did."""
    made = itertools.count()

    def counted(original):
        def call(*arguments, **options):
            if next(made) >= moment:  # a dead process does nothing more
                raise Killed
            return original(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patched:
        for name in CALLS:
            patched.setattr(os, name, counted(getattr(os, name)))
        try:
            body()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("has_links", [True, False])
@pytest.mark.parametrize("term", [True, False])
def test_a_kill_at_each_moment_leaves_a_whole_file(tmp_path, term, has_links, monkeypatch):
    """Also where the file system has no hard links."""

    def refuse(*_):
        raise PermissionError(errno.EPERM, "no hard links")

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    for moment in itertools.count():
        path, former = tmp_path / f"{moment}.keras", tmp_path / f"before {moment}"

        def save(number, path=path, former=former):
            replace(path, number, "whole", former=str(former), term=term)

        save(4)
        save(5)
        is_killed = killed_at(moment, lambda save=save: save(6))
        newest = path if path.exists() else former
        assert newest.read_text() in ("5\nwhole", "6\nwhole"), moment
        assert former.read_text() in ("4\nwhole", "5\nwhole"), moment
        if not is_killed:
            break
    assert moment > 3
