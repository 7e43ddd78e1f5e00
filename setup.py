"""Packages tfdist: the Python of three folders, and the op library that `make -C ops lib` builds.

The root's folders `strategies/` and `ops/` are the packages `tfdist.strategies` and `tfdist.ops`.
The symlinks inside `tfdist/` show the same to editors and to tests in the tree; building does not
follow them, or every module would be found twice.
"""

import importlib.metadata
import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import setuptools
from setuptools import Command, Distribution, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist
from setuptools.errors import ExecError, PlatformError

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    sys.exit(
        f"error: building tfdist needs setuptools 70.1 or later, and {sys.executable} has "
        f"{setuptools.__version__}: pip install 'setuptools>=70.1'"
    )

ROOT = Path(__file__).resolve().parent
VERSION = runpy.run_path(str(ROOT / "tfdist" / "_version.py"))
OLDEST, NEWEST = VERSION["MIN_TENSORFLOW"], VERSION["MAX_TENSORFLOW"]
TENSORFLOW = f"tensorflow>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"
MIN_KERAS, MAX_KERAS = VERSION["MIN_KERAS"], VERSION["MAX_KERAS"]
EXTRAS = runpy.run_path(str(ROOT / "tfdist" / "_extras.py"))["EXTRAS"]
KERAS = f"keras>={MIN_KERAS[0]}.{MIN_KERAS[1]},<{MAX_KERAS[0]}.{MAX_KERAS[1] + 1}"
# A folder of op libraries, one for each TensorFlow release, which scripts/wheel puts into a wheel.
# Else one library is compiled, for the TensorFlow of this Python.
LIBRARIES = os.environ.get("TFDIST_OP_LIBRARIES")
FOLDERS = {"tfdist": "tfdist", "tfdist.strategies": "strategies", "tfdist.ops": "ops"}


def packages_in(package: str, folder: Path) -> list[str]:
    """Names `package` and the packages below its folder, not counting packages behind symlinks."""
    found = [package]
    for entry in sorted(folder.iterdir()):
        if not entry.is_symlink() and (entry / "__init__.py").is_file():
            found += packages_in(f"{package}.{entry.name}", entry)
    return found


def installed_tensorflow() -> str:
    """Returns the version of the TensorFlow that this Python imports, or says how to get one."""
    if importlib.util.find_spec("tensorflow") is None:
        raise PlatformError(
            f"building tfdist needs TensorFlow, and {sys.executable} has none: pip install "
            f"'{TENSORFLOW}' 'setuptools>=70.1', then pip install --no-build-isolation ."
        )
    names = importlib.metadata.packages_distributions().get("tensorflow", [])
    version = next((importlib.metadata.version(name) for name in names), "unknown")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and not OLDEST <= tuple(map(int, numbers.groups())) <= NEWEST:
        raise PlatformError(f"tfdist works with {TENSORFLOW}; {sys.executable} has {version}")
    return version


def check_tools() -> None:
    """Says how to get a missing compiler or make."""
    # Options may follow the command, as in CXX.
    tools = ("make", os.environ.get("CXX", "g++"))
    missing = [tool for tool in tools if shutil.which(tool.split()[0]) is None]
    if missing:
        raise PlatformError(
            f"building tfdist needs {' and '.join(missing)}, not found on PATH: "
            "sudo apt-get install build-essential"
        )


def series_of_wheel() -> str | None:
    """The TensorFlow release, such as "2.21", that a wheel is being built for; `None`: for all.

    An sdist is for all releases that tfdist works with. A wheel with one library has its release in
    its version and its requirement. Missing tools are told before any file is copied.
    """
    if LIBRARIES or not {"bdist_wheel", "dist_info", "editable_wheel"} & set(sys.argv):
        return None
    try:
        numbers = re.match(r"\d+\.\d+", installed_tensorflow())
        check_tools()
    except PlatformError as error:
        raise SystemExit(f"error: {error}") from None
    return numbers and numbers[0]


