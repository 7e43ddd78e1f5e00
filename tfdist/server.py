"""`python -m tfdist.server`: a parameter server or data task that needs no script.

The task is a `ps`, a `data_dispatcher` or a `data_worker` of the cluster in `TF_CONFIG`. It serves
until the job has ended. Its exit code is that of `tfdist.ps.server.ServerTask.serve` or
`tfdist.data.server.DataTask.serve`.
"""

from __future__ import annotations

import atexit
import logging
import sys

from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.data.server import serve as serve_data
from tfdist.errors import TfdistError
from tfdist.observe import recorder
from tfdist.observe.timeline import recording
from tfdist.ps.server import serve


def main() -> None:
    """Serves, and ends the process."""
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    try:
        cluster, settings = Cluster.from_environment(), Settings.from_environment()
        timeline = recording.start(cluster, settings)
        atexit.register(timeline.close)
        recorder.start(cluster, settings, timeline)
        if cluster.is_data_task:
            serve_data(cluster, settings)
        serve(cluster, settings)
    except TfdistError as error:
        sys.exit(f"tfdist.server: {error}")


if __name__ == "__main__":
    main()
