"""The built and shipped files. A stand-in for `make` keeps the compiler out of it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Of the TensorFlow that everything here is built for.
SERIES = ".".join(importlib.metadata.version("tensorflow").split(".")[:2])

# Writes an "op library" that holds the arguments it was called with: -C FOLDER, and others.
FAKE_MAKE = """#!/bin/sh
cd "$2"
for argument in "$@"; do
  case "$argument" in OUT=*) out="${argument#OUT=}" ;; esac
done
mkdir -p "$out"
printf '%s\n' "$@" > "$out/libtfdist_ops.tf9.9.so"
"""

# Tells type checkers that a package has types of its own (PEP 561).
MARKERS = {f"{package}/py.typed" for package in ("tfdist", "tfdist/strategies", "tfdist/ops")}
# The files that the dashboard serves.
PAGE = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tfdist/observe/live/page").iterdir()}

Setup = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources, so that building leaves nothing in the real ones."""
    ignored = shutil.ignore_patterns(
        ".git", ".venv*", "build", "dist", "*.egg-info", "*.so", "*.o", "__pycache__", ".*_cache"
    )
    return Path(shutil.copytree(ROOT, tmp_path / "tree", symlinks=True, ignore=ignored))


@pytest.fixture
def setup(tree: Path, tmp_path: Path) -> Setup:
    """Runs setup.py in the copy, with nothing on PATH but the tools that the test names."""

    def run(*arguments: str, make: str | None = FAKE_MAKE, compiler: bool = True):
        tools = tmp_path / "tools"
        tools.mkdir(exist_ok=True)
        scripts = {"make": make, "g++": "#!/bin/sh\n" if compiler else None}
        for name, script in scripts.items():
            if script is not None:
                (tools / name).write_text(script)
                (tools / name).chmod(0o755)
        for name in ("mkdir", "sh"):
            (tools / name).symlink_to(shutil.which(name))
        environment = {k: v for k, v in os.environ.items() if k not in ("CXX", "PYTHONPATH")}
        return subprocess.run(
            [sys.executable, "setup.py", "-q", *arguments],
            cwd=tree,
            env={**environment, "PATH": str(tools)},
            capture_output=True,
            text=True,
            timeout=50,
        )

    return run


def versions() -> dict[str, object]:
    namespace: dict[str, object] = {}
    exec((ROOT / "tfdist" / "_version.py").read_text(), namespace)
    return namespace


def modules(tree: Path) -> set[str]:
    """The Python files of the three folders, under the names they have once installed."""
    folders = {"tfdist": "tfdist", "strategies": "tfdist/strategies", "ops": "tfdist/ops"}
    return {
        f"{package}/{path.relative_to(tree / folder).as_posix()}"
        for folder, package in folders.items()
        for parent, _, files in os.walk(tree / folder)  # does not follow the symlinks
        for path in (Path(parent, name) for name in files)
        if path.suffix == ".py" and (path.parent == tree / folder or is_package(path.parent))
    }


def is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()


def test_wheel_holds_each_module_once_and_the_library(setup: Setup, tree: Path) -> None:
    result = setup("bdist_wheel")
    assert result.returncode == 0, result.stderr
    (wheel,) = (tree / "dist").glob("*.whl")
    info = f"tfdist-{versions()['__version__']}+tf{SERIES}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        library = archive.read("tfdist/ops/libtfdist_ops.tf9.9.so").decode().splitlines()
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
        metadata = archive.read(f"{info}/METADATA").decode().splitlines()

    # For any Python 3, and not for every platform, since it holds a library.
    assert re.search(r"-py3-none-linux_\w+\.whl$", wheel.name)
    assert library[:2] == ["-C", str(tree / "ops")]
    assert {"lib", f"PYTHON={sys.executable}"} < set(library)
    assert len(names) == len(set(names))
    in_packages = {name for name in names if not name.startswith(f"{info}/")}
    library_file = {"tfdist/ops/libtfdist_ops.tf9.9.so"}
    assert in_packages == modules(tree) | MARKERS | PAGE | library_file
    assert "tfdist = tfdist.cli.main:main" in entry_points
    # It works with the TensorFlow that its library was built for, and says so to people and to pip.
    assert wheel.name.startswith(f"tfdist-{versions()['__version__']}+tf{SERIES}-")
    assert f"Requires-Dist: tensorflow=={SERIES}.*" in metadata


