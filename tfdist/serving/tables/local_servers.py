"""Servers of tables on this machine, each a process, for a command line without addresses."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from tfdist import _providers

_log = logging.getLogger("tfdist.serving")
_LOOK = 0.2
# Seconds in which servers end after SIGTERM.
_END_WAIT = 10.0


def run(options: Sequence[str], count: int) -> int:
    """Runs servers at free ports of the loopback interface until a signal, or until all have ended.

    Args:
      options: of `tfdist ps serve`, without `--servers` and `--index`.
      count: the number of servers.

    Returns:
      128 + the signal's number, or the exit code of the first server that has ended.
    """
    addresses = ",".join(f"127.0.0.1:{port}" for port in _providers.provider("free_ports")(count))
    command = [sys.executable, "-m", "tfdist", "ps", "serve", *options, "--servers", addresses]
    received: list[int] = []
    stop = threading.Event()

    def end(number: int, frame: object) -> None:
        received.append(number)
        stop.set()

    previous = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    # In sessions of their own: Ctrl-C reaches them through this process.
    servers = [
        subprocess.Popen([*command, "--index", str(index)], start_new_session=True)
        for index in range(count)
    ]
    print(f"servers: {addresses}", flush=True)
    codes: dict[int, int] = {}  # of ended servers, in the order of their ends
    try:
        while not stop.wait(_LOOK) and len(codes) < count:
            for index, server in enumerate(servers):
                code = server.poll()
                if code is not None and index not in codes:
                    codes[index] = code
                    _log.error("table server %d has ended with %d", index, code)
        return 128 + received[0] if received else next(iter(codes.values()))
    finally:
        _end(servers)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _end(servers: Sequence[subprocess.Popen]) -> None:
    for server in servers:
        server.terminate()
    for server in servers:
        try:
            server.wait(_END_WAIT)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
