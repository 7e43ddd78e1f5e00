"""Includes and imports point downwards: no room uses a room above it, so there are no cycles.

A room is a folder of C++ below `ops/`, or a Python package or module below `tfdist`. The lists
below give the order of the rooms, lowest first. Rooms on one line are peers, which do not use each
other. A name covers everything below it that is not listed itself: `ops` is its `__init__.py`,
because all its parts are listed.
"""

from __future__ import annotations

import ast
import graphlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Folders below ops/.
CPP_ROOMS = [
    ["core/base"],
    ["core/math", "core/trace"],
    ["core/net"],
    ["core/algorithms"],
    ["core/collectives"],
    ["core/ps/optimizers"],
    ["core/ps/table"],
    ["core/ps/protocol"],
    ["core/ps/store", "core/ps/client/operations"],
    ["core/ps/client/lookups"],
    ["core/ps/client/faces"],
    ["core/ps/server", "core/ps/client"],
    ["kernels"],
    ["kernels/collectives"],
    ["kernels/local", "kernels/ps"],
]

# Pairs that the order alone would permit.
CPP_FORBIDDEN = {
    # An algorithm is a pure function from a rank to a plan.
    ("core/algorithms", "core/base"),
    ("core/algorithms", "core/math"),
    ("core/algorithms", "core/net"),
    # Server and client share the protocol only.
    ("core/ps/server", "core/ps/client/operations"),
    ("core/ps/server", "core/ps/client/lookups"),
    ("core/ps/client/lookups", "core/ps/store"),
    ("core/ps/client", "core/ps/store"),
}

# Packages and modules below tfdist.
PYTHON_ROOMS = [
    ["_types"],
    ["errors", "_version", "_extras", "_providers", "atomic_files", "state_machine"],
    ["reasons", "tracebacks"],
    ["internals"],
    ["_compatibility", "config"],
    ["control"],
    ["observe.clock", "observe.observer", "preemption.messages"],
    ["observe.clock_client", "preemption.stop_board", "preemption.stop_watch"],
    ["data.queue"],
    ["ops.library", "ops.autograph", "ops.tf_flags"],
    ["ops.collectives", "ops.local", "ops.tls", "ops.trace"],
    ["ops.ps"],
    ["ops"],
    ["observe"],
    ["compression", "rules"],
    ["ps.config", "ps.checkpoint", "ps.stats"],
    ["ps.export", "ps.epochs"],
    ["ps", "data.server"],
    ["job"],
    ["preemption", "data"],
    ["elastic.protocol"],
    ["elastic"],
    ["observe.metrics"],
    ["observe.live"],
    ["keras"],
    ["strategies._base", "strategies._devices"],
    [
        "strategies._input",
        "strategies._local_reduce",
        "strategies._sharding",
        "strategies._variables",
    ],
    ["strategies._local_updates"],
    ["strategies.communication_options", "strategies._noted_updates"],
    ["strategies._collective_cross_device_ops"],
    ["strategies._extended"],
    ["strategies"],
    ["embedding"],
    ["layers", "horovod", "serving.tables"],
    ["callbacks", "server", "startup"],
    ["estimator.training", "estimator.keras3"],
    ["estimator.package"],
    ["estimator"],
    ["serving"],
    ["prediction", "serving.model_server"],
    ["plan", "check", "kubernetes"],
    ["launch"],
    ["ray"],
    ["cli"],
    ["__main__"],
    ["tfdist"],
]

Arrow = tuple[str, str]

# Arrows that still point upwards. Remove one here together with its last import.
ALLOWED: set[Arrow] = set()


def room_of(name: str, rooms: list[list[str]], separator: str) -> str:
    """The longest name of `rooms` that `name` is, or lies below."""
    listed = {room for level in rooms for room in level}
    while name not in listed and separator in name:
        name = name.rpartition(separator)[0]
    assert name in listed, f"{name}: expected a room that is listed in {Path(__file__).name}"
    return name


def upward(arrows: dict[Arrow, list[str]], rooms: list[list[str]]) -> set[Arrow]:
    """The arrows to a peer or to a room above."""
    height = {room: level for level, peers in enumerate(rooms) for room in peers}
    return {(user, used) for user, used in arrows if height[used] >= height[user]}


def described(found: set[Arrow], arrows: dict[Arrow, list[str]]) -> str:
    return "\n".join(
        f"{user} -> {used}: {place}" for user, used in sorted(found) for place in arrows[user, used]
    )


def cpp_includes() -> Iterator[tuple[Path, str]]:
    """Each file below `ops/`, by its path from there, with each file that it includes in quotes."""
    for folder in ("core", "kernels"):
        for path in sorted((ROOT / "ops" / folder).rglob("*")):
            if path.suffix in (".h", ".cc"):
                for included in re.findall(r'^#include "(.*)"', path.read_text(), re.MULTILINE):
                    yield path.relative_to(ROOT / "ops"), included


def cpp_arrows() -> dict[Arrow, list[str]]:
    arrows: dict[Arrow, list[str]] = {}
    for path, included in cpp_includes():
        if not included.startswith("tensorflow/"):
            user, used = (
                room_of(file.parent.as_posix(), CPP_ROOMS, "/") for file in (path, Path(included))
            )
            if user != used:
                arrows.setdefault((user, used), []).append(f"{path} includes {included}")
    return arrows


