"""Memory of this process, for programs with TensorFlow or PyTorch.

It imports neither.
"""

import threading
from pathlib import Path

MB = 1 << 20
PAUSE = 0.005  # seconds


def resident() -> int:
    """Bytes of this process's memory, without freed pages that the kernel may take."""
    fields = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, size, _ = line.split()
        fields[name] = int(size) << 10
    return fields["Rss:"] - fields["LazyFree:"]


class Peak:
    """The largest `resident` within a `with` block."""

    def __enter__(self) -> "Peak":
        self.bytes = resident()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._ends.wait(PAUSE):
            self.bytes = max(self.bytes, resident())

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
