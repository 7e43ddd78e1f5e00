"""StatefulSets, for an elastic job without an end: the kind that an autoscaler can set.

Their pods are started again whenever they end. So the script trains on data that continue, or waits
for new tasks, and the user deletes the job.
"""

from __future__ import annotations

from tfdist.kubernetes.names import Object, count, labels, metadata, roles, set_name
from tfdist.kubernetes.options import JobOptions
from tfdist.kubernetes.pods import template


def objects(job: JobOptions) -> list[tuple[str, Object]]:
    """Returns a StatefulSet for each role."""
    what = {
        "worker": f"The workers, {job.min_workers} to {job.max_workers}.",
        "ps": "The parameter servers.",
    }
    return [(what[role], _stateful_set(job, role)) for role in roles(job)]


def _stateful_set(job: JobOptions, role: str) -> Object:
    queue: dict[str, str] = {}
    if job.kueue is not None:
        queue["kueue.x-k8s.io/queue-name"] = job.kueue
    # Of an autoscaled set a number here would undo the autoscaler's with each kubectl apply.
    is_autoscaled = role == "worker" and job.tasks_per_worker is not None
    replicas: Object = {} if is_autoscaled else {"replicas": count(job, role)}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(job, set_name(job, role), labels=labels(job, role) | queue),
        "spec": replicas
        | {
            "serviceName": job.name,
            # The tasks wait for each other, so that none can be ready before the next is started.
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels(job, role)},
            "template": template(job, role),
        },
    }