def python_modules() -> dict[str, Path]:
    """The files of all modules, by their names without the leading `tfdist.`."""
    modules = {}

    def add(package: str, folder: Path) -> None:
        for path in sorted(folder.iterdir()):
            name = f"{package}.{path.stem}"
            if path.name == "__init__.py":
                modules[package] = path
            elif path.suffix == ".py":
                modules[name] = path
            elif not path.is_symlink() and (path / "__init__.py").is_file():
                add(name, path)

    for package, folder in (
        ("tfdist", "tfdist"),
        ("tfdist.strategies", "strategies"),
        ("tfdist.ops", "ops"),
    ):
        add(package, ROOT / folder)
    return modules


def imported_modules(path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """Every module of tfdist that a file imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: expected imports by the full name"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.partition(".")[0] == "tfdist":
                # A name that is not a module is an attribute of one.
                yield name if name in modules else name.rpartition(".")[0]


def python_arrows() -> dict[Arrow, list[str]]:
    arrows: dict[Arrow, list[str]] = {}
    modules = python_modules()
    for module, path in modules.items():
        for imported in imported_modules(path, modules):
            user, used = (
                room_of(name.removeprefix("tfdist."), PYTHON_ROOMS, ".")
                for name in (module, imported)
            )
            if user != used:
                place = f"{path.relative_to(ROOT)} imports {imported}"
                arrows.setdefault((user, used), []).append(place)
    return arrows


def test_includes_point_downwards() -> None:
    arrows = cpp_arrows()
    found = upward(arrows, CPP_ROOMS) | (arrows.keys() & CPP_FORBIDDEN)
    assert not found - ALLOWED, described(found - ALLOWED, arrows)


def test_includes_are_paths_from_ops() -> None:
    for path, included in cpp_includes():
        if not included.startswith("tensorflow/"):
            assert (ROOT / "ops" / included).is_file(), f"{path} includes {included}"


def test_the_core_includes_no_tensorflow() -> None:
    for path, included in cpp_includes():
        assert path.parts[0] == "kernels" or "tensorflow" not in included, path


def test_imports_point_downwards() -> None:
    arrows = python_arrows()
    found = upward(arrows, PYTHON_ROOMS)
    assert not found - ALLOWED, described(found - ALLOWED, arrows)


def circle(files: dict[str, set[str]]) -> list[str]:
    """The files of one circle, if there is any, by the files that each one uses."""
    try:
        graphlib.TopologicalSorter(files).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("language", ["C++", "Python"])
def test_no_files_form_a_circle(language: str) -> None:
    """Imports inside functions, and imports for type checkers, count.

    A package's `__init__` may re-export its modules, which do not import the package then: only
    the import that a statement names is an arrow. To run a module runs `__init__` too; this does
    not count. Neither does a module that is named by a string, such as a provider or a repair of
    Keras: it is a registration, and the order of the rooms is the reason for it.
    """
    files: dict[str, set[str]] = {}
    if language == "C++":
        for path, included in cpp_includes():
            files.setdefault(path.as_posix(), set()).add(included)
    else:
        modules = python_modules()
        for name, path in modules.items():
            files[name] = {used for used in imported_modules(path, modules) if used != name}
    assert len(files) > 100
    assert not (found := circle(files)), " <- ".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "import tfdist.a.b",
        "from tfdist.a import b",
        "from tfdist.a.b import Name",
        "def late():\n    from tfdist.a.b import Name",
        "if TYPE_CHECKING:\n    from tfdist.a.b import Name",
    ],
)
def test_each_kind_of_import_closes_a_circle(tmp_path: Path, text: str) -> None:
    importing, modules = tmp_path / "c.py", dict.fromkeys(["tfdist.a", "tfdist.a.b"], tmp_path)
    importing.write_text(text)
    used = set(imported_modules(importing, modules))
    assert used == {"tfdist.a.b"}
    assert circle({"tfdist.c": used, "tfdist.a.b": {"tfdist.c"}})
    assert not circle({"tfdist.c": used, "tfdist.a": {"tfdist.a.b", "tfdist.c"}})


def test_a_module_that_imports_its_package_closes_a_circle(tmp_path: Path) -> None:
    importing, modules = tmp_path / "b.py", dict.fromkeys(["tfdist.a", "tfdist.a.b"], tmp_path)
    importing.write_text("from tfdist.a import Name")
    used = set(imported_modules(importing, modules))
    assert circle({"tfdist.a": {"tfdist.a.b"}, "tfdist.a.b": used})


def test_what_is_allowed_is_still_needed() -> None:
    cpp, python = cpp_arrows(), python_arrows()
    needed = upward(cpp, CPP_ROOMS) | (cpp.keys() & CPP_FORBIDDEN) | upward(python, PYTHON_ROOMS)
    assert not ALLOWED - needed, f"remove from ALLOWED: {sorted(ALLOWED - needed)}"


def test_every_listed_room_exists() -> None:
    for room in (room for level in CPP_ROOMS for room in level):
        assert (ROOT / "ops" / room).is_dir(), room
    modules = python_modules()
    for room in (room for level in PYTHON_ROOMS for room in level):
        assert room == "tfdist" or f"tfdist.{room}" in modules, room


@pytest.mark.parametrize("rooms", [CPP_ROOMS, PYTHON_ROOMS], ids=["C++", "Python"])
def test_every_room_is_listed_once(rooms: list[list[str]]) -> None:
    names = [room for level in rooms for room in level]
    assert len(names) == len(set(names))


def test_test_files_have_names_of_their_own() -> None:
    # pytest imports each by its name alone, so that two of one name cannot run together.
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