def test_a_wheel_of_given_libraries_is_for_all_their_releases(
    setup: Setup, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {f"libtfdist_ops.tf{series}.so" for series in ("2.16", "2.22")}
    for name in given:
        (tmp_path / name).write_text("a library")
    monkeypatch.setenv("TFDIST_OP_LIBRARIES", str(tmp_path))
    result = setup("bdist_wheel", make=None, compiler=False)
    assert result.returncode == 0, result.stderr
    (wheel,) = (tree / "dist").glob("*.whl")
    version, low, high = (
        versions()[name] for name in ("__version__", "MIN_TENSORFLOW", "MAX_TENSORFLOW")
    )
    assert wheel.name.startswith(f"tfdist-{version}-py3-none-linux_")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(f"tfdist-{version}.dist-info/METADATA").decode().splitlines()
    assert {f"tfdist/ops/{name}" for name in given} == {n for n in names if n.endswith(".so")}
    (requirement,) = (line for line in metadata if line.startswith("Requires-Dist: tensorflow<"))
    assert f">={low[0]}.{low[1]}" in requirement and f"<{high[0]}.{high[1] + 1}" in requirement


def test_a_folder_without_libraries_is_refused(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFDIST_OP_LIBRARIES", str(tmp_path))
    result = setup("bdist_wheel")
    assert result.returncode != 0
    assert f"no libtfdist_ops.tf*.so in {tmp_path}" in result.stderr.splitlines()[-1]


@pytest.mark.long(covered_by="test_wheel_holds_each_module_once_and_the_library")
def test_the_flags_of_a_tensorflow_that_was_unpacked(tmp_path: Path) -> None:
    """They are the flags that the imported one tells, with other paths."""
    unpacked = tmp_path / "unpacked"
    info = unpacked / "tensorflow-2.99.0rc0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.99.0rc0\n")
    written = [
        subprocess.run(
            [sys.executable, str(ROOT / "ops" / "tf_flags.py"), str(tmp_path), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
        for arguments in ((), (str(unpacked),))
    ]
    assert [Path(path).name for path in written] == [f"tf{SERIES}.mk", "tf2.99.mk"]
    own, other = (Path(path).read_text() for path in written)
    (folder,) = re.findall(r"-L(\S+)/tensorflow ", own)
    expected = own.replace(folder, str(unpacked)).replace(f":= {SERIES}\n", ":= 2.99\n")
    assert other.replace(f" -ffile-prefix-map={unpacked}=.", "") == expected


def test_a_stale_library_of_the_tree_is_not_shipped(setup: Setup, tree: Path) -> None:
    (tree / "ops" / "libtfdist_ops.tf1.1.so").write_text("stale")
    assert setup("bdist_wheel").returncode == 0
    (wheel,) = (tree / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if name.endswith(".so")]
    assert libraries == ["tfdist/ops/libtfdist_ops.tf9.9.so"]


def test_editable_build_puts_the_library_into_the_tree(setup: Setup, tree: Path) -> None:
    result = setup("build_ext", "--inplace")
    assert result.returncode == 0, result.stderr
    assert "OUT=." in (tree / "ops" / "libtfdist_ops.tf9.9.so").read_text()


def test_sdist_unpacks_to_the_tree_it_was_made_from(
    setup: Setup, tree: Path, tmp_path: Path
) -> None:
    (tree / "ops" / "libtfdist_ops.tf1.1.so").write_text("stale")
    (tree / "ops" / "build").mkdir()
    (tree / "ops" / "build" / "ring.o").write_text("made")
    result = setup("sdist")
    assert result.returncode == 0, result.stderr
    (archive,) = (tree / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        links = {m.name.partition("/")[2]: m.linkname for m in opened if m.issym()}
        files = {m.name.partition("/")[2] for m in opened if m.isfile()}
        runnable = {m.name.partition("/")[2] for m in opened if m.isfile() and m.mode & 0o100}

    assert links == {"tfdist/strategies": "../strategies", "tfdist/ops": "../ops"}
    shipped = ("setup.py", "README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", ".ci/run")
    assert {*shipped, "mkdocs.yml"} <= files
    assert {"tfdist/py.typed", "strategies/py.typed", "ops/py.typed"} <= files
    assert {"scripts/test", "scripts/demo", ".ci/run"} <= runnable
    examples = ("keras_examples", "estimator_examples")
    for folder in ("tfdist", "strategies", "ops", "tests", "scripts", "docs", *examples):
        for parent, _, names in os.walk(tree / folder):
            for name in names:
                path = Path(parent, name).relative_to(tree).as_posix()
                made = path.endswith(".so") or path.startswith("ops/build/")
                assert (path in files) is not made, path


@pytest.mark.parametrize(
    ("tools", "missing"),
    [
        ({"make": None}, "make"),
        ({"compiler": False}, "g++"),
        ({"make": None, "compiler": False}, "make and g++"),
    ],
)
def test_without_a_tool_one_line_says_what_to_install(
    setup: Setup, tools: dict[str, object], missing: str
) -> None:
    result = setup("build_ext", **tools)
    assert result.returncode != 0
    assert result.stderr.splitlines()[-1] == (
        f"error: building tfdist needs {missing}, not found on PATH: "
        "sudo apt-get install build-essential"
    )
    assert "Traceback" not in result.stderr


def test_a_missing_compiler_is_said_before_any_file_is_copied(setup: Setup, tree: Path) -> None:
    result = setup("bdist_wheel", compiler=False)
    assert result.returncode != 0 and not (tree / "build").exists()
    assert result.stdout == "" and result.stderr.splitlines() == [
        "error: building tfdist needs g++, not found on PATH: sudo apt-get install build-essential"
    ]


def test_a_failing_compilation_fails_the_build(setup: Setup) -> None:
    result = setup("build_ext", make="#!/bin/sh\nexit 3\n")
    assert result.returncode != 0
    assert "exit code 3" in result.stderr.splitlines()[-1]


def test_a_make_that_builds_nothing_fails_the_build(setup: Setup) -> None:
    result = setup("build_ext", make="#!/bin/sh\n")
    assert result.returncode != 0
    assert "left no libtfdist_ops.tf*.so" in result.stderr


def test_the_environment_does_not_choose_the_folders_of_make() -> None:
    """The build argument TENSORFLOW of the Dockerfile is such a variable."""
    others = {"TENSORFLOW": "2.21", "OUT": "/elsewhere", "BUILD": "/elsewhere"}
    # With this Python it ends where it would ask for the flags of TensorFlow.
    command = ["make", "--dry-run", "-C", str(ROOT / "ops"), "lib", "PYTHON=true"]
    environment = {**os.environ, **others}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True).stdout
    assert "tf_flags.py build )" in shown and "/elsewhere" not in shown


def test_another_tensorflow_is_refused(setup: Setup, tree: Path) -> None:
    text = (tree / "tfdist" / "_version.py").read_text()
    text = re.sub(r"(M\w\w_TENSORFLOW) = .*", r"\1 = (1, 15)", text)
    (tree / "tfdist" / "_version.py").write_text(text)
    result = setup("build_ext")
    assert result.returncode != 0
    assert "tfdist works with tensorflow>=1.15,<1.16; " in result.stderr.splitlines()[-1]


def test_every_place_states_the_same_tensorflow_range(setup: Setup, tree: Path) -> None:
    low, high = versions()["MIN_TENSORFLOW"], versions()["MAX_TENSORFLOW"]
    wanted = f"tensorflow>={low[0]}.{low[1]},<{high[0]}.{high[1] + 1}"
    assert f'"{wanted}"' in (ROOT / "pyproject.toml").read_text()
    assert setup("egg_info").returncode == 0
    requires = (tree / "tfdist.egg-info" / "requires.txt").read_text().splitlines()
    (requirement,) = [line for line in requires if re.match(r"tensorflow[^\w-]", line)]
    assert set(requirement.removeprefix("tensorflow").split(",")) == set(
        wanted.removeprefix("tensorflow").split(",")
    )
    assert (
        f"TensorFlow {low[0]}.{low[1]} to {high[0]}.{high[1]}" in (ROOT / "README.md").read_text()
    )


def test_the_symlinks_show_the_folders_as_packages() -> None:
    for name in ("strategies", "ops"):
        assert os.readlink(ROOT / "tfdist" / name) == f"../{name}"


def test_the_workflows_have_the_form_that_github_expects() -> None:
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert [path.name for path in workflows] == ["tests.yml", "wheel.yml"]
    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema"]
        + ["--builtin-schema", "vendor.github-workflows", *map(str, workflows)],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    # They run the scripts that people run.
    commands = re.findall(r"run: (\S+)", "".join(path.read_text() for path in workflows))
    assert commands == [".ci/run", "scripts/wheel", "scripts/wheel", "scripts/release"]
    for command in commands:
        assert os.access(ROOT / command, os.X_OK)


def test_ci_runs_the_test_script() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    assert ci.splitlines()[-1] == 'exec "$(dirname "$0")/../scripts/test"'
