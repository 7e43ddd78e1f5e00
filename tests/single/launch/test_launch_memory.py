"""The report about a task that was killed: its memory, and the kernel's out-of-memory killer."""

from __future__ import annotations

import pytest

from support.launching import Launcher
from tfdist.launch import memory

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def launch(tmp_path):
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


def test_the_memory_of_a_killed_task_is_told(launch):
    script = """
        held = bytearray(300_000_000)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    code, _, err = launch(script).finish()
    assert code == 137
    (line,) = (line for line in err if "GB of memory at most" in line)
    assert line.startswith("tfdist run: it had 0.3 GB of memory at most of ")


def test_other_signals_have_other_causes(launch):
    _, _, err = launch("os.kill(os.getpid(), signal.SIGSEGV)").finish()
    assert "memory" not in " ".join(err)


def test_the_kernel_s_own_count(monkeypatch):
    monkeypatch.setattr(memory, "kills", lambda: 7)
    told = memory.about_kill(5_200_000_000, 24_000_000_000, 5)
    assert told.startswith(
        "it had 5.2 GB of memory at most of 24.0 GB on its host; the kernel has killed 2 "
    )
    assert "somebody has killed it" in memory.about_kill(0, None, 7)
    assert "somebody has killed it" in memory.about_kill(0, None, None)


def test_what_the_kernel_tells(tmp_path):
    counters = tmp_path / "vmstat"
    assert memory.kills(counters) is None
    counters.write_text("nr_free_pages 5\noom_kill 3\n")
    assert memory.kills(counters) == 3
    machine = tmp_path / "meminfo"
    assert memory.limit(tmp_path, machine) is None
    machine.write_text("MemTotal:       2000 kB\nMemFree: 1 kB\n")
    assert memory.limit(tmp_path, machine) == 2_048_000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.limit(tmp_path, machine) == 2_048_000
    (tmp_path / "memory.max").write_text("1000\n")
    assert memory.limit(tmp_path, machine) == 1000
