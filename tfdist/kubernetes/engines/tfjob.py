"""Kubeflow's TFJob, version 1, which Kubeflow has deprecated. Its operator writes `TF_CONFIG`."""

from __future__ import annotations

from tfdist.kubernetes.names import Object, metadata, roles
from tfdist.kubernetes.options import JobOptions
from tfdist.kubernetes.pods import template

_ROLES = {"ps": "PS", "evaluator": "Evaluator"}


def objects(job: JobOptions) -> list[tuple[str, Object]]:
    """Returns the TFJob."""
    queue = {} if job.kueue is None else {"kueue.x-k8s.io/queue-name": job.kueue}
    policy: Object = {"backoffLimit": job.restarts, "cleanPodPolicy": "Running"}
    if job.kueue is not None:
        policy = {"suspend": True} | policy
    replicas: Object = {}
    for role in roles(job):
        if role == "worker":
            workers = job.max_workers
            if job.has_chief:
                replicas["Chief"] = _replica(job, role, 1)
                workers -= 1
            if workers:
                replicas["Worker"] = _replica(job, role, workers)
        else:
            replicas[_ROLES[role]] = _replica(job, role, job.ps if role == "ps" else 1)
    spec: Object = {"runPolicy": policy}
    if not job.has_chief:
        # Without it the end of worker 0 is the end of the job.
        spec["successPolicy"] = "AllWorkers"
    tfjob = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": metadata(job, job.name, labels=queue),
        "spec": spec | {"tfReplicaSpecs": replicas},
    }
    comment = (
        "The tasks. Kubeflow has deprecated TFJob: for a new job use --engine jobset or trainjob."
    )
    return [(comment, tfjob)]


def _replica(job: JobOptions, role: str, replicas: int) -> Object:
    # 128 to 255 starts the pod again, 143 among them; 1 to 127 fails the job.
    fields: Object = {"replicas": replicas, "restartPolicy": "ExitCode"}
    return fields | {"template": template(job, role)}
