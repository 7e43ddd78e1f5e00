"""The versions of one model that are in memory: the newest ones of FOLDER/1, FOLDER/2, ...

A thread looks at the folder. It loads a new version beside the present ones, and lets
requests have it once it is complete; a version that is no longer wanted is freed after its last
request. So there is always a version, and no request fails because of a change:

    FOLDER/1   loading  available .......... unloading  end
    FOLDER/2                       loading   available ....

A version that cannot be loaded is left out, and tried again when its files change; or at the next
look, if only the servers of its tables did not answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import grpc
import tensorflow as tf

from tfdist.errors import TfdistError
from tfdist.reasons import one_line
from tfdist.serving.model_server.call_error import CallError, not_found
from tfdist.serving.model_server.saved_model import LoadedModel, is_saved_model, stamp_of

_log = logging.getLogger("tfdist.serving")
# Seconds for which the end waits for a version that is being loaded.
_LAST_LOOK = 5.0
# Ended versions whose state is still told.
_MAX_ENDED = 20

# The messages of TensorFlow Serving have versions of 64 bits.
MAX_VERSION = (1 << 63) - 1


class State(enum.Enum):
    """Of a version, with the number that TensorFlow Serving's protocol gives to it."""

    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


@dataclasses.dataclass(frozen=True)
class VersionState:
    """The state of a version.

    Args:
      version: its number.
      state: whether it answers requests.
      problem: why it could not be loaded; empty if it was, or is being loaded.
    """

    version: int
    state: State
    problem: str = ""


_Model = TypeVar("_Model", bound=LoadedModel)


class _Held(Generic[_Model]):
    """A version in memory, and how many requests use it; the list of versions counts as one."""

    def __init__(self, model: _Model) -> None:
        self.model = model
        self.users = 1


class NoModelError(TfdistError, ValueError):
    """A folder has no version of a model that can be loaded; the message says why."""


