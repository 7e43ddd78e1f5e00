"""A drained node as a preemption notice.

Ray tells its schedulers, but not a node's processes, that the node is going to be taken away
(ray#63968). So each task asks once a second, and sends SIGTERM to itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator

# No public function tells of draining nodes; Ray Serve uses this one, too.
from ray._private.state import state

_log = logging.getLogger("tfdist.ray")
_PERIOD = 1.0


@contextlib.contextmanager
def watch_for_drain(node: str) -> Iterator[None]:
    """Sends SIGTERM to this process once its node is drained, for the duration of a `with` block.

    Args:
      node: the id of this node, hexadecimal.
    """
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_PERIOD):
            if node in state.get_draining_nodes():
                _log.warning("node %s is drained: SIGTERM to this process", node[:8])
                os.kill(os.getpid(), signal.SIGTERM)
                return

    thread = threading.Thread(target=watch, name="tfdist-drain", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
