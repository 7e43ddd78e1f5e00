"""Scripts whose tasks end in another order than they fail."""

from __future__ import annotations

RECORDS = """
import atexit
from tfdist.config.cluster import Cluster
from tfdist.job import process
process.current.record(Cluster.from_environment())
"""
# A failed task tells the others, and waits for them.
VICTIM_ENDS_FIRST = (
    RECORDS
    + """
if me == "worker 1":
    def leave():
        (here / "failed").touch()
        wait_for_end("pid worker 0")
    atexit.register(leave)
    FAIL
leave_pid()
wait_for_file("failed")
raise RuntimeError("a peer has ended")
"""
)
