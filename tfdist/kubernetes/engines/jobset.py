"""A JobSet: the Jobs of all roles as one object, with a service, started and ended together."""

from __future__ import annotations

from tfdist.kubernetes.engines.indexed import job_spec
from tfdist.kubernetes.names import Object, metadata, roles
from tfdist.kubernetes.options import JobOptions


def objects(job: JobOptions) -> list[tuple[str, Object]]:
    """Returns the JobSet."""
    queue = {} if job.kueue is None else {"kueue.x-k8s.io/queue-name": job.kueue}
    suspend: Object = {} if job.kueue is None else {"suspend": True}
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata(job, job.name, labels=queue),
        "spec": suspend | set_spec(job),
    }
    return [("The tasks. When all workers have ended well, the others are stopped.", jobset)]


def set_spec(job: JobOptions) -> Object:
    """Returns the specification of the JobSet, without what a TrainJob adds."""
    restarts_together = job.elastic is None and not job.ps
    return {
        "network": {
            "enableDNSHostnames": True,
            "subdomain": job.name,
            "publishNotReadyAddresses": True,
        },
        "successPolicy": {"operator": "All", "targetReplicatedJobs": ["worker"]},
        # Parameter servers and elastic jobs continue while a single pod is started again.
        "failurePolicy": {"maxRestarts": job.restarts if restarts_together else 0},
        "replicatedJobs": [
            {
                "name": role,
                "replicas": 1,
                "template": {
                    "spec": job_spec(job, role, restarts_together=restarts_together),
                },
            }
            for role in roles(job)
        ],
    }
