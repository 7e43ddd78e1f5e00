"""The environment variables of a role's container.

`tfdist.config.environments.kubernetes` concludes from them, and from the pod's name, which task a
pod is.
"""

from __future__ import annotations

import json

from tfdist.config.environments.kubernetes import PORT
from tfdist.kubernetes import server_memory
from tfdist.kubernetes.names import Object, host_name, secret_name
from tfdist.kubernetes.options import SCRATCH, TLS_PATH, Engine, JobOptions

# The sizes of the thread pools of TensorFlow, which else follow from the CPUs of the whole node.
_THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
# Packages write there what they keep for the next process, by default in the home directory.
_CACHES = {
    "KERAS_HOME": f"{SCRATCH}/keras",
    "MPLCONFIGDIR": f"{SCRATCH}/matplotlib",
    "XDG_CACHE_HOME": f"{SCRATCH}/cache",
    "CUDA_CACHE_PATH": f"{SCRATCH}/cuda",
}


def environment(job: JobOptions, role: str) -> list[Object]:
    """Returns the variables of a role's container."""
    given = {name for name, _ in job.environment}
    variables: list[Object] = []
    if job.engine is not Engine.TFJOB:
        variables += _task(job, role)
    if job.elastic is not None and role != "evaluator":
        start = job.elastic.start_workers or job.min_workers
        variables.append(_set("TFDIST_ELASTIC", f"{job.min_workers}:{job.max_workers}:{start}"))
    variables.append(
        {
            "name": "TFDIST_SECRET",
            "valueFrom": {"secretKeyRef": {"name": secret_name(job), "key": "secret"}},
        }
    )
    if job.tls_issuer is not None:
        # The names of the files in a secret of cert-manager.
        for name, file in (("CERT", "tls.crt"), ("KEY", "tls.key"), ("CA", "ca.crt")):
            variables.append(_set(f"TFDIST_TLS_{name}", f"{TLS_PATH}/{file}"))
    elif job.tls:
        variables.append(_set("TFDIST_TLS", "secret"))
    if job.checkpoint_dir is not None:
        variables.append(_set("TFDIST_CHECKPOINT_DIR", job.checkpoint_dir))
    if job.metrics_port is not None:
        variables.append(_set("TFDIST_METRICS_PORT", str(job.metrics_port)))
        variables.append(_set("TFDIST_METRICS_SAME_PORT", "1"))
    if role == "ps" and job.server.memory is not None and "TFDIST_PS_MEMORY" not in given:
        variables.append(_set("TFDIST_PS_MEMORY", server_memory.budget(job.server.memory)))
    variables += [_cpus(name) for name in _THREADS if name not in given]
    if job.read_only_root:
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
    return f"{host_name(job, role, index)}:{PORT}"


def _cpus(name: str) -> Object:
    """Returns a variable with the CPU limit of the container, rounded up.

    The kubelet reads the limit when the pod starts, so that it also is the limit of a patch, of a
    TrainJob or of the namespace. Of a container without a limit it is the node's CPUs.
    """
    return {
        "name": name,
        "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1"}},
    }


def _set(name: str, value: str) -> Object:
    return {"name": name, "value": literal(value)}
