"""The op library: errors if it or TensorFlow does not fit, its structures, and the layers above."""

import ast
import ctypes
import importlib.metadata
import subprocess
import sys
import types
from pathlib import Path

import pytest
import tensorflow as tf

from tfdist import _compatibility, errors, ops
from tfdist.ops import library


def test_the_library_of_the_running_series_is_chosen(tmp_path):
    for name in ("2.20", "2.21"):
        (tmp_path / f"libtfdist_ops.tf{name}.so").touch()
    assert library.library_path(tmp_path, "2.21.3").name == "libtfdist_ops.tf2.21.so"
    assert library.library_path(tmp_path, "2.20.0-rc1").name == "libtfdist_ops.tf2.20.so"


def test_a_library_for_another_tensorflow_says_how_to_rebuild(tmp_path):
    (tmp_path / "libtfdist_ops.tf2.18.so").touch()
    with pytest.raises(errors.OpLibraryError) as raised:
        library.library_path(tmp_path, "2.21.0")
    message = str(raised.value)
    assert "built for TensorFlow 2.18, but TensorFlow 2.21.0 is running" in message
    for remedy in ("./tfdist-*.whl", "pip install --no-build-isolation", "make -C ops lib"):
        assert remedy in message


def test_a_missing_library_says_where_it_was_expected(tmp_path):
    with pytest.raises(errors.OpLibraryError, match="missing: expected .*libtfdist_ops.tf2.21.so"):
        library.library_path(tmp_path, "2.21.0")


def test_a_damaged_library_is_an_import_error_with_the_cause(tmp_path):
    damaged = tmp_path / "libtfdist_ops.tf2.21.so"
    damaged.write_bytes(b"not an ELF file")
    with pytest.raises(ImportError, match=r"libtfdist_ops.tf2.21.so does not load into TensorFlow"):
        library._load(tf.load_op_library, damaged)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.95])
def test_a_cut_library_is_refused_before_it_ends_the_process(tmp_path, part):
    whole = library.library_path().read_bytes()
    segments = subprocess.run(
        ["readelf", "-lW", library.library_path()], check=True, capture_output=True, text=True
    ).stdout
    loaded = [line.split() for line in segments.splitlines() if line.split()[:1] == ["LOAD"]]
    needed = max(int(line[1], 16) + int(line[4], 16) for line in loaded)
    cut = tmp_path / "libtfdist_ops.tf2.21.so"
    cut.write_bytes(whole[: int(needed * part)])
    with pytest.raises(errors.OpLibraryError) as raised:
        library._load(pytest.fail, cut)
    assert str(raised.value).startswith(
        f"tfdist's op library {cut.name} is damaged: expected {needed} bytes or more, received "
        f"{int(needed * part)}. Install it again"
    )
    cut.write_bytes(whole[:needed])
    assert library._load(str, cut) == str(cut)


def _structures(kind: type = ctypes.Structure) -> list[type]:
    """Returns all ctypes structures of tfdist."""
    found = [kind] if kind.__module__.startswith("tfdist.") else []
    return found + [each for derived in kind.__subclasses__() for each in _structures(derived)]


def test_every_structure_has_the_size_that_it_has_in_the_library():
    registered = library._structures
    assert set(registered.values()) == set(_structures())
    assert len(registered) >= 12
    library.check_structures(library.c_api(), registered, "libtfdist_ops.so")


def test_structures_that_differ_are_named_with_both_sizes():
    class Longer(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_char * 1000)]

    size = ctypes.sizeof(library._structures["client_stats"])
    structures = {**library._structures, "client_stats": Longer, "absent": Longer}
    with pytest.raises(errors.OpLibraryError) as raised:
        library.check_structures(library.c_api(), structures, "libtfdist_ops.tf2.21.so")
    message = str(raised.value)
    assert "libtfdist_ops.tf2.21.so does not fit tfdist's Python code" in message
    assert f"client_stats (expected 1000 bytes, received {size})" in message
    assert "absent (expected 1000 bytes, received none)" in message
    assert message.count("expected") == 2 and "make -C ops lib" in message


def _imported(source: Path) -> set[str]:
    """Returns the names of tfdist that a file imports, also within functions."""
    names = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name for name in names if name.split(".")[0] == "tfdist"}


def test_ops_import_nothing_that_is_built_on_them():
    sources = sorted(Path(library.__file__).parent.rglob("*.py"))
    assert len(sources) > 20
    packages = ("ops", "internals", "errors", "_providers", "_types")
    below = tuple(f"tfdist.{name}" for name in packages)
    for source in sources:
        above = [name for name in _imported(source) if not name.startswith(below)]
        assert not above, source


