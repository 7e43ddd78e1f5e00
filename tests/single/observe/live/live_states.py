"""States of tasks, as their answers to `tfdist top` and `tfdist dashboard`."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator


def state(task="worker 0", *, steps=0, pid=7, waits=None, traffic=None, **more):
    """Returns a task's answer, which a test may change."""
    return {
        "format": 2,
        "task": task,
        "role": task.partition(" ")[0],
        "host": "machine",
        "pid": pid,
        "script": "train.py",
        "memory": 300_000_000,
        "cpu": 0.005 * steps,
        "metrics": [
            ["tfdist_info", ["1", "2", "worker"], 1.0],
            ["tfdist_restarts", [], 0],
            ["tfdist_steps", [], steps],
            ["tfdist_samples", [], 32 * steps],
            ["tfdist_communication_seconds", ["workers"], 0.01 * steps],
            ["tfdist_bytes_sent", ["workers"], 1000 * steps],
            ["tfdist_bytes_received", ["workers"], 2000 * steps],
            *(["tfdist_wait_seconds", [peer], waited] for peer, waited in (waits or {}).items()),
        ],
        "traffic": traffic or {},
        "fit": None,
        "curves": {},
        "events": [],
        "since": 10.0,
        **more,
    }


def fit(epoch=2, epochs=5, **more):
    """Returns where a task's `fit` stands."""
    return {
        **{"epoch": epoch, "epochs": epochs, "batch": 3, "batches": 10, "done": 0.26},
        **{"remaining": 75.0, "has_ended": False},
        **more,
    }


@contextlib.contextmanager
def serving(answer: Callable[[str, str], tuple[int, bytes]]) -> Iterator[str]:
    """A task that tells something.

    Args:
      answer: gets the path and the Authorization header; returns status and body.

    Yields:
      Its address.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status, body = answer(self.path, self.headers.get("Authorization", ""))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def telling(*states) -> Iterator[str]:
    """A task that tells one state after the other, and the last one again and again."""
    left = list(states)

    def answer(path, authorization):
        return 200, json.dumps(left.pop(0) if len(left) > 1 else left[0]).encode()

    with serving(answer) as address:
        yield address
