"""The program and the commands of docs/operate/observability.md, as a user types them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.launching import PACKAGE, Launched
from support.warm_python import interpreter

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/operate/observability.md").read_text()

pytestmark = pytest.mark.timeout(120)


def typed(command, *arguments):
    """Runs `tfdist debug ...`; returns the exit code and the output."""
    done = subprocess.run(
        [sys.executable, "-m", "tfdist", "debug", command, *arguments],
        env={**os.environ, "PYTHONPATH": PACKAGE},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout


@pytest.mark.long(covered_by="test_a_job_that_has_ended, parallel/observe/test_hangs.py")
def test_the_example(tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    script, job = tmp_path / "hangs.py", tmp_path / "job.json"
    script.write_text(program)
    command = [interpreter(), "-m", "tfdist", "run", "--workers", "3", "--job-file", str(job)]
    environment = {**os.environ, "PYTHONPATH": PACKAGE, "TMPDIR": str(tmp_path)}
    environment.pop("TFDIST_DEBUG_DIR", None)
    launched = Launched([*command, str(script)], environment)
    try:
        deadline = time.monotonic() + 60
        explained = ""
        while "which worker 1 did not start" not in explained:
            assert time.monotonic() < deadline, explained
            code, said = typed("dump", "--job", str(job))
            if code != 0 or said.count(": written ") != 3:
                time.sleep(0.1)
                continue
            directory = re.search(r"explain (\S+)'", said)[1]
            assert said.count(f": written {directory}/worker-") == 3
            code, explained = typed("explain", directory)
            assert code == 0
        assert "dumps of: worker 0, worker 1, worker 2\n" in explained
        assert re.search(
            r"worker 0 and worker 2 have waited \d+\.\d s in all_reduce 'step 2' float\[4\], which "
            r"worker 1 did not start\. worker 1 sleeps at \S+/hangs\.py:9 in <module>: "
            r"time\.sleep\(600\)  # stands for the mistake\. Its last collective was all_reduce "
            r"'step 1' float\[4\], which it ended\.\n",
            explained,
        )
        # The page shows the same.
        on_page = " ".join(PAGE.split())
        for part in ("which worker 1 did not start. worker 1 sleeps at", "'step 1' float[4]"):
            assert part in on_page and part in explained
        launched.process.send_signal(signal.SIGINT)
        code, _, errors = launched.finish(timeout=50)
        assert code == 130
        assert (
            f"tfdist run: the tasks' last operations: 'tfdist debug explain {directory}'" in errors
        )
        assert os.stat(directory).st_mode & 0o777 == 0o700
        assert not list(Path(directory).glob("*.sock"))
    finally:
        launched.close()


def test_a_job_that_has_ended(tmp_path):
    code, said = typed("dump", "--job", str(tmp_path / "job.json"))
    assert code == 2 and "no such file; has the job ended?" in said
    code, said = typed("dump", "--dir", str(tmp_path))
    assert code == 2 and "no task of a running job listens here" in said
    code, said = typed("explain", str(tmp_path))
    assert code == 2 and "there are no dumps" in said
    code, said = typed("explain", str(tmp_path / "absent"))
    assert code == 2 and "expected a directory of dumps: No such file" in said
