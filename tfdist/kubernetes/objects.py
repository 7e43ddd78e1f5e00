"""What stands beside the pods: service, priority class, disruption budgets, gang, autoscaler."""

from __future__ import annotations

from tfdist.config.environments.kubernetes import PORT
from tfdist.kubernetes.options import JobOptions
from tfdist.kubernetes.pods import INSTANCE, Object, count, labels, metadata, roles, set_name

# What the Prometheus adapter calls tfdist_tasks{state="to do"}: a selector cannot hold the space.
TASKS_METRIC = "tfdist_tasks_to_do"
# Seconds for which a lower number is wanted before workers are taken away.
_SCALE_DOWN_WINDOW = 300


def service(job: JobOptions) -> Object:
    """Returns the headless service, which gives each pod a name.

    A pod is found before it is ready: the tasks meet before they train.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, job.name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {INSTANCE: job.name},
            "ports": [{"name": "control", "port": PORT}],
        },
    }


def priority_class(job: JobOptions) -> Object:
    """Returns the priority class, an object of the whole cluster."""
    assert job.priority is not None
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": job.name, "labels": metadata(job, job.name)["labels"]},
        "value": job.priority,
        "globalDefault": False,
        # A job of low priority takes what is left, and never another pod's place.
        "preemptionPolicy": "PreemptLowerPriority" if job.priority > 0 else "Never",
        "description": f"Pods of the training job {job.name}.",
    }


def disruption_budgets(job: JobOptions) -> list[Object]:
    """Returns a budget for each role of which some pods must stay when nodes are drained.

    Of an elastic job MIN workers stay. Of other roles one pod at a time may leave.
    """
    budgets = []
    for role in roles(job):
        if role == "evaluator":
            continue
        is_elastic = role == "worker" and job.elastic is not None
        least = job.min_workers if is_elastic else count(job, role) - 1
        if not least:
            continue
        budgets.append(
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": metadata(job, f"{job.name}-{role}"),
                "spec": {
                    # A number: a share needs a kind with the scale subresource.
                    "minAvailable": least,
                    "selector": {"matchLabels": labels(job, role)},
                },
            }
        )
    return budgets


def pod_group(job: JobOptions) -> Object:
    """Returns Volcano's group: the pods without which the job cannot begin start together."""
    spec: Object = {"minMember": founders(job) + job.ps, "queue": job.volcano}
    if job.priority_class_name is not None:
        spec["priorityClassName"] = job.priority_class_name
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": metadata(job, job.name),
        "spec": spec,
    }


def autoscaler(job: JobOptions) -> Object:
    """Returns the autoscaler of the workers, by the number of data tasks that wait."""
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(job, f"{job.name}-worker"),
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "apps/v1",
                "kind": "StatefulSet",
                "name": set_name(job, "worker"),
            },
            "minReplicas": job.min_workers,
            "maxReplicas": job.max_workers,
            "metrics": [
                {
                    "type": "External",
                    "external": {
                        "metric": {"name": TASKS_METRIC},
                        "target": {
                            "type": "AverageValue",
                            "averageValue": str(job.tasks_per_worker),
                        },
                    },
                }
            ],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": _SCALE_DOWN_WINDOW}},
        },
    }


def founders(job: JobOptions) -> int:
    """Returns the number of workers without which the job does not begin."""
    return job.max_workers if job.elastic is None else job.elastic.start_workers or job.min_workers