@pytest.mark.long(covered_by="test_import_is_light_and_every_public_name_resolves")
def test_functions_of_the_packages_above_are_found_after_a_plain_import():
    script = (
        "import tfdist.ops\n"
        "assert tfdist.ops.embedding_lookup.__module__.startswith('tfdist.embedding')\n"
        "for name in tfdist.ops.__all__: getattr(tfdist.ops, name)\n"
        "try: tfdist.ops.barrier()\n"
        "except tfdist.errors.NotInitializedError as error: assert 'barrier: ' in str(error)\n"
        "else: raise AssertionError('expected NotInitializedError')"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize("version", ["2.16.1", "2.18.0", "2.21.0", "2.22.0", "2.19.0-rc0"])
def test_supported_versions_pass(version):
    _compatibility.check_tensorflow(version)


@pytest.mark.parametrize("version", ["2.15.1", "2.23.0", "3.0.0", "1.15.5", "nightly"])
def test_other_versions_are_told_the_range(version):
    with pytest.raises(errors.UnsupportedTensorFlowError) as raised:
        _compatibility.check_tensorflow(version)
    assert f"TensorFlow 2.16 to 2.22, but TensorFlow {version} is installed" in str(raised.value)


def test_absent_tensorflow_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(_compatibility, "TENSORFLOW", ())
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(
        errors.UnsupportedTensorFlowError, match="pip install 'tensorflow>=2.16,<2.23'"
    ):
        _compatibility.check_tensorflow()


def test_a_folder_that_tensorflow_has_left_behind_is_not_tensorflow(monkeypatch):
    monkeypatch.setattr(_compatibility, "TENSORFLOW", ())
    monkeypatch.setitem(sys.modules, "tensorflow", types.ModuleType("tensorflow"))
    with pytest.raises(errors.UnsupportedTensorFlowError, match="no TensorFlow is installed"):
        _compatibility.check_tensorflow()


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import absent_part", "No module named 'absent_part'"),
        ("raise ImportError('libabsent.so: no such file')", "libabsent.so: no such file"),
    ],
)
def test_a_tensorflow_that_cannot_be_imported_is_told_with_the_cause(
    monkeypatch, tmp_path, source, cause
):
    monkeypatch.setattr(_compatibility, "TENSORFLOW", ())
    (tmp_path / "tensorflow.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tensorflow")
    with pytest.raises(errors.UnsupportedTensorFlowError) as raised:
        _compatibility.check_tensorflow()
    assert str(raised.value) == (
        "tfdist needs TensorFlow 2.16 to 2.22, but the TensorFlow that is installed cannot be "
        f"imported: {cause}"
    )


def test_the_distribution_that_is_installed_tells_the_version(monkeypatch):
    def version(distribution):
        if distribution == "keras-nightly":
            return "3.16.0.dev1"
        raise importlib.metadata.PackageNotFoundError(distribution)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert _compatibility.version_of(_compatibility.KERAS) == "3.16.0.dev1"
    assert _compatibility.version_of(_compatibility.TENSORFLOW) is None


def test_import_is_light_and_every_public_name_resolves():
    script = (
        "import sys, tfdist\n"
        "assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules\n"
        "assert sorted(dir(tfdist)) == sorted(tfdist.__all__)\n"
        "for name in tfdist.__all__: getattr(tfdist, name)\n"
        "import tensorflow as tf\n"
        "stock = tf.distribute.MultiWorkerMirroredStrategy\n"
        "assert issubclass(tfdist.MultiWorkerMirroredStrategy, stock)\n"
        "assert tfdist.CollectiveAllReduceStrategy is tfdist.MultiWorkerMirroredStrategy\n"
        "assert issubclass(tfdist.TPUStrategy, tf.distribute.TPUStrategy)\n"
        "assert 'never run' in tfdist.TPUStrategy.__doc__"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_every_exception_is_a_tfdist_error_and_in_the_drawing():
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, Exception):
            assert issubclass(kind, errors.TfdistError)
            assert name in errors.__doc__


def test_a_communicator_checks_its_rank_and_its_port():
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank 2 and size 2"):
        ops.Communicator(2, 2)
    with ops.Communicator(0, 2) as first:
        with pytest.raises(tf.errors.UnavailableError, match=f"cannot bind data port {first.port}"):
            ops.Communicator(1, 2, first.port)
        with pytest.raises(tf.errors.FailedPreconditionError, match="before Connect"):
            ops.all_reduce(tf.constant(1.0), first)
        with pytest.raises(tf.errors.DeadlineExceededError, match="rank 1 "):
            first.connect(bytes(32), 1, ["127.0.0.1:1", "127.0.0.1:2"], 0.2)
        with pytest.raises(ValueError, match="32 bytes, received 3"):
            first.connect(b"abc", 1, ["127.0.0.1:1", "127.0.0.1:2"], 0.2)
