"""docs/operate/preemption.md: its program under `tfdist run` ends, starts again and ends."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest

from support.launching import Launcher

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.long(
        covered_by="parallel/keras/test_preemption.py, single/launch/test_launch_notice.py"
    ),
]
PAGE = Path(__file__).parents[3] / "docs/operate/preemption.md"


@pytest.fixture
def launch(tmp_path):
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


def wait_for_epoch(file, epoch):
    """Waits for a backup at the end of an epoch that is at least `epoch`, from 0."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        # The file may be incomplete.
        found = re.search(r'"epoch": (\d+), "batch": 0', file.read_text() if file.exists() else "")
        if found and int(found[1]) >= epoch:
            return
        time.sleep(0.02)
    raise AssertionError(f"no backup of epoch {epoch}")


def test_the_page_s_program_saves_and_goes_on(launch, tmp_path):
    (program, _) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    metadata = tmp_path / "backup" / "training_metadata.json"
    epoch = 0
    for _ in range(2):
        launched = launch(program, "--workers", "2", streams={"cwd": tmp_path})
        wait_for_epoch(metadata, epoch + 1)
        launched.process.send_signal(signal.SIGTERM)
        code, _, err = launched.finish(60)
        assert code == 143, err
        stopped = re.compile(r"stopped in epoch (\d+) after batch (\d+); saved (.*) \(.*\)")
        ends = [found for found in map(stopped.search, err) if found]
        assert len(ends) == 2 and ends[0].group(1, 2) == ends[1].group(1, 2), err
        assert {end[3] for end in ends} == {"to backup", "by the chief to backup"}
        assert int(ends[0][1]) > epoch
        epoch, batch = int(ends[0][1]) - 1, int(ends[0][2]) - 1
        assert json.loads(metadata.read_text()) == {"epoch": epoch, "batch": batch}
    assert (tmp_path / "backup" / "latest.weights.h5").stat().st_size > 0
