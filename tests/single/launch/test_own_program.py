"""Programs of tfdist's own import nothing from the current directory, in which others may write."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import tfdist
from single.launch.fake_ssh import make_fake_ssh
from support.launching import PACKAGE
from tfdist.config.own_program import own_module

# Python outside any virtual environment.
BASE = os.path.join(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
HOSTS = "127.0.0.2:1,127.0.0.3:1"
PLANTED = ("json", "os", "runpy", "importlib", "random", "tfdist", "numpy")


@pytest.fixture
def planted(tmp_path):
    """A folder in which each module would leave a file if it were imported."""
    folder = tmp_path / "planted"
    for name in PLANTED:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(
            f"import sys; open({str(tmp_path / 'ran')!r}, 'a').write({name!r} + '\\n')\n"
            "raise ImportError('this is the planted one')\n"
        )
    return folder


def run(command, folder, **environment):
    """Runs Python in a folder; returns the exit code and all its output."""
    ended = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PACKAGE, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=60,
    )
    return ended.returncode, ended.stdout


# As the program `tfdist` begins, which has its own folder in the path.
MAIN = "import sys; sys.path[0] = {path!r}; from tfdist.cli.main import main; sys.exit(main())"


def tfdist_in(folder, *arguments):
    return run(["-c", MAIN.format(path=PACKAGE), *arguments], folder)


def test_an_agent_imports_nothing_from_the_launchers_directory(planted, tmp_path):
    script = tmp_path / "script.py"
    (tmp_path / "beside.py").write_text("")
    # The script has Python's usual path: its own folder first.
    script.write_text("import beside, os, sys; print(sys.path[0], os.getcwd())\n")
    ssh = make_fake_ssh(tmp_path)
    code, out = tfdist_in(planted, "run", "--ssh", str(ssh), "--hosts", HOSTS, str(script))
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
    assert code == 0 and out.count(f"{tmp_path} {planted}") == 2, out


def test_a_host_without_tfdist_is_named(planted, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("")
    options = ["--ssh", str(make_fake_ssh(tmp_path)), "--python", BASE, "--hosts", "127.0.0.2:1"]
    main = MAIN.format(path=PACKAGE)
    code, out = run(["-c", main, "run", *options, str(script)], planted, PYTHONPATH="")
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
    assert code != 0 and "Traceback" not in out
    expected = f"expected tfdist among the packages of {BASE}, or in a folder of PYTHONPATH"
    assert f"host 127.0.0.2: its agent did not start (exit code 1): {expected}" in out


def test_a_module_of_tfdist_is_the_installed_one(planted, tmp_path):
    code, out = tfdist_in(planted, "run", "--workers", "2", "-m", "tfdist", "--version")
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
    assert code == 0 and out.count(tfdist.__version__) == 2, out


def test_a_module_of_the_user_is_found_as_by_python(tmp_path):
    (tmp_path / "mine.py").write_text("import sys; print('path', repr(sys.path[0]))\n")
    code, out = tfdist_in(tmp_path, "run", "--workers", "1", "-m", "mine")
    assert code == 0 and f"path {str(tmp_path)!r}" in out


def test_a_script_is_measured_with_the_installed_tfdist(planted, tmp_path):
    script = tmp_path / "script.py"
    (tmp_path / "beside.py").write_text("")
    script.write_text("import beside, sys; print('path', sys.path[0]); sys.exit(7)\n")
    options = ["--model", str(script), "--workers", "2", "--bandwidth", "1GB/s"]
    code, out = tfdist_in(planted, "plan", *options)
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
    assert code != 0 and f"path {tmp_path}" in out and "exit code 7" in out, out


def test_the_users_own_packages_are_found(tmp_path):
    """`python -I` would leave them out."""
    site = tmp_path / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    site.mkdir(parents=True)
    (site / "of_the_user.py").write_text("print('found')\n")
    # A virtual environment has no packages of the user.
    command = [BASE, *own_module("of_the_user")]
    ended = subprocess.run(
        command, env={"PYTHONUSERBASE": str(tmp_path)}, capture_output=True, timeout=60
    )
    assert ended.stdout == b"found\n", ended.stderr
