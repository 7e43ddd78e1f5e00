"""SIGTERM as a notice, in small programs that need no TensorFlow."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from support.launching import PACKAGE

pytestmark = pytest.mark.timeout(60)

PRELUDE = """
import os, signal, time
from tfdist.preemption.notice import notice

def tell():
    os.kill(os.getpid(), signal.SIGTERM)

def noticed():
    deadline = time.monotonic() + 60
    while notice.at is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return notice.at is not None
"""


def run(body: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(body)],
        env={**os.environ, "PYTHONPATH": PACKAGE},
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_it_is_taken_within_the_block_only():
    ended = run("""
        with notice.expected():
            with notice.expected():
                pass
            assert signal.getsignal(signal.SIGTERM) == notice._handle
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        with notice.expected():
            tell()
            assert noticed()
        print("continues", flush=True)
        time.sleep(1.1)
        tell()
        time.sleep(20)
    """)
    assert (ended.returncode, ended.stdout) == (143, "continues\n"), ended.stderr
    assert "SIGTERM for the second time" in ended.stderr


def test_a_signal_that_is_passed_on_twice_is_one_notice():
    ended = run("""
        with notice.expected():
            tell()
            assert noticed()
            tell()
            time.sleep(0.5)
    """)
    assert ended.returncode == 0, ended.stderr


def test_an_own_handler_decides():
    ended = run("""
        heard = []
        signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
        with notice.expected():
            tell()
            assert noticed()
            time.sleep(1.1)
            tell()
            time.sleep(0.2)
            assert heard == [1, 1]
            def leave(*_): raise SystemExit(7)
            signal.signal(signal.SIGTERM, leave)
            tell()
            time.sleep(20)
    """)
    assert ended.returncode == 7, ended.stderr


@pytest.mark.parametrize("how", ["ignored", "in another thread"])
def test_where_nothing_is_taken(how):
    ended = run(f"""
        import threading
        def within():
            with notice.expected():
                assert signal.getsignal(signal.SIGTERM) == before
                tell()
                time.sleep(0.5)
        if {how!r} == "ignored":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        before = signal.getsignal(signal.SIGTERM)
        thread = threading.Thread(target=within)
        within() if {how!r} == "ignored" else (thread.start(), thread.join())
        assert notice.at is None
    """)
    assert ended.returncode == (0 if how == "ignored" else -15), ended.stderr


def test_beside_an_event_loop_the_handler_notes_it():
    ended = run("""
        import asyncio
        async def main():
            # As `add_signal_handler` does.
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print, "heard")
            with notice.expected():
                tell()
                assert noticed()
                os.kill(os.getpid(), signal.SIGUSR1)
                await asyncio.sleep(0.2)
        asyncio.run(main())
    """)
    assert (ended.returncode, ended.stdout) == (0, "heard\n"), ended.stderr
