"""Indexed Jobs, one for each role: Kubernetes alone, without any controller to install.

Its elastic jobs can be scaled: `parallelism` and `completions` of an indexed Job may be changed
together while it runs. A JobSet permits it since release 0.12, behind the feature gate
`ElasticJobSet` (https://github.com/kubernetes-sigs/jobset/tree/main/keps/463-ElasticJobsets).
"""

from __future__ import annotations

from tfdist.kubernetes.engines.indexed import job_spec
from tfdist.kubernetes.names import Object, labels, metadata, roles, set_name
from tfdist.kubernetes.options import JobOptions


def objects(job: JobOptions) -> list[tuple[str, Object]]:
    """Returns a Job for each role."""
    return [(_comment(job, role), _job(job, role)) for role in roles(job)]


def _job(job: JobOptions, role: str) -> Object:
    queue: dict[str, str] = {}
    annotations: dict[str, str] = {}
    if job.kueue is not None:
        queue["kueue.x-k8s.io/queue-name"] = job.kueue
        if role == "worker" and job.min_workers < job.asked_workers:
            annotations = {
                "kueue.x-k8s.io/job-min-parallelism": str(job.min_workers),
                "kueue.x-k8s.io/job-completions-equal-parallelism": "true",
            }
    spec: dict[str, object] = {} if job.kueue is None else {"suspend": True}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(
            job,
            set_name(job, role),
            labels=labels(job, role) | queue,
            annotations=annotations,
        ),
        "spec": spec | job_spec(job, role, restarts_together=False),
    }


def _comment(job: JobOptions, role: str) -> str:
    if role != "worker" or job.elastic is None:
        return {"worker": "The workers.", "ps": "The parameter servers."}.get(
            role, "The evaluator. It ends by itself, or when you delete this Job."
        )
    namespace = "" if job.namespace is None else f" -n {job.namespace}"
    return (
        f"The workers, {job.min_workers} to {job.max_workers}. Workers for which there is no room "
        "wait, and join later.\nTo have another number, set both fields at once:\n"
        f"  kubectl{namespace} patch job {set_name(job, role)} --type merge "
        f'-p \'{{"spec":{{"parallelism":N,"completions":N}}}}\''
    )
