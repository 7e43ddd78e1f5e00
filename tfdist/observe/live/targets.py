"""The addresses at which the tasks of a job report, and the token for them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tfdist.config import validation
from tfdist.config.job_file import JobFile
from tfdist.config.settings import Settings
from tfdist.config.tls import Tls
from tfdist.control.signing import metrics_token
from tfdist.errors import ClusterConfigError


@dataclasses.dataclass(frozen=True)
class Targets:
    """The tasks of a job.

    Args:
      addresses: "host:port" of their metrics, by their names.
      secret: the job's shared secret.
      tls: the origin of the authority that this command trusts; None if the tasks do not encrypt.
    """

    addresses: dict[str, str]
    secret: bytes = dataclasses.field(repr=False)
    tls: Tls | None = None

    @property
    def token(self) -> str:
        """The token that the tasks require in a request."""
        return metrics_token(self.secret)


def find(job: Path | None, targets: str | None) -> Targets:
    """Returns the tasks of a job.

    Args:
      job: the job file of a `tfdist run`.
      targets: the addresses instead, "host:port,host:port"; the secret is the environment's then.

    Raises:
      ClusterConfigError: neither or both are given, or a value is unusable; or the job serves no
        metrics or has no secret.
    """
    if (job is None) == (targets is None):
        raise ClusterConfigError("expected one of --job and --targets")
    if job is not None:
        file = JobFile.read(job)
        if not file.metrics:
            raise ClusterConfigError(
                f"{job}: expected a job whose tasks serve metrics, received one whose tasks serve "
                "none: it has --no-metrics, or several hosts without TFDIST_METRICS_PORT=0"
            )
        addresses = file.metrics
        secret, tls = file.secret_bytes, file.encryption
    else:
        assert targets is not None
        listed = validation.addresses_in(targets, "--targets", "tasks")
        addresses = {address: address for address in listed}
        settings = Settings.from_environment()
        secret, tls = settings.secret, settings.tls
    if secret is None:
        raise ClusterConfigError(
            "expected the job's secret (TFDIST_SECRET or TFDIST_SECRET_FILE), received none: tasks "
            "show what they do to those alone who have it"
        )
    return Targets(addresses, secret, tls)
