"""`tfdist top`: a table of a running job, again and again."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from tfdist.config.printing import printable
from tfdist.errors import ClusterConfigError
from tfdist.observe.live import targets
from tfdist.observe.live.records import JobActivity, activity
from tfdist.observe.live.sampler import Sampler
from tfdist.observe.live.table import describe

# Of ECMA-48: to the upper left corner; erase to the end of the line, of the screen.
_HOME, _END_LINE, _END_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def run(job: Path | None, addresses: str | None, interval: float, once: bool) -> int:
    """Shows the tasks.

    Args:
      job, addresses: as for `targets.find`.
      interval: seconds between two looks.
      once: whether to end after the first table.

    Returns:
      The exit code: 1 if a task did not answer in the last look, or the job has ended.
    """
    try:
        sampler = Sampler(targets.find(job, addresses))
    except ClusterConfigError as error:
        print(f"tfdist top: error: {printable(str(error))}", file=sys.stderr)
        return 2
    draws = sys.stdout.isatty() and not once
    try:
        before = sampler.sample()
        if draws:
            # The values known at once; rates need a second look.
            _show(activity(before, before), draws)
        while True:
            time.sleep(interval)
            after = sampler.sample()
            seen = activity(before, after)
            _show(seen, draws)
            if once:
                return 1 if any(task.problem for task in seen.tasks) else 0
            if job is not None and not job.exists() and all(t.problem for t in seen.tasks):
                print(f"tfdist top: the job has ended: {job} is gone", file=sys.stderr)
                return 0
            before = after
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # `tfdist top | head` has seen enough; what is left must not be flushed at exit.
        sys.stdout = None
        return 0
    finally:
        sampler.close()


def _show(job: JobActivity, draws: bool) -> None:
    text = describe(job)
    if not draws:
        print(f"{text}\n", flush=True)
        return
    columns, rows = shutil.get_terminal_size()
    lines = [time.strftime("%H:%M:%S  ") + text, "Ctrl-C ends"]
    shown = "\n".join(lines).split("\n")
    if len(shown) > rows - 1:
        shown = [*shown[: rows - 2], f"... and {len(shown) - rows + 2} more lines"]
    body = "\n".join(line[:columns] + _END_LINE for line in shown)
    print(f"{_HOME}{body}{_END_SCREEN}", end="", flush=True)
