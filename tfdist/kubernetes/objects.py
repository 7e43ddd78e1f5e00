"""Objects beside the pods.

Service, priority class, disruption budgets, gang, autoscaler, PodMonitor, network policy and
certificate.
"""

from __future__ import annotations

from tfdist.config.environments.kubernetes import PORT
from tfdist.config.tls import FIXED_NAME
from tfdist.kubernetes.names import (
    AUTHORITY,
    COMPONENT,
    INSTANCE,
    METRICS,
    METRICS_TOKEN,
    Object,
    count,
    host_name,
    labels,
    metadata,
    roles,
    secret_name,
    set_name,
    tls_name,
)
from tfdist.kubernetes.options import JobOptions

# The Prometheus adapter's name for tfdist_tasks{state="to do"}: a selector cannot hold the space.
TASKS_METRIC = "tfdist_tasks_to_do"
# The pods' label INSTANCE as Prometheus writes it, at the series of this job.
_INSTANCE_IN_PROMETHEUS = "app_kubernetes_io_instance"
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
                        "metric": {
                            "name": TASKS_METRIC,
                            "selector": {"matchLabels": {_INSTANCE_IN_PROMETHEUS: job.name}},
                        },
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


def pod_monitor(job: JobOptions) -> Object:
    """Returns the object by which the Prometheus operator reads the metrics of the pods.

    Each series gets the label of the job, which the autoscaler selects.
    """
    token = {"name": secret_name(job), "key": METRICS_TOKEN}
    endpoint: Object = {
        "port": METRICS,
        "path": "/metrics",
        "authorization": {"type": "Bearer", "credentials": token},
    }
    if job.tls_issuer is not None:
        # Of all pods' names it has, this one is the same for each.
        authority, name = {"name": tls_name(job), "key": "ca.crt"}, job.name
        endpoint |= _https(authority, name)
    elif job.tls:
        endpoint |= _https({"name": secret_name(job), "key": AUTHORITY}, FIXED_NAME)
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": metadata(job, job.name),
        "spec": {
            "selector": {"matchLabels": {INSTANCE: job.name}},
            "podTargetLabels": [INSTANCE, COMPONENT],
            "podMetricsEndpoints": [endpoint],
        },
    }


def _https(authority: Object, name: str) -> Object:
    return {"scheme": "https", "tlsConfig": {"ca": {"secret": authority}, "serverName": name}}


def certificate(job: JobOptions) -> Object:
    """Returns the object by which cert-manager makes the certificate of all pods, and renews it."""
    assert job.tls_issuer is not None
    kind, _, name = job.tls_issuer.rpartition("/")
    counts = {"worker": job.max_workers, "ps": job.ps}
    hosts = [host_name(job, role, i) for role, number in counts.items() for i in range(number)]
    return {
        "apiVersion": "cert-manager.io/v1",
        "kind": "Certificate",
        "metadata": metadata(job, job.name),
        "spec": {
            "secretName": tls_name(job),
            "issuerRef": {"group": "cert-manager.io", "kind": kind or "Issuer", "name": name},
            # The first is for Prometheus, which knows the pods by their addresses.
            "dnsNames": [job.name, *hosts],
            "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
            "usages": ["digital signature", "server auth", "client auth"],
        },
    }


def network_policy(job: JobOptions) -> Object:
    """Returns the policy that lets only the job's own pods connect to its pods.

    Their ports are not listed: data connections take any free port. Metrics are open to the pods of
    one namespace or to all, since a request needs the job's token.
    """
    own: Object = {"podSelector": {"matchLabels": {INSTANCE: job.name}}}
    ingress: list[Object] = [{"from": [own]}]
    if job.metrics_port is not None:
        rule: Object = {"ports": [{"protocol": "TCP", "port": job.metrics_port}]}
        if job.metrics_namespace is not None:
            # Kubernetes itself gives each namespace this label.
            label = {"kubernetes.io/metadata.name": job.metrics_namespace}
            rule["from"] = [{"namespaceSelector": {"matchLabels": label}}]
        ingress.append(rule)
    spec: Object = {
        "podSelector": {"matchLabels": {INSTANCE: job.name}},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    if job.no_egress:
        spec["policyTypes"].append("Egress")
        # Any server of DNS: a cache on the node has no pod to select.
        dns = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
        spec["egress"] = [{"to": [own]}, {"ports": dns}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, job.name),
        "spec": spec,
    }


def founders(job: JobOptions) -> int:
    """Returns the number of workers without which the job does not begin."""
    return job.max_workers if job.elastic is None else job.elastic.start_workers or job.min_workers
