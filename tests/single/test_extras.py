"""The extras: pages list them all, and no printed command asks a package index for tfdist."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist._extras import EXTRAS, install_command, install_command_here

ROOT = Path(__file__).parents[2]
FOLDERS = ("tfdist", "strategies", "ops", "docs", "estimator_examples", "keras_examples")
# Shows the command in order to say that it finds nothing.
INSTALL_PAGE = ROOT / "docs/start/install.md"


def declared() -> dict[str, set[str]]:
    """The extras that `setup.py` gives to setuptools."""
    program = (
        "import setuptools, sys\n"
        "setuptools.setup = lambda **given: print(given['extras_require'])\n"
        "sys.argv = ['setup.py', '--version']\n"
        "import runpy; runpy.run_path('setup.py')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return {name: set(packages) for name, packages in eval(done.stdout).items()}


def test_the_page_lists_all_extras():
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", INSTALL_PAGE.read_text(), re.MULTILINE)
    listed = {name: row for names, row in rows for name in re.findall("`(.*?)`", names)}
    extras = declared()
    assert listed.keys() >= extras.keys()
    assert extras.keys() - EXTRAS.keys() == {"bench", "docs", "test"}
    for name in extras.keys() - {"docs", "test"}:
        assert set(re.findall("`(.*?)`", listed[name])) == extras[name]


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_command_installs_the_packages(extra):
    command = install_command(extra)
    assert command.startswith("pip install ") and "tfdist" not in command
    assert all(package in command for package in EXTRAS[extra])


@pytest.mark.parametrize(
    ("version", "ending"),
    [("2.19.1", "tf_keras tensorflow==2.19.1"), (None, "tf_keras --no-deps")],
)
def test_a_command_leaves_the_installed_tensorflow(monkeypatch, version, ending):
    def installed(distribution):
        if version is None:
            raise importlib.metadata.PackageNotFoundError(distribution)
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)
    command = install_command_here("estimator")
    assert command == f"pip install tensorflow-estimator==2.15.0 {ending}"


def test_no_printed_command_needs_tfdist_on_an_index():
    files = [ROOT / "README.md", ROOT / "benchmarks/README.md"]
    for folder in FOLDERS:
        files += [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.md")]
    found = [
        f"{file.relative_to(ROOT)}: {line}"
        for file in files
        if file != INSTALL_PAGE
        for line in file.read_text().splitlines()
        if re.search(r"pip install.*[ '\"]tfdist(\[|['\"`]|$)", line)
    ]
    assert found == []
