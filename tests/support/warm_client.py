"""The program behind warm_python.py's `python`: sends its arguments to the test's process."""

import json
import os
import signal
import socket
import sys


def read(connection: socket.socket) -> int:
    """Returns the next number; 1 if the test's process has ended."""
    with connection.makefile("rb", buffering=0) as stream:
        return int.from_bytes(stream.read(8) or b"\1", "big", signed=True)


with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    request = {
        "arguments": sys.argv[2:],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
    }
    text = json.dumps(request).encode()
    socket.send_fds(server, [len(text).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(text)
    pid = read(server)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    code = read(server)
if code < 0:
    if -code != signal.SIGKILL:  # which has no handler
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
