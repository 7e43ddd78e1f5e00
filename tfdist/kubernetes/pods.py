"""The pods of a role: their names, their commands, and their environment.

All engines give a pod the same name, NAME-ROLE-0-INDEX, which is JobSet's. `tfdist.config.
environments.kubernetes` concludes from it, and from the variables below, which task a pod is.
"""

from __future__ import annotations

import json
from typing import Any

from tfdist.config.environments.kubernetes import PORT
from tfdist.kubernetes.options import SCRATCH, Engine, JobOptions

Object = dict[str, Any]

ROLES = ("worker", "ps", "evaluator")
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
# The container that Kubeflow's TrainJob, and TFJob, put their own values into.
_CONTAINERS = {(Engine.TRAINJOB, "worker"): "node"}
_TFJOB_CONTAINER = "tensorflow"
_TFJOB_PORT = "tfjob-port"
_SCRATCH_VOLUME = "scratch"
# Packages write there what they keep for the next process, by default in the home directory.
_CACHES = {
    "KERAS_HOME": f"{SCRATCH}/keras",
    "MPLCONFIGDIR": f"{SCRATCH}/matplotlib",
    "XDG_CACHE_HOME": f"{SCRATCH}/cache",
    "CUDA_CACHE_PATH": f"{SCRATCH}/cuda",
}


def count(job: JobOptions, role: str) -> int:
    """Returns the number of pods of a role that the manifest asks for."""
    return {"worker": job.asked_workers, "ps": job.ps, "evaluator": int(job.evaluator)}[role]


def roles(job: JobOptions) -> list[str]:
    """Returns the roles that the job has, the workers first."""
    return [role for role in ROLES if count(job, role)]


def set_name(job: JobOptions, role: str) -> str:
    """Returns the name of the Job or StatefulSet of a role, as JobSet calls it."""
    return f"{job.name}-{role}-0"


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


