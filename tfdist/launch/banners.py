"""The lines that TensorFlow prints in each task before the program prints any.

They say the same in all tasks, so the launcher shows only the banners of rank 0.
"""

from __future__ import annotations

import re

# A line that is none of these is never left out.
_BANNER = re.compile(
    "|".join(
        (
            r"WARNING: All log messages before absl::InitializeLog\(\) is called are written to ",
            r".*\] oneDNN custom operations are on\. ",
            r".*\] Could not find cuda drivers on your machine, GPU will not be used\.",
            r".*\bcpu_feature_guard\.cc:\d+\] This TensorFlow binary is optimized to use ",
            r"To enable the following instructions: .* rebuild TensorFlow with the appropriate ",
            r".*\] failed call to cuInit: ",
            r".*\] Unable to register cu\w+ factory: Attempting to register factory ",
            r".*\] computation placer already registered\. ",
            r".*\] TF-TRT Warning: Could not find TensorRT",
        )
    )
)


def is_banner(line: str) -> bool:
    """Whether a line is one of them."""
    return _BANNER.match(line) is not None


class Banners:
    """Recognises the banners at the start of one stream of a task."""

    def __init__(self) -> None:
        self._is_start = True

    def has(self, line: str) -> bool:
        """Whether the stream's next line is a banner; none is after the first other line."""
        self._is_start = self._is_start and is_banner(line)
        return self._is_start