class Versions(Generic[_Model]):
    """Follows the folder of a model, from `begin` until `close`.

    Args:
      name: of the model.
      folder: has a folder for each version, named by a number.
      load: reads a version.
      kept: how many versions answer requests, counted from the newest.
      period: seconds between two looks at the folder.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        load: Callable[[Path, int], _Model],
        kept: int = 1,
        period: float = 1.0,
    ) -> None:
        self.name = name
        self._folder = folder
        self._load = load
        self._kept = kept
        self._period = period
        self._lock = threading.Lock()
        self._loaded: dict[int, _Held[_Model]] = {}
        self._states: dict[int, VersionState] = {}
        self._failed: dict[int, tuple] = {}  # the stamps of versions that cannot be loaded
        self._waiting: set[int] = set()  # versions whose tables' servers do not answer
        self._told_of_two: set[tuple[Path, Path]] = set()
        self._has_told_of_none = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Loads the newest version, and then follows the folder in a thread.

        Raises:
          NoModelError: no version can be loaded.
        """
        self._update(self._found())
        if not self._loaded:
            raise NoModelError(self._nothing())
        self._thread = threading.Thread(
            target=self._follow, name=f"versions-{self.name}", daemon=True
        )
        self._thread.start()

    @contextlib.contextmanager
    def lease(self, version: int | None = None) -> Iterator[_Model]:
        """Gives a version to a request, and keeps it in memory meanwhile.

        Args:
          version: its number; None for the newest.

        Raises:
          CallError: it is not in memory.
        """
        with self._lock:
            number = max(self._loaded, default=None) if version is None else version
            held = None if number is None else self._loaded.get(number)
            if held is None and self._thread is None:
                raise CallError(
                    grpc.StatusCode.UNAVAILABLE, f"model {self.name} is still being loaded"
                )
            if held is None:
                asked = "Latest" if version is None else "Specific"
                which = "" if version is None else f", {version}"
                raise not_found(
                    f"Servable not found for request: {asked}({self.name}{which}); available: "
                    f"{sorted(self._loaded)}"
                )
            held.users += 1
        try:
            yield held.model
        finally:
            self._release(held)

    def states(self) -> list[VersionState]:
        """Returns the states of the newest version, the one before it, and so on."""
        with self._lock:
            return [self._states[version] for version in sorted(self._states, reverse=True)]

    def close(self) -> None:
        """Stops following, and frees all versions that no request uses."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_LAST_LOOK)
        self._retire(set())

    def _follow(self) -> None:
        while not self._stopped.wait(self._period):
            try:
                self._update(self._found())
            except Exception:  # requests are answered by the present versions
                _log.exception("model %r: cannot look at %s", self.name, self._folder)

    def _update(self, found: dict[int, Path]) -> None:
        """Loads new versions, and then retires all that are not wanted any more."""
        wanted: set[int] = set()
        for version in sorted(found, reverse=True):
            if len(wanted) < self._kept and self._is_loaded(version, found[version]):
                wanted.add(version)
        if wanted:
            self._has_told_of_none = False
            self._retire(wanted)
        elif self._loaded and not self._has_told_of_none:
            self._has_told_of_none = True
            _log.warning("model %r keeps its version, since %s", self.name, self._nothing())

    def _is_loaded(self, version: int, folder: Path) -> bool:
        if version in self._loaded:
            return True
        if self._stopped.is_set():
            return False
        stamp = stamp_of(folder)
        if self._failed.get(version) == stamp:
            return False
        self._set_state(VersionState(version, State.LOADING))
        try:
            model = self._load(folder, version)
        except Exception as error:  # of any kind: the files may be anything
            # A version may just be arriving: it is tried again when it has changed. Servers of its
            # tables may come back at any time.
            passes = isinstance(error, tf.errors.UnavailableError)
            if not passes:
                self._failed[version] = stamp
            self._note_problem(version, one_line(error), passes)
            return False
        if self._stopped.is_set():
            model.close()
            return False
        self._failed.pop(version, None)
        self._waiting.discard(version)
        with self._lock:
            self._loaded[version] = _Held(model)
            self._states[version] = VersionState(version, State.AVAILABLE)
        _log.info("model %r: version %d of %s is available", self.name, version, folder)
        return True

    def _note_problem(self, version: int, problem: str, passes: bool) -> None:
        self._set_state(VersionState(version, State.END, problem))
        # A version that is tried again each time is told once, whatever the words of the reason.
        if not passes or version not in self._waiting:
            _log.error("model %r: version %d cannot be loaded: %s", self.name, version, problem)
        self._waiting = self._waiting | {version} if passes else self._waiting - {version}

    def _retire(self, wanted: set[int]) -> None:
        with self._lock:
            retired = [self._loaded.pop(v) for v in self._loaded.keys() - wanted]
            for held in retired:
                version = held.model.version
                self._states[version] = VersionState(version, State.UNLOADING)
        for held in retired:
            self._release(held)

    def _release(self, held: _Held[_Model]) -> None:
        with self._lock:
            held.users -= 1
            if held.users:
                return
        held.model.close()
        version = held.model.version
        with self._lock:
            # Its folder may have come again meanwhile.
            if self._states[version].state is State.UNLOADING:
                self._states[version] = VersionState(version, State.END)
        _log.info("model %r: version %d is no longer in memory", self.name, version)

    def _set_state(self, state: VersionState) -> None:
        with self._lock:
            self._states[state.version] = state
            ended = [v for v, s in self._states.items() if s.state is State.END]
            for version in sorted(ended)[:-_MAX_ENDED]:
                del self._states[version]

    def _found(self) -> dict[int, Path]:
        """Returns the folders of complete versions by their numbers."""
        try:
            entries = sorted(self._folder.iterdir())
        except OSError:
            return {}
        found: dict[int, Path] = {}
        for entry in entries:
            version = _version_of(entry.name)
            if version is None or not is_saved_model(entry):
                continue
            if version in found:
                self._note_two(version, found[version], entry)
            found[version] = entry  # of 007 and 7 it is 7, as with TensorFlow Serving
        return found

    def _note_two(self, version: int, ignored: Path, taken: Path) -> None:
        if (ignored, taken) not in self._told_of_two:
            self._told_of_two.add((ignored, taken))
            _log.warning(
                "model %r: expected one folder for version %d, received %s and %s: %s is ignored",
                *(self.name, version, ignored, taken, ignored),
            )

    def _nothing(self) -> str:
        """Says why the folder has no version."""
        if not self._folder.is_dir():
            return f"{self._folder}: expected a folder, received none"
        if is_saved_model(self._folder):
            return (
                f"{self._folder}: expected a folder for each version, such as "
                f"{self._folder / '1'}, received a SavedModel itself"
            )
        with self._lock:
            problems = {s.version: s.problem for s in self._states.values() if s.problem}
        if problems:
            newest = max(problems)
            return f"{self._folder}: no version can be loaded; {newest}: {problems[newest]}"
        there = sorted(entry.name for entry in self._folder.iterdir())[:5]
        return (
            f"{self._folder}: expected a folder for each version with a SavedModel, such as "
            f"{self._folder / '1' / 'saved_model.pb'}, received {there or 'an empty folder'}"
        )


def _version_of(name: str) -> int | None:
    """Returns the number that a folder's name is; `None` for other names."""
    number = int(name) if name.isascii() and name.isdigit() else -1
    return number if 0 <= number <= MAX_VERSION else None
