"""The pods of a role: the template, and its container."""

from __future__ import annotations

from tfdist.config.environments.kubernetes import PORT
from tfdist.kubernetes.names import METRICS, Object, labels, tls_name
from tfdist.kubernetes.options import SCRATCH, TLS_PATH, Engine, JobOptions
from tfdist.kubernetes.variables import environment, literal

# The container that Kubeflow's TrainJob, and TFJob, put their own values into.
_CONTAINERS = {(Engine.TRAINJOB, "worker"): "node"}
_TFJOB_CONTAINER = "tensorflow"
_TFJOB_PORT = "tfjob-port"
_SCRATCH_VOLUME = "scratch"
_TLS_VOLUME = "tls"
# The resource of NVIDIA's device plugin.
_GPU = "nvidia.com/gpu"


def template(job: JobOptions, role: str) -> Object:
    """Returns the pod template of a role.

    The containers run as a user without rights and may gain none: the pods are admitted where the
    namespace enforces Kubernetes' "restricted" security standard.
    """
    meta: Object = {"labels": labels(job, role)}
    annotations = _annotations(job)
    if annotations:
        meta["annotations"] = annotations
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
    if job.tls_issuer is not None:
        # Readable by the group of the containers.
        secret: Object = {"secretName": tls_name(job), "defaultMode": 0o440}
        volumes.append({"name": _TLS_VOLUME, "secret": secret})
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
    ports = _ports(job, role)
    if ports:
        fields["ports"] = ports
    fields["env"] = environment(job, role)
    amounts = _amounts(job, role)
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
    if job.tls_issuer is not None:
        mounts.append({"name": _TLS_VOLUME, "mountPath": TLS_PATH, "readOnly": True})
    if mounts:
        fields["volumeMounts"] = mounts
    return fields


def _annotations(job: JobOptions) -> dict[str, str]:
    annotations: dict[str, str] = {}
    if job.volcano is not None:
        annotations["scheduling.k8s.io/group-name"] = job.name
    if job.metrics_port is not None:
        # Names that the usual configurations of Prometheus read, by convention.
        annotations |= {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": str(job.metrics_port),
            "prometheus.io/path": "/metrics",
        }
        if job.tls or job.tls_issuer is not None:
            annotations["prometheus.io/scheme"] = "https"
    return annotations


def _ports(job: JobOptions, role: str) -> list[Object]:
    ports: list[Object] = []
    is_tfjob = job.engine is Engine.TFJOB
    if role != "evaluator" or is_tfjob:
        name = _TFJOB_PORT if is_tfjob else "control"
        ports.append({"name": name, "containerPort": PORT})
    if job.metrics_port is not None:
        ports.append({"name": METRICS, "containerPort": job.metrics_port})
    return ports


def _amounts(job: JobOptions, role: str) -> dict[str, str]:
    """Returns the resources that a container requests, and may use at most."""
    needs = job.server if role == "ps" else job.worker
    gpus = str(job.gpus) if role == "worker" and job.gpus else None
    amounts = {"cpu": needs.cpu, "memory": needs.memory, _GPU: gpus}
    return {name: amount for name, amount in amounts.items() if amount is not None}


def _has_scratch(job: JobOptions) -> bool:
    return job.read_only_root and all(volume.path != SCRATCH for volume in job.volumes)
