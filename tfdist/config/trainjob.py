"""The status server of Kubeflow Trainer, to which a pod of a TrainJob may tell its progress.

The controller sets these variables in the pods of the trainer, if its feature gate `TrainJobStatus`
is on:

    KUBEFLOW_TRAINER_SERVER_URL       the https URL of the status of this TrainJob
    KUBEFLOW_TRAINER_SERVER_CA_CERT   the file with the certificate of its authority
    KUBEFLOW_TRAINER_SERVER_TOKEN     the file with the bearer token, which is renewed

Source: KEP-2779 of Kubeflow Trainer,
https://github.com/kubeflow/trainer/tree/master/docs/proposals/2779-trainjob-progress
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class StatusServer:
    """Where and how a pod posts the status of its TrainJob.

    Args:
      url: the URL of the status.
      ca_file: the file with the certificate of its authority.
      token_file: the file with the token of this pod.
    """

    url: str
    ca_file: str
    token_file: str

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> StatusServer | None:
        """Returns the server that an environment names; None outside of such a pod.

        Args:
          environ: variables by name; this process's environment if None.
        """
        environ = os.environ if environ is None else environ
        names = ("URL", "CA_CERT", "TOKEN")
        values = [environ.get(f"KUBEFLOW_TRAINER_SERVER_{name}", "").strip() for name in names]
        return cls(*values) if all(values) else None
