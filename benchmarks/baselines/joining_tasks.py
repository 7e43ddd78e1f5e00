"""Tasks that join a job, each in its own process, and what that costs them."""

from __future__ import annotations

import os
import time


class JoiningTask:
    """A worker that has imported everything, and has not joined its job yet."""

    def __init__(self, tf_config: str) -> None:
        os.environ["TF_CONFIG"] = tf_config
        import tfdist.control.tls.credentials  # noqa: F401  # and the package cryptography
        from tfdist import ops  # noqa: F401
        from tfdist.job import process  # noqa: F401

    def ready(self) -> None:
        """Returns when everything is imported, which is true after its creation."""

    def join(self) -> float:
        """Joins the job; returns the processor seconds that this has taken."""
        from tfdist.config.cluster import Cluster
        from tfdist.job import process

        began = time.process_time()
        process.current.join(Cluster.from_environment())
        return time.process_time() - began
