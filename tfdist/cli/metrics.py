"""The command `tfdist metrics`: the configuration by which Prometheus reads a job's metrics."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

DESCRIPTION = """\
Prints what Prometheus needs to read the metrics of a job with TFDIST_METRICS_PORT: the token that
requests from other hosts must carry, or the addresses of the tasks."""
EPILOG = """\
examples:
  tfdist metrics targets --job /tmp/tfdist-1000/4711.json > targets.json
      the tasks of a 'tfdist run', for Prometheus's file_sd_configs
  TFDIST_SECRET_FILE=job.secret tfdist metrics token > token
      the token of a job with this secret, for Prometheus's credentials_file

exit code:
  0; 2 for a wrong command line, a file that is no job file, a job without a secret, or one without
  metrics.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.add_argument(
        "what",
        choices=("token", "targets"),
        help="token: sent with requests from other hosts; targets: the tasks' addresses, as JSON",
    )
    parser.add_argument(
        "--job",
        type=Path,
        metavar="FILE",
        help="the job file of a 'tfdist run' (default for the token: the secret of TFDIST_SECRET "
        "or TFDIST_SECRET_FILE)",
    )


def run(chosen: argparse.Namespace) -> int:
    """Prints it; returns the exit code."""
    # Not above: --help does not need it.
    from tfdist.config.printing import printable
    from tfdist.errors import ClusterConfigError

    try:
        print(_token(chosen.job) if chosen.what == "token" else _targets(chosen.job))
    except ClusterConfigError as error:
        print(f"tfdist metrics: error: {printable(str(error))}", file=sys.stderr)
        return 2
    return 0


def _token(job: Path | None) -> str:
    from tfdist.control.signing import metrics_token
    from tfdist.errors import ClusterConfigError
    from tfdist.observe import observer

    _, secret = observer.cluster_and_secret(job)
    if secret is None:
        raise ClusterConfigError(
            "expected --job, TFDIST_SECRET or TFDIST_SECRET_FILE, received no secret: without one "
            "a job serves its metrics to its own host alone, and needs no token"
        )
    return metrics_token(secret)


def _targets(job: Path | None) -> str:
    from tfdist.config.job_file import JobFile
    from tfdist.errors import ClusterConfigError

    if job is None:
        raise ClusterConfigError("targets: expected --job with a file of 'tfdist run'")
    metrics = JobFile.read(job).metrics
    if not metrics:
        raise ClusterConfigError(
            f"{job}: expected a job that was started with TFDIST_METRICS_PORT, received a job "
            "that serves no metrics"
        )
    return json.dumps([{"targets": list(metrics.values())}])
