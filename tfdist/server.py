"""`python -m tfdist.server`: a parameter server that needs no script.

The task is a `ps` of the cluster in `TF_CONFIG`. It serves until the job has ended. Its exit code
is that of `tfdist.ps.server.ServerTask.serve`.
"""

from __future__ import annotations

import logging
import sys

from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.errors import TfdistError
from tfdist.ps.server import serve


def main() -> None:
    """Serves, and ends the process."""
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    try:
        serve(Cluster.from_environment(), Settings.from_environment())
    except TfdistError as error:
        sys.exit(f"tfdist.server: {error}")


if __name__ == "__main__":
    main()
