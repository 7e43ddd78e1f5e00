"""The command line: help, errors, and a quick start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tfdist.cli.main
from tfdist._version import __version__

PACKAGE = str(Path(tfdist.__file__).parents[1])


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        tfdist.cli.main.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"tfdist {__version__}\n"


@pytest.mark.parametrize("words", [("-m", "tfdist"), ("bin/tfdist",)])
def test_another_tensorflow_is_told_in_one_line(tmp_path, words):
    information = tmp_path / "tensorflow-2.15.1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.15.1\n"
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tfdist").write_text("from tfdist.cli.main import main\nmain()\n")
    ended = subprocess.run(
        [sys.executable, *words, "run", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{PACKAGE}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1 and ended.stdout == ""
    assert ended.stderr == (
        "tfdist: error: tfdist works with TensorFlow 2.16 to 2.22, but TensorFlow 2.15.1 is "
        "installed. Install a supported one with `pip install 'tensorflow>=2.16,<2.23'`, or a "
        "tfdist release that supports yours.\n"
    )


@pytest.mark.parametrize(
    "command",
    [
        *("run", "scale", "tasks", "top", "dashboard", "env", "check", "plan"),
        *("debug dump", "debug explain", "timeline start", "k8s render", "k8s secret"),
    ],
)
def test_help_fits_the_terminal(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as ended:
        tfdist.cli.main.main([*command.split(), "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert f"tfdist {command}" in out and "exit code:" in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"]])
def test_help_shows_an_example(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        tfdist.cli.main.main(arguments)
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "tfdist run --workers 2 train.py" in out
    assert max(map(len, out.splitlines())) <= 100


def test_run_help_names_every_option(capsys):
    with pytest.raises(SystemExit):
        tfdist.cli.main.main(["run", "--help"])
    out = capsys.readouterr().out
    for option in ("--workers", "--ps", "--evaluator", "--log-dir", "--timeout", "--restarts"):
        assert option in out
    for option in ("--data-workers", "--max-restarts", "MIN:MAX:START"):
        assert option in out
    assert "tfdist run --workers 2:8:4 train.py" in out


def test_scale_help_says_what_it_does(capsys):
    with pytest.raises(SystemExit):
        tfdist.cli.main.main(["scale", "--help"])
    out = capsys.readouterr().out
    for text in ("tfdist scale 4 --job", "SIGTERM", "2 if the job has ended", "--job FILE"):
        assert text in out
    with pytest.raises(SystemExit):
        tfdist.cli.main.main(["--help"])
    assert "scale" in capsys.readouterr().out


def test_without_a_command_it_explains_itself(capsys):
    assert tfdist.cli.main.main([]) == 2
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
        (["run", "--workers", "-2", "x.py"], "in whole numbers; received '-2'"),
        (
            ["run", "--workers", "2-4", "x.py"],
            "expected N, MIN:MAX or MIN:MAX:START, such as 4, 2:8 or 2:8:4, in whole numbers; "
            "received '2-4'",
        ),
        (["run", "--workers", "4:2", "x.py"], "--workers 4:2: expected MAX to be at least MIN = 4"),
        (["run", "--workers", "0:2", "x.py"], "MIN to be a positive integer, received 0"),
        (
            ["run", "--workers", "2:4:5", "x.py"],
            "--workers 2:4:5: expected START to be 2 to 4, received 5",
        ),
        (["run", "--hosts", "a:0", "x.py"], "error: argument --hosts: expected 1 to 4096 slots"),
        (["run", "--workers", "2:4:0", "x.py"], "to be a positive integer, received 0"),
        (["run", "--workers", "2:", "x.py"], "expected N, MIN:MAX or MIN:MAX:START"),
        (["run", "--workers", "2:x", "x.py"], "in whole numbers; received '2:x'"),
        (["run", "--workers", "2:4", "--evaluator", __file__], "only; received --evaluator"),
        (
            ["run", "--workers", "2:4", "--data-workers", "3", __file__],
            "--data-workers: expected none with --workers MIN:MAX, since an elastic job has "
            "workers and parameter servers only; received --data-workers 3",
        ),
        (
            ["run", "--workers", "2:4", "--restarts", "3", __file__],
            "--restarts: expected none with --workers MIN:MAX, since an elastic job restarts "
            "single workers, --max-restarts times; received --restarts 3",
        ),
        (
            ["run", "--workers", "2", "--max-restarts", "3", __file__],
            "--max-restarts: expected an elastic job (--workers MIN:MAX), received --workers 2; "
            "--restarts is for other jobs",
        ),
        (["run", "--workers", "2:4", "--max-restarts", "-1", "x.py"], "0 or more, received '-1'"),
        (["run", "--ps", "-1", "x.py"], "expected a whole number, 0 or more, received '-1'"),
        (["run", "--restarts", "-1", "x.py"], "expected a whole number, 0 or more, received '-1'"),
        (["run", "--restarts", "1.5", "x.py"], "a whole number, 0 or more, received '1.5'"),
        (["run", "--restarts", "x.py"], "argument --restarts: expected a whole number, 0 or more"),
        (["run", "--timeout", "0", "x.py"], "expected seconds, more than 0, received '0'"),
        (["run", "--timeout", "inf", "x.py"], "expected seconds, more than 0, received 'inf'"),
        (["run", "--log-dir", __file__, __file__], "--log-dir: expected a directory, but"),
        (["run", "--work", "2", __file__], "no option --work; did you mean --workers?"),
        (["run", "--pss=2", __file__], "tfdist run: error: there is no option --pss; did you mean"),
        (
            ["run", "--bind", "cors", __file__],
            "there is no 'cors'; did you mean core? (choose from",
        ),
        (["ran"], "tfdist: error: there is no 'ran'; did you mean run? (choose from run, predict"),
        (["ps", "stat"], "tfdist ps: error: there is no 'stat'; did you mean stats?"),
        (["frobnicate"], "there is no 'frobnicate' (choose from run, predict, scale"),
    ],
)
def test_a_wrong_command_line_is_refused(capsys, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        tfdist.cli.main.main(arguments)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert not out
    assert message in err.splitlines()[-1]


def test_the_launcher_does_not_import_tensorflow(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('hello')\n")
    program = (
        "import sys; from tfdist.cli.main import main\n"
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
    assert done.returncode == 0 and done.stderr.count("\n") == 1  # the path of the job file
    assert done.stdout == "[worker 0] hello\n"


def test_a_module(monkeypatch):
    received = []
    monkeypatch.setattr("tfdist.launch.run.run", lambda options: received.append(options) or 0)
    assert tfdist.cli.main.main(["run", "--workers", "2", "-m", "my.module", "-m", "1"]) == 0
    (options,) = received
    assert (options.script, options.module, options.arguments) == (None, "my.module", ["-m", "1"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "--parameters", "1M", "--compute", "1", "--workers", "2", "--bandwidth", "1MB/s"),
        ("env",),
    ],
)
def test_a_reader_that_ends_before_the_output(arguments):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        ended = subprocess.run(
            [sys.executable, "-m", "tfdist", *arguments],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env=os.environ | {"PYTHONPATH": PACKAGE},
        )
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["x.py", "--workers=3", "--epochs", "2", "--ps", "1"], ["--workers=3", "--ps 1"]),
        (["x.py", "--evaluator", "3", "--log-dir"], ["--evaluator", "--log-dir"]),
        (["--workers", "2", "x.py", "--workers", "3"], []),
        (["x.py", "--epochs", "2", "--help", "-m", "1", "workers"], []),
    ],
)
def test_options_after_the_script_are_told(capfd, monkeypatch, tmp_path, words, told):
    (tmp_path / "x.py").touch()
    monkeypatch.chdir(tmp_path)
    received = []
    monkeypatch.setattr("tfdist.launch.run.run", lambda options: received.append(options) or 0)
    assert tfdist.cli.main.main(["run", *words]) == 0
    assert received[0].arguments == words[words.index("x.py") + 1 :]
    rest = "comes after x.py and is given to it; options of tfdist run come before x.py"
    assert capfd.readouterr().err.splitlines() == [
        f"tfdist run: note: {option} {rest}" for option in told
    ]