class BuildOpLibrary(build_ext):
    """Runs `make -C ops lib` for this Python's TensorFlow, or copies the given libraries."""

    def run(self) -> None:
        target = self.target_folder()
        if LIBRARIES:
            found = sorted(Path(LIBRARIES).glob("libtfdist_ops.tf*.so"))
            if not found:
                raise ExecError(f"TFDIST_OP_LIBRARIES: no libtfdist_ops.tf*.so in {LIBRARIES}")
            target.mkdir(parents=True, exist_ok=True)
            for library in found:
                self.copy_file(str(library), str(target))
            return
        check_tools()
        version = installed_tensorflow()
        self.announce(f"building the op library for TensorFlow {version}", level=2)
        target.mkdir(parents=True, exist_ok=True)
        command = ["make", "-C", str(ROOT / "ops"), f"-j{os.cpu_count() or 1}", "lib"]
        # Relative, because make cannot name a target whose path has a space.
        command += [f"PYTHON={sys.executable}", f"OUT={os.path.relpath(target, ROOT / 'ops')}"]
        # Flags meant for the outer make (scripts/test under `make test`) are not for this one.
        environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS")}
        status = subprocess.run(command, env=environment).returncode
        if status:
            raise ExecError(f"{' '.join(command)}: exit code {status}, see its messages above")
        if not self.get_outputs():
            raise ExecError(f"{' '.join(command)} left no libtfdist_ops.tf*.so in {target}")

    def target_folder(self) -> Path:
        """Where the library goes: beside its Python, in the tree itself for an editable install."""
        if self.inplace or getattr(self, "editable_mode", False):
            return ROOT / "ops"
        return Path(self.build_lib).resolve() / "tfdist" / "ops"

    def get_outputs(self) -> list[str]:
        return sorted(map(str, self.target_folder().glob("libtfdist_ops.tf*.so")))

    def get_output_mapping(self) -> dict[str, str]:
        return {}

    def get_source_files(self) -> list[str]:
        return []  # MANIFEST.in names them


class SourceTree(sdist):
    """Keeps the symlinks of the tree, so that an unpacked sdist is as good as a clone."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        for folder in ("strategies", "ops"):
            link = Path(base_dir, "tfdist", folder)
            if not link.exists():
                link.symlink_to(Path("..", folder))


class WheelOfAnyPython(bdist_wheel):
    """The op library is for a platform, and uses nothing of the Python that loads it."""

    def get_tag(self) -> tuple[str, str, str]:
        """As `bdist_wheel`."""
        return "py3", "none", super().get_tag()[2]


class PlatformDistribution(Distribution):
    """A wheel of this project holds a library, although setuptools compiled no extension itself."""

    def has_ext_modules(self) -> bool:
        return True


COMMANDS: dict[str, type[Command]] = {
    "bdist_wheel": WheelOfAnyPython,
    "build_ext": BuildOpLibrary,
    "sdist": SourceTree,
}
SERIES = series_of_wheel()

setup(
    name="tfdist",
    version=VERSION["__version__"] + (f"+tf{SERIES}" if SERIES else ""),
    description="Distributed training for TensorFlow 2.16 to 2.22 and Keras 3",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C++",
        "Programming Language :: Python :: 3",
    ],
    python_requires=">=3.10",
    package_dir=FOLDERS,
    packages=[name for top, folder in FOLDERS.items() for name in packages_in(top, ROOT / folder)],
    # Says that the annotations are meant for type checkers (PEP 561).
    package_data={
        **{package: ["py.typed"] for package in FOLDERS},
        "tfdist.observe.live": ["page/*"],
    },
    # BuildOpLibrary puts the library beside tfdist.ops; a stale one of the tree must not follow.
    include_package_data=False,
    install_requires=[
        f"tensorflow=={SERIES}.*" if SERIES else TENSORFLOW,
        KERAS,
        "numpy",
        "grpcio",
        "absl-py",
        # Pure Python, without dependencies: writes Prometheus's text format. Imported for it alone.
        "prometheus_client>=0.20",
    ],
    extras_require={
        **{name: list(packages) for name, packages in EXTRAS.items()},
        # The documentation as a site: mkdocs.yml.
        "docs": [
            "mdx_truly_sane_lists>=1.3,<2",
            "mkdocs>=1.6,<2",
            "mkdocs-material>=9.5,<10",
            "mkdocstrings[python]>=0.30,<2",
        ],
        # For benchmarks alone: their charts, and what TensorFlow's own strategies still work with.
        "bench": ["matplotlib", "tf_keras"],
        "test": [
            "build",
            # Has the schema of GitHub's workflows.
            "check-jsonschema",
            # Pinned: another release would format the same code in another way.
            "clang-format==21.1.2",
            "cryptography>=42",
            # Checks manifests against the schemas in tests/support/kubernetes_schemas.
            "jsonschema",
            # Pinned: tfdist replaces functions of this release. 1.4 MB of Python, with kt-legacy.
            "keras-tuner==1.4.8",
            "matplotlib",
            # Pinned: another release would find other errors.
            "mypy==2.4.1",
            "pyarrow",
            "pytest",
            "pytest-timeout",
            "pytest-xdist",
            "PyYAML",
            "ruff",
            "scikit-learn",
            "tensorflow-estimator==2.15.0",
            *EXTRAS["serve"],
            "tf_keras",
        ],
    },
    entry_points={"console_scripts": ["tfdist = tfdist.cli.main:main"]},
    cmdclass=COMMANDS,
    distclass=PlatformDistribution,
    zip_safe=False,
)
