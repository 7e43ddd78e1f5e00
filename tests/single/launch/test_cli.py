"""The command line: help, errors, and a quick start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tfdist.launch.cli
from tfdist._version import __version__

PACKAGE = str(Path(tfdist.__file__).parents[1])


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        tfdist.launch.cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"tfdist {__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"]])
def test_help_shows_an_example(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        tfdist.launch.cli.main(arguments)
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "tfdist run --workers 2 train.py" in out
    assert max(map(len, out.splitlines())) <= 100


def test_run_help_names_every_option(capsys):
    with pytest.raises(SystemExit):
        tfdist.launch.cli.main(["run", "--help"])
    out = capsys.readouterr().out
    for option in ("--workers", "--ps", "--evaluator", "--log-dir", "--timeout", "--restarts"):
        assert option in out
    assert "--data-workers" in out


def test_without_a_command_it_explains_itself(capsys):
    assert tfdist.launch.cli.main([]) == 2
    assert "tfdist run" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "expected a script to run, received none"),
        (["run", "--workers", "2"], "expected a script to run, received none"),
        (["run", "--"], "expected a script to run, received none"),
        (["run", "nowhere.py"], "expected a script, but nowhere.py does not exist"),
        (["run", "."], "expected a script, but . is not a file"),
        (["run", "--workers", "0", "x.py"], "expected a whole number, 1 or more, received '0'"),
        (["run", "--workers", "-2", "x.py"], "expected a whole number, 1 or more, received '-2'"),
        (["run", "--workers", "two", "x.py"], "1 or more, received 'two'"),
        (["run", "--ps", "-1", "x.py"], "expected a whole number, 0 or more, received '-1'"),
        (["run", "--restarts", "-1", "x.py"], "expected a whole number, 0 or more, received '-1'"),
        (["run", "--restarts", "1.5", "x.py"], "a whole number, 0 or more, received '1.5'"),
        (["run", "--restarts", "x.py"], "argument --restarts: expected a whole number, 0 or more"),
        (["run", "--timeout", "0", "x.py"], "expected seconds, more than 0, received '0'"),
        (["run", "--timeout", "inf", "x.py"], "expected seconds, more than 0, received 'inf'"),
        (["run", "--log-dir", __file__, __file__], "--log-dir: expected a directory, but"),
        (["run", "--work", "2", __file__], "unrecognized arguments: --work"),
        (["ran"], "invalid choice: 'ran'"),
    ],
)
def test_a_wrong_command_line_is_refused(capsys, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        tfdist.launch.cli.main(arguments)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert not out
    assert message in err.splitlines()[-1]


def test_the_launcher_does_not_import_tensorflow(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('hello')\n")
    program = (
        "import sys; from tfdist.launch.cli import main\n"
        f"code = main(['run', {str(script)!r}])\n"
        "heavy = {'tensorflow', 'keras', 'numpy', 'grpc'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": PACKAGE},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[worker 0] hello\n"
