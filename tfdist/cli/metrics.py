"""The command `tfdist metrics`: the configuration by which Prometheus reads a job's metrics."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfdist.config.tls import Tls

DESCRIPTION = """\
Prints what Prometheus needs to read the metrics of a job: the addresses of the tasks, the token
that requests must carry, the authority of the tasks' certificates, or a configuration with all. A
request without the token gets status 401, unless the job has TFDIST_METRICS_PORT and all its tasks
are on this machine."""
EPILOG = """\
examples:
  tfdist metrics targets --job /tmp/tfdist-1000/4711.json > targets.json
      the tasks of a 'tfdist run', for Prometheus's file_sd_configs
  tfdist metrics token --job /tmp/tfdist-1000/4711.json > token
      their token, for 'authorization: {credentials_file: token}' in the same scrape config
  (umask 077; tfdist metrics config --job /tmp/tfdist-1000/4711.json > prometheus.yml)
      a whole configuration with them, for 'prometheus --config.file=prometheus.yml'
  TFDIST_SECRET_FILE=job.secret tfdist metrics token > token
      the token of a job with this secret, for Prometheus's credentials_file

  TFDIST_TLS=secret TFDIST_SECRET_FILE=job.secret tfdist metrics authority > job-ca.pem
      the authority of an encrypted job with this secret, for Prometheus's tls_config: ca_file. All
      tasks have the name task.tfdist.invalid there: server_name

exit code:
  0; 2 for a wrong command line, a file that is no job file, a job without a secret, or one without
  metrics.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.add_argument(
        "what",
        choices=("config", "targets", "token", "authority"),
        help="config: a configuration of Prometheus, with the others; targets: the tasks' "
        "addresses, as JSON; token: sent with requests; authority: the certificate that Prometheus "
        "trusts, of a job with TFDIST_TLS=secret",
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
        printed = {
            "token": _token,
            "targets": _targets,
            "config": _config,
            "authority": _authority,
        }
        print(printed[chosen.what](chosen.job))
    except ClusterConfigError as error:
        print(f"tfdist metrics: error: {printable(str(error))}", file=sys.stderr)
        return 2
    return 0


def _token(job: Path | None) -> str:
    from tfdist.control.signing import metrics_token
    from tfdist.errors import ClusterConfigError
    from tfdist.observe import observer

    secret = observer.Access.to(job).secret
    if secret is None:
        raise ClusterConfigError(
            "expected --job, TFDIST_SECRET or TFDIST_SECRET_FILE, received no secret: without one "
            "a job serves its metrics to its own host alone, and needs no token"
        )
    return metrics_token(secret)


def _authority(job: Path | None) -> str:
    from tfdist.errors import ClusterConfigError
    from tfdist.observe import observer

    tls = observer.Access.to(job).tls
    if tls is None or tls.secret is None:
        raise ClusterConfigError(
            "authority: expected a job whose secret makes its certificates (TFDIST_TLS=secret), "
            + (
                "received a job that does not encrypt"
                if tls is None
                else f"received {tls.authority}"
            )
        )
    from tfdist.control.tls.authority import certificate_of  # needs an extra

    return certificate_of(tls.secret).decode().rstrip()


def _targets(job: Path | None) -> str:
    metrics = _addresses("targets", job)
    # For an eye at a terminal: the output is a file's content.
    print(
        "tfdist metrics: note: a request without the job's token gets status 401, unless "
        "TFDIST_METRICS_PORT is set and all tasks are on this machine; "
        f"'tfdist metrics config --job {shlex.quote(str(job))}' prints a configuration of "
        "Prometheus with the token",
        file=sys.stderr,
    )
    return json.dumps([{"targets": metrics}])


def _config(job: Path | None) -> str:
    """Returns a configuration of Prometheus; the values are JSON, which YAML includes."""
    from tfdist.observe import observer

    targets, token = _addresses("config", job), _token(job)
    return (
        "global:\n"
        "  scrape_interval: 5s\n"
        "scrape_configs:\n"
        f"  - job_name: tfdist\n{_encryption(observer.Access.to(job).tls)}"
        "    authorization:\n"
        f"      credentials: {json.dumps(token)}\n"
        "    static_configs:\n"
        f"      - targets: {json.dumps(targets)}"
    )


def _encryption(tls: Tls | None) -> str:
    """Returns the lines of a configuration by which Prometheus verifies the tasks."""
    if tls is None:
        return ""
    authority = f"ca_file: {json.dumps(tls.authority)}"
    if tls.secret is not None:
        from tfdist.config.tls import FIXED_NAME
        from tfdist.control.tls.authority import certificate_of  # needs an extra

        certificate = json.dumps(certificate_of(tls.secret).decode())
        authority = f"ca: {certificate}\n      server_name: {FIXED_NAME}"
    return f"    scheme: https\n    tls_config:\n      {authority}\n"


def _addresses(what: str, job: Path | None) -> list[str]:
    from tfdist.config.job_file import JobFile
    from tfdist.errors import ClusterConfigError

    if job is None:
        raise ClusterConfigError(f"{what}: expected --job with a file of 'tfdist run'")
    metrics = JobFile.read(job).metrics
    if not metrics:
        raise ClusterConfigError(
            f"{job}: expected a job whose tasks serve metrics, received none of them"
        )
    return list(metrics.values())
