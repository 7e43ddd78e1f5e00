"""Kubeflow's TrainJob, with the TrainingRuntime that it needs.

Kubeflow Trainer comes with runtimes for other frameworks and has none for TensorFlow: the manifest
brings its own. It is the JobSet of the same job. The runtime belongs to one namespace, and to this
job, because the names of a job's pods stand in their environment.
"""

from __future__ import annotations

from tfdist.kubernetes.engines.jobset import set_spec
from tfdist.kubernetes.names import Object, metadata
from tfdist.kubernetes.options import JobOptions
from tfdist.kubernetes.pods import container

_API = "trainer.kubeflow.org/v1alpha1"
# The replicated Job into which the controller puts the TrainJob's image, command and resources.
_STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def objects(job: JobOptions) -> list[tuple[str, Object]]:
    """Returns the runtime and the TrainJob."""
    spec = set_spec(job)
    for replicated in spec["replicatedJobs"]:
        if replicated["name"] == "worker":
            replicated["template"] = {"metadata": {"labels": _STEP}} | replicated["template"]
    runtime = {
        "apiVersion": _API,
        "kind": "TrainingRuntime",
        "metadata": metadata(job, job.name, labels={"trainer.kubeflow.org/framework": "tfdist"}),
        "spec": {"mlPolicy": {"numNodes": job.asked_workers}, "template": {"spec": spec}},
    }
    node = container(job, "worker")
    trainer = {
        "image": node["image"],
        "command": node["command"],
        "numNodes": job.asked_workers,
    }
    if "resources" in node:
        trainer["resourcesPerNode"] = node["resources"]
    queue = {} if job.kueue is None else {"kueue.x-k8s.io/queue-name": job.kueue}
    train_job = {
        "apiVersion": _API,
        "kind": "TrainJob",
        "metadata": metadata(job, job.name, labels=queue),
        "spec": ({} if job.kueue is None else {"suspend": True})
        | {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime"}
            | {"name": job.name},
            "trainer": trainer,
        },
    }
    return [
        ("The TrainJob's kind of tasks: Kubeflow Trainer has none for TensorFlow.", runtime),
        ("The job. numNodes here and in the runtime, and TFDIST_WORKERS, go together.", train_job),
    ]
