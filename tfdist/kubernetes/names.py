"""The roles of a job on Kubernetes, and the names and labels of its objects and pods.

All engines give a pod the same name, NAME-ROLE-0-INDEX, which is JobSet's.
"""

from __future__ import annotations

from typing import Any

from tfdist.kubernetes.options import JobOptions

Object = dict[str, Any]

ROLES = ("worker", "ps", "evaluator")
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
# The port of metrics in each container.
METRICS = "metrics"
# The key of the metrics' token in the job's secret.
METRICS_TOKEN = "metrics-token"
# The key there of the certificate of the authority that the secret makes.
AUTHORITY = "authority"


def count(job: JobOptions, role: str) -> int:
    """Returns the number of pods of a role that the manifest asks for."""
    return {"worker": job.asked_workers, "ps": job.ps, "evaluator": int(job.evaluator)}[role]


def roles(job: JobOptions) -> list[str]:
    """Returns the roles that the job has, the workers first."""
    return [role for role in ROLES if count(job, role)]


def set_name(job: JobOptions, role: str) -> str:
    """Returns the name of the Job or StatefulSet of a role, as JobSet calls it."""
    return f"{job.name}-{role}-0"


def secret_name(job: JobOptions) -> str:
    """Returns the name of the job's secret."""
    return f"{job.name}-secret"


def tls_name(job: JobOptions) -> str:
    """Returns the name of the secret with the certificate that cert-manager makes."""
    return f"{job.name}-tls"


def host_name(job: JobOptions, role: str, index: int) -> str:
    """Returns the name at which the other pods find a pod of a role."""
    return f"{set_name(job, role)}-{index}.{job.name}"


def metadata(job: JobOptions, name: str, **more: object) -> Object:
    """Returns the metadata of an object of the job."""
    fields: Object = {"name": name}
    if job.namespace is not None:
        fields["namespace"] = job.namespace
    fields["labels"] = {"app.kubernetes.io/name": "tfdist", INSTANCE: job.name}
    fields["labels"] |= more.pop("labels", {})
    return fields | {key: value for key, value in more.items() if value}


def labels(job: JobOptions, role: str) -> dict[str, str]:
    """Returns the labels of the pods of a role."""
    return {"app.kubernetes.io/name": "tfdist", INSTANCE: job.name, COMPONENT: role}
