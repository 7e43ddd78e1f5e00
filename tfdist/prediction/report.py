"""The report of `tfdist tasks --output`. It asks no worker: the folder has all of it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tfdist.config.printing import printable_line
from tfdist.data.queue.report import describe
from tfdist.errors import PredictionError
from tfdist.prediction import job_description
from tfdist.prediction.folder import OutputFolder
from tfdist.prediction.progress import PredictionProgress

_LOOK = 1.0  # seconds between the two looks of a rate


def run(output: Path, watch: float | None) -> int:
    """Prints the parts of a prediction.

    Args:
      output: its folder.
      watch: seconds between two reports; `None` ends after the first.

    Returns:
      The exit code.
    """
    folder = OutputFolder(output)
    try:
        progress = PredictionProgress(folder, job_description.read(folder))
        progress.numbers()
        while True:
            time.sleep(_LOOK if watch is None else watch)
            print(describe([progress.numbers()]), flush=True)
            if watch is None:
                return 0
    except FileNotFoundError:
        print(f"tfdist tasks: {output}: expected the output of a prediction", file=sys.stderr)
    except PredictionError as error:
        print(f"tfdist tasks: {printable_line(str(error))}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 1