def template(job: JobOptions, role: str) -> Object:
    """Returns the pod template of a role.

    The containers run as a user without rights and may gain none: the pods are admitted where the
    namespace enforces Kubernetes' "restricted" security standard.
    """
    meta: Object = {"labels": labels(job, role)}
    if job.volcano is not None:
        meta["annotations"] = {"scheduling.k8s.io/group-name": job.name}
    spec: Object = {}
    if job.engine in (Engine.JOB, Engine.STATEFULSET):
        # JobSet sets it itself. Of an indexed Job it gives each pod a name in the service.
        spec["subdomain"] = job.name
    # TFJob has a policy of its own beside the template.
    if job.engine is not Engine.TFJOB:
        spec["restartPolicy"] = "Always" if job.engine is Engine.STATEFULSET else "Never"
    spec["terminationGracePeriodSeconds"] = job.grace
    if job.volcano is not None:
        spec["schedulerName"] = "volcano"
    if job.priority_class_name is not None:
        spec["priorityClassName"] = job.priority_class_name
    spec["automountServiceAccountToken"] = False
    spec["securityContext"] = {
        "runAsNonRoot": True,
        "runAsUser": job.user,
        "runAsGroup": job.user,
        "fsGroup": job.user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    spec["containers"] = [container(job, role)]
    volumes: list[Object] = [
        {
            "name": f"volume-{index}",
            "persistentVolumeClaim": {"claimName": volume.claim}
            | ({"readOnly": True} if volume.read_only else {}),
        }
        for index, volume in enumerate(job.volumes)
    ]
    if _has_scratch(job):
        volumes.append({"name": _SCRATCH_VOLUME, "emptyDir": {}})
    if volumes:
        spec["volumes"] = volumes
    return {"metadata": meta, "spec": spec}


def container(job: JobOptions, role: str) -> Object:
    """Returns the container of a role."""
    is_tfjob = job.engine is Engine.TFJOB
    name = _TFJOB_CONTAINER if is_tfjob else _CONTAINERS.get((job.engine, role), role)
    fields: Object = {
        "name": name,
        "image": job.image,
        "command": [literal(word) for word in job.command],
    }
    if role != "evaluator" or is_tfjob:
        port = _TFJOB_PORT if is_tfjob else "control"
        fields["ports"] = [{"name": port, "containerPort": PORT}]
    fields["env"] = environment(job, role)
    needs = job.server if role == "ps" else job.worker
    amounts = {k: v for k, v in (("cpu", needs.cpu), ("memory", needs.memory)) if v is not None}
    if amounts:
        fields["resources"] = {"requests": amounts, "limits": dict(amounts)}
    fields["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    if job.read_only_root:
        fields["securityContext"]["readOnlyRootFilesystem"] = True
    mounts: list[Object] = [
        {"name": f"volume-{index}", "mountPath": volume.path}
        | ({"readOnly": True} if volume.read_only else {})
        for index, volume in enumerate(job.volumes)
    ]
    if _has_scratch(job):
        mounts.append({"name": _SCRATCH_VOLUME, "mountPath": SCRATCH})
    if mounts:
        fields["volumeMounts"] = mounts
    return fields


def _has_scratch(job: JobOptions) -> bool:
    return job.read_only_root and all(volume.path != SCRATCH for volume in job.volumes)


def environment(job: JobOptions, role: str) -> list[Object]:
    """Returns the variables of a role's container."""
    variables: list[Object] = []
    if job.engine is not Engine.TFJOB:
        variables += _task(job, role)
    if job.elastic is not None and role != "evaluator":
        start = job.elastic.start_workers or job.min_workers
        variables.append(_set("TFDIST_ELASTIC", f"{job.min_workers}:{job.max_workers}:{start}"))
    variables.append(
        {
            "name": "TFDIST_SECRET",
            "valueFrom": {"secretKeyRef": {"name": f"{job.name}-secret", "key": "secret"}},
        }
    )
    if job.checkpoint_dir is not None:
        variables.append(_set("TFDIST_CHECKPOINT_DIR", job.checkpoint_dir))
    if job.metrics_port is not None:
        variables.append(_set("TFDIST_METRICS_PORT", str(job.metrics_port)))
    if job.read_only_root:
        given = {name for name, _ in job.environment}
        variables += [_set(name, path) for name, path in _CACHES.items() if name not in given]
    return variables + [_set(name, value) for name, value in job.environment]


def literal(text: str) -> str:
    """Returns a text whose "$" Kubernetes leaves alone: it replaces $(NAME), and $$ by $."""
    return text.replace("$", "$$")


def _task(job: JobOptions, role: str) -> list[Object]:
    """Returns the variables that say which task a pod is."""
    if role == "evaluator":
        # The discovery numbers training tasks and servers; an evaluator has no address.
        return [_set("TF_CONFIG", _evaluators_cluster(job))]
    variables = [
        _set("TFDIST_WORKERS", str(job.max_workers)),
        _set("TFDIST_PS", str(job.ps)),
        _set("JOBSET_NAME", job.name),
        _set("REPLICATED_JOB_NAME", role),
    ]
    if job.engine is Engine.STATEFULSET:
        field = {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}
        variables.append({"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": field}})
    return variables


def _evaluators_cluster(job: JobOptions) -> str:
    training = [_address(job, "worker", index) for index in range(job.max_workers)]
    chiefs = 1 if job.has_chief else 0
    tasks = {
        "chief": training[:chiefs],
        "worker": training[chiefs:],
        "ps": [_address(job, "ps", index) for index in range(job.ps)],
    }
    cluster = {role: addresses for role, addresses in tasks.items() if addresses}
    return json.dumps({"cluster": cluster, "task": {"type": "evaluator", "index": 0}})


def _address(job: JobOptions, role: str, index: int) -> str:
    return f"{set_name(job, role)}-{index}.{job.name}:{PORT}"


def _set(name: str, value: str) -> Object:
    return {"name": name, "value": literal(value)}
