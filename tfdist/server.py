"""`python -m tfdist.server`: a parameter server or data task that needs no script.

The task is a `ps`, a `data_dispatcher` or a `data_worker` of the cluster in `TF_CONFIG`. It serves
until the job has ended. Its exit code comes from `tfdist.ps.server.ServerTask.serve` or
`tfdist.data.server.DataTask.serve`.
"""

from __future__ import annotations

import logging
import sys

from tfdist.config.cluster import Cluster
from tfdist.errors import ClusterConfigError, TfdistError
from tfdist.job.start import serve


def main() -> None:
    """Serves, and ends the process."""
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    try:
        cluster = Cluster.from_environment()
        serve(cluster)
        raise ClusterConfigError(
            f"expected a ps or data task to serve, received {cluster.task_name}: every other task "
            "runs the script"
        )
    except TfdistError as error:
        sys.exit(f"tfdist.server: {error}")


if __name__ == "__main__":
    main()
