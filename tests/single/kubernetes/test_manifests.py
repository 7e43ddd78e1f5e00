"""Manifests: they fit the schemas, match the options, and let no value out of its place."""

from __future__ import annotations

import base64
import json
import re
import shlex
from pathlib import Path

import pytest

from support.manifests import (
    documents,
    environment,
    expand,
    of_kind,
    options,
    pod_templates,
    problems,
    read,
)
from tfdist.cli.main import main
from tfdist.config import tls
from tfdist.config.cluster import Cluster
from tfdist.config.elastic import Elastic
from tfdist.config.settings import Settings
from tfdist.config.tls import Tls
from tfdist.control.signing import metrics_token
from tfdist.errors import ClusterConfigError
from tfdist.kubernetes import Resources, Volume, render, secret
from tfdist.prediction.options import FINAL_CODE

ROOT = Path(__file__).parents[3]

ENGINES = ("job", "jobset", "trainjob", "tfjob", "statefulset")
ELASTIC = Elastic.from_text("2:8")
THREADS = ["OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"]
SECRET = "0123456789abcdef0123456789abcdef"
GOOD_SECRET = "a8f5f167f44f4964e6c998dee827110c"
EVERYTHING = {
    "ps": 2,
    "evaluator": True,
    "namespace": "research",
    "worker": Resources("4", "8Gi"),
    "server": Resources("500m", "2Gi"),
    "volumes": (Volume("checkpoints", "/checkpoints"), Volume("data", "/data", read_only=True)),
    "checkpoint_dir": "/checkpoints/train",
    "environment": (("MODE", "yes"), ("PRICE", "$(HOME) $5 1e3\n- x: {}")),
    "priority": -10,
    "metrics_port": 9400,
    "pod_monitor": True,
    "gpus": 1,
}
PROTECTED = {
    "read_only_root": True,
    "network_policy": True,
    "no_egress": True,
    "metrics_namespace": "monitoring",
}
JOBS = {
    **{f"{engine}-fixed": options(engine) for engine in ("job", "jobset", "trainjob", "tfjob")},
    **{
        f"{engine}-everything-{scheduler}": options(engine, **EVERYTHING, **{scheduler: "queue"})
        for engine in ("job", "jobset", "trainjob", "tfjob")
        for scheduler in ("kueue", "volcano")
    },
    **{
        f"{engine}-elastic": options(engine, **EVERYTHING | {"workers": ELASTIC})
        for engine in ("job", "jobset", "trainjob")
    },
    "job-predict": options("job", workers=ELASTIC, predicts=True, restarts=1),
    **{
        f"{engine}-protected": options(engine, **EVERYTHING | PROTECTED)
        for engine in ("job", "jobset", "trainjob", "tfjob")
    },
    "statefulset-protected": options(
        "statefulset",
        **EVERYTHING | PROTECTED | {"workers": ELASTIC, "evaluator": False},
    ),
    **{
        f"{engine}-tls": options(engine, **EVERYTHING | {"tls": True})
        for engine in ("job", "jobset", "trainjob", "tfjob")
    },
    **{
        f"{engine}-issuer": options(engine, **EVERYTHING | {"tls_issuer": "lab"})
        for engine in ("job", "jobset", "trainjob")
    },
    "statefulset": options(
        "statefulset",
        **EVERYTHING | {"workers": ELASTIC, "evaluator": False, "tasks_per_worker": 10},
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_they_fit_the_schemas(name):
    found = documents(JOBS[name])
    assert [problem for document in found for problem in problems(document)] == []
    assert all(value is not None for document in found for value in leaves(document))
    places = [(d["kind"], d["metadata"]["name"]) for d in found]
    assert len(set(places)) == len(places)


def leaves(node):
    if isinstance(node, dict):
        node = list(node.values())
    if isinstance(node, list):
        return [leaf for one in node for leaf in leaves(one)]
    return [node]


def test_the_schemas_find_errors():
    (jobset,) = of_kind(JOBS["jobset-fixed"], "JobSet")
    jobset["spec"]["successPolicies"] = {}
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["terminationGracePeriodSeconds"] = "30"
    pod["containers"][0]["comand"] = []
    assert len(problems(jobset)) == 3


@pytest.mark.parametrize("engine", ["job", "jobset", "trainjob", "statefulset"])
@pytest.mark.parametrize("is_elastic", [False, True])
def test_each_pod_finds_its_task(engine, is_elastic):
    if engine == "statefulset" and not is_elastic:
        pytest.raises(ClusterConfigError, options, engine, workers=3)
        return
    workers = Elastic.from_text("2:3") if is_elastic else 3
    job = options(engine, workers=workers, ps=2, evaluator=engine != "statefulset")
    found = {}
    for role, template in pod_templates(job).items():
        for index in range({"worker": 3, "ps": 2, "evaluator": 1}[role]):
            environ = {"HOSTNAME": f"train-{role}-0-{index}", "JOB_COMPLETION_INDEX": str(index)}
            values = {"TFDIST_SECRET": SECRET, "JOB_COMPLETION_INDEX": str(index)}
            environ |= environment(template, values)
            cluster = Cluster.from_environment(environ)
            settings = Settings.from_environment(environ)
            assert settings.secret == SECRET.encode()
            found[cluster.task_name] = cluster
            if role != "evaluator":
                assert cluster.address == f"train-{role}-0-{index}.train:2222"
                assert environ.get("TFDIST_ELASTIC") == ("2:3:2" if is_elastic else None)
    first = (
        ["worker 0", "worker 1", "worker 2"] if is_elastic else ["chief", "worker 0", "worker 1"]
    )
    last = [] if engine == "statefulset" else ["evaluator"]
    assert [name.removesuffix(" 0") if name[0] in "ce" else name for name in found] == [
        *first,
        "ps 0",
        "ps 1",
        *last,
    ]
    clusters = [json.loads(cluster.tf_config())["cluster"] for cluster in found.values()]
    assert all(cluster == clusters[0] for cluster in clusters)


def test_tfjob_has_the_roles_of_tfdist_run():
    (tfjob,) = of_kind(options("tfjob", workers=4, ps=2, evaluator=True), "TFJob")
    replicas = {k: v["replicas"] for k, v in tfjob["spec"]["tfReplicaSpecs"].items()}
    assert replicas == {"Chief": 1, "Worker": 3, "PS": 2, "Evaluator": 1}
    (tfjob,) = of_kind(options("tfjob", workers=4), "TFJob")
    assert tfjob["spec"]["tfReplicaSpecs"].keys() == {"Worker"}
    # The operator describes the cluster itself, and puts it into the container of this name.
    (container,) = tfjob["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["name"] == "tensorflow"
    assert [v["name"] for v in container["env"]] == ["TFDIST_SECRET", *THREADS]


def test_trainjob_brings_its_runtime():
    job = options("trainjob", workers=4, ps=1, worker=Resources("2"))
    (runtime,) = of_kind(job, "TrainingRuntime")
    (train_job,) = of_kind(job, "TrainJob")
    reference = train_job["spec"]["runtimeRef"]
    assert (reference["kind"], reference["name"]) == (runtime["kind"], runtime["metadata"]["name"])
    worker, server = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    step = "trainer.kubeflow.org/trainjob-ancestor-step"
    assert worker["template"]["metadata"]["labels"] == {step: "trainer"}
    assert "metadata" not in server["template"]
    (container,) = worker["template"]["spec"]["template"]["spec"]["containers"]
    assert container["name"] == "node"
    assert train_job["spec"]["trainer"]["numNodes"] == runtime["spec"]["mlPolicy"]["numNodes"] == 4
    assert train_job["spec"]["trainer"]["resourcesPerNode"] == container["resources"]


def test_an_elastic_job_asks_for_all_and_begins_with_few():
    job = options("job", workers=Elastic.from_text("2:8:4"), ps=1, kueue="research")
    worker, server = of_kind(job, "Job")
    spec = worker["spec"]
    assert spec["parallelism"] == spec["completions"] == 8
    assert spec["successPolicy"] == {"rules": [{"succeededCount": 2}]}
    variables = environment(spec["template"], {"TFDIST_SECRET": SECRET})
    assert variables["TFDIST_ELASTIC"] == "2:8:4"
    annotations = worker["metadata"]["annotations"]
    assert annotations["kueue.x-k8s.io/job-min-parallelism"] == "2"
    assert annotations["kueue.x-k8s.io/job-completions-equal-parallelism"] == "true"
    assert "annotations" not in server["metadata"] and server["spec"]["suspend"]
    # Fields that a change of completions must not contradict: validated together by Kubernetes.
    assert "maxFailedIndexes" not in spec
    fewer = options("job", workers=Elastic.from_text("2:8:4"), parallelism=5)
    (worker,) = of_kind(fewer, "Job")
    assert worker["spec"]["parallelism"] == worker["spec"]["completions"] == 5
    assert "kubectl patch job train-worker-0 --type merge" in render(fewer)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"workers": 4}, {"worker": 3}),
        ({"workers": 1}, {}),
        ({"workers": ELASTIC, "ps": 3, "evaluator": True}, {"worker": 2, "ps": 2}),
        ({"workers": 1, "ps": 1}, {}),
    ],
)
def test_disruption_budgets(more, expected):
    found = {}
    for budget in of_kind(options(**more), "PodDisruptionBudget"):
        role = budget["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]
        found[role] = budget["spec"]["minAvailable"]
    assert found == expected


def test_a_gang_is_what_the_job_needs_to_begin():
    job = options("jobset", workers=Elastic.from_text("2:8:4"), ps=2, volcano="research")
    (group,) = of_kind(job, "PodGroup")
    assert group["spec"] == {"minMember": 6, "queue": "research"}
    for template in pod_templates(job).values():
        assert template["metadata"]["annotations"] == {"scheduling.k8s.io/group-name": "train"}
        assert template["spec"]["schedulerName"] == "volcano"


@pytest.mark.parametrize(("saving", "grace"), [(0.5, 30), (10, 30), (40, 120), (60.2, 181)])
def test_the_grace_fits_the_checkpoint(saving, grace):
    for template in pod_templates(options(saving=saving, ps=1)).values():
        assert template["spec"]["terminationGracePeriodSeconds"] == grace


@pytest.mark.parametrize("value", [-10, 0, 10])
def test_priorities(value):
    job = options(priority=value, namespace="research")
    (priority,) = of_kind(job, "PriorityClass")
    assert priority["value"] == value and "namespace" not in priority["metadata"]
    assert priority["preemptionPolicy"] == ("PreemptLowerPriority" if value > 0 else "Never")
    assert pod_templates(job)["worker"]["spec"]["priorityClassName"] == "train"
    job = options(priority_class="low")
    assert of_kind(job, "PriorityClass") == []
    assert pod_templates(job)["worker"]["spec"]["priorityClassName"] == "low"


def test_an_autoscaler_sets_the_workers():
    job = JOBS["statefulset"]
    (scaler,) = of_kind(job, "HorizontalPodAutoscaler")
    sets = {s["metadata"]["name"]: s["spec"] for s in of_kind(job, "StatefulSet")}
    assert scaler["spec"]["scaleTargetRef"]["name"] in sets
    # The metric of this job alone; each series has the pods' label that the PodMonitor names.
    (monitor,) = of_kind(job, "PodMonitor")
    (metric,) = scaler["spec"]["metrics"]
    (label,) = metric["external"]["metric"]["selector"]["matchLabels"].items()
    assert label == ("app_kubernetes_io_instance", "train")
    assert label[0] in [re.sub("[^a-z]", "_", name) for name in monitor["spec"]["podTargetLabels"]]
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (2, 8)
    # A number in the manifest would undo the autoscaler's at each `kubectl apply`.
    assert "replicas" not in sets["train-worker-0"] and sets["train-ps-0"]["replicas"] == 2


def test_certificates_of_the_secret():
    job = JOBS["jobset-tls"]
    for template in pod_templates(job).values():
        environ = environment(template, {"TFDIST_SECRET": GOOD_SECRET})
        assert environ["TFDIST_TLS"] == "secret"
        assert template["metadata"]["annotations"]["prometheus.io/scheme"] == "https"
    (monitor,) = of_kind(job, "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    (made,) = read(secret("train", "research", tls=True))
    reference = endpoint["tlsConfig"]["ca"]["secret"]
    assert reference["name"] == made["metadata"]["name"]
    values = {key: base64.b64decode(text) for key, text in made["data"].items()}
    assert values[reference["key"]].startswith(b"-----BEGIN CERTIFICATE")
    assert tls.weakness(values["secret"]) == ""
    assert "tfdist k8s secret --name train --namespace research --tls |" in render(job)
    assert not of_kind(JOBS["jobset-fixed"], "Certificate")


@pytest.mark.parametrize(
    ("issuer", "kind", "name"),
    [("lab", "Issuer", "lab"), ("ClusterIssuer/lab.example", "ClusterIssuer", "lab.example")],
)
def test_certificates_of_an_issuer(issuer, kind, name):
    job = options("job", **EVERYTHING | {"workers": ELASTIC, "tls_issuer": issuer})
    (certificate,) = of_kind(job, "Certificate")
    spec = certificate["spec"]
    assert (spec["issuerRef"]["kind"], spec["issuerRef"]["name"]) == (kind, name)
    hosts = [f"train-worker-0-{index}.train" for index in range(8)]
    assert spec["dnsNames"] == ["train", *hosts, "train-ps-0-0.train", "train-ps-0-1.train"]
    for template in pod_templates(job).values():
        found = Settings.from_environment(environment(template, {"TFDIST_SECRET": SECRET})).tls
        (mount,) = [
            m for m in template["spec"]["containers"][0]["volumeMounts"] if m["name"] == "tls"
        ]
        files = ("tls.crt", "tls.key", "ca.crt")
        assert found == Tls(*(f"{mount['mountPath']}/{file}" for file in files))
        (volume,) = [v["secret"] for v in template["spec"]["volumes"] if v["name"] == "tls"]
        assert volume == {"secretName": spec["secretName"], "defaultMode": 0o440}
    (monitor,) = of_kind(job, "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["tlsConfig"] == {
        "ca": {"secret": {"name": spec["secretName"], "key": "ca.crt"}},
        "serverName": "train",
    }


def test_failures_and_notices():
    (job,) = of_kind(options("job", workers=4, restarts=2), "Job")
    assert job["spec"]["backoffLimit"] == 8  # each failure ends the step of all four
    (jobset,) = of_kind(options(workers=4, restarts=2), "JobSet")
    (worker,) = jobset["spec"]["replicatedJobs"]
    assert jobset["spec"]["failurePolicy"] == {"maxRestarts": 2}
    assert worker["template"]["spec"]["backoffLimit"] == 0
    (jobset,) = of_kind(options(workers=4, ps=1, restarts=2), "JobSet")
    assert jobset["spec"]["failurePolicy"] == {"maxRestarts": 0}
    for replicated in jobset["spec"]["replicatedJobs"]:
        assert replicated["template"]["spec"]["backoffLimit"] == 2
    ignored = worker["template"]["spec"]["podFailurePolicy"]["rules"][0]
    assert ignored["action"] == "Ignore" and ignored["onExitCodes"]["values"] == [143]


def test_a_prediction_survives_its_workers():
    command = ("tfdist", "predict", "--model", "/data/served")
    (job,) = of_kind(options("job", workers=ELASTIC, command=command, predicts=True), "Job")
    spec = job["spec"]
    assert spec["completions"] == spec["parallelism"] == 8
    assert spec["successPolicy"] == {"rules": [{"succeededCount": 1}]}
    assert spec["backoffLimitPerIndex"] == 30
    last = spec["podFailurePolicy"]["rules"][-1]
    assert last["action"] == "FailJob" and last["onExitCodes"]["values"] == [FINAL_CODE]


HOSTILE = [
    'x"\n- name: evil',
    "$(TFDIST_SECRET)",
    "$$(A)$",
    "---\nkind: Secret",
    "yes",
    "1e3",
    "0x10",
    "1:30",
    "null",
    "~",
    "*a",
    "&a",
    "# x",
    "\u2028kind: Secret",
    "\x1b[0m\x85x",
    "é ☃",
    "",
]


def test_no_value_leaves_its_place():
    def job(texts):
        variables = tuple((f"V{number}", text) for number, text in enumerate(texts))
        return options(command=("python", *texts), environment=variables)

    hostile, usual = job(HOSTILE), job(["x" for _ in HOSTILE])
    found = read(render(hostile, made_by=f"tfdist {' '.join(HOSTILE)}"))
    assert [shape(document) for document in found] == [shape(one) for one in documents(usual)]
    template = pod_templates(hostile)["worker"]
    (container,) = template["spec"]["containers"]
    assert [expand(word) for word in container["command"]] == ["python", *HOSTILE]
    variables = environment(template, {"TFDIST_SECRET": SECRET})
    assert [variables[f"V{number}"] for number in range(len(HOSTILE))] == HOSTILE


def shape(node):
    if isinstance(node, dict):
        return {key: shape(value) for key, value in node.items()}
    if isinstance(node, list):
        return [shape(value) for value in node]
    return type(node)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"name": "Train"},
            "--name: expected a name of lower-case letters a to z, digits",
        ),
        ({"name": "a" * 41}, "at most 40 characters"),
        ({"name": "train\n"}, "name: expected"),
        ({"image": "a b"}, "image: expected an image"),
        ({"image": "$(X)"}, "image: expected an image"),
        ({"command": ()}, "expected a program to run after --"),
        ({"command": ("a\0",)}, "the command after --: expected text of UTF-8 without a zero byte"),
        ({"environment": (("A", "\udc80"),)}, "--env A: expected text of UTF-8"),
        ({"namespace": "a/b"}, "--namespace: expected"),
        ({"workers": 0}, "--workers: expected a whole number, 1 or more, received 0"),
        ({"workers": Elastic(2)}, "received no MAX"),
        ({"parallelism": 2}, "expected an elastic job"),
        ({"workers": Elastic(2, 8, 4), "parallelism": 3}, "expected 4 to 8 pods"),
        ({"ps": -1}, "--ps: expected a whole number, 0 or more"),
        ({"user": 0}, "--user: expected a whole number, 1 or more"),
        ({"saving": 0}, "--saving: expected seconds"),
        ({"metrics_port": 80}, "--metrics-port: expected 1024 to 65535"),
        ({"tls_issuer": "Issuer/a"}, "--tls-issuer: expected NAME or ClusterIssuer/NAME"),
        ({"tls_issuer": "a", "engine": "tfjob"}, "--tls-issuer: expected an engine whose pods"),
        (
            {"environment": (("TFDIST_TLS", "secret"),)},
            "that the manifest sets, received TFDIST_TLS",
        ),
        ({"metrics_port": 2222}, "without 2222, the port of the tasks, received 2222"),
        ({"pod_monitor": True}, "--pod-monitor: expected --metrics-port P"),
        ({"gpus": -1}, "--gpus: expected a whole number, 0 or more"),
        ({"ps": 1, "server": Resources(memory="1000M")}, "--ps-memory: expected 1Gi or more"),
        ({"checkpoint_dir": "/c"}, "expected a path in a volume that can be written"),
        (
            {"checkpoint_dir": "/c", "volumes": (Volume("c", "/c", read_only=True),)},
            "expected a path in a volume that can be written",
        ),
        ({"volumes": (Volume("a", "/c"), Volume("b", "/c"))}, "expected different paths"),
        ({"environment": (("A=B", ""),)}, "--env: expected the name of a variable"),
        ({"environment": (("TFDIST_PS", "1"),)}, "none that the manifest sets"),
        ({"environment": (("A", "1"), ("A", "2"))}, "each variable once"),
        ({"kueue": "a", "volcano": "b"}, "one of --kueue and --volcano"),
        ({"priority": 1, "priority_class": "a"}, "one of --priority and --priority-class"),
        ({"priority": 2_000_000_000}, "--priority: expected"),
        ({"engine": "tfjob", "workers": ELASTIC}, "expected a fixed number of workers"),
        ({"engine": "statefulset"}, "expected an elastic job"),
        (
            {"engine": "statefulset", "workers": ELASTIC, "evaluator": True},
            "expected no --evaluator",
        ),
        ({"no_egress": True}, "--no-egress: expected --network-policy with it"),
        ({"metrics_namespace": "a"}, "--metrics-namespace: expected --network-policy with it"),
        ({"metrics_namespace": "a", "network_policy": True}, "expected --metrics-port P"),
        (
            {"metrics_namespace": "a/b", "network_policy": True, "metrics_port": 9400},
            "--metrics-namespace: expected a name of lower-case letters a to z, digits",
        ),
        (
            {"read_only_root": True, "volumes": (Volume("a", "/tmp", read_only=True),)},
            "--volume: expected /tmp to be writable",
        ),
        ({"tasks_per_worker": 3}, "no scale subresource"),
        ({"predicts": True}, "--predict: expected --engine job and workers alone"),
        ({"engine": "job", "ps": 1, "predicts": True}, "with 1 parameter servers"),
        (
            {"engine": "statefulset", "workers": ELASTIC, "tasks_per_worker": 3},
            "expected --metrics-port P",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(more, message):
    with pytest.raises(ClusterConfigError, match=re.escape(message)):
        options(**more)


@pytest.mark.parametrize("text", ["a", "a:b", "A:/b", "a:/b:rw", "a:/b/../c", "a:/", "a:/b\n"])
def test_volumes_that_cannot_be_used(text):
    with pytest.raises(ClusterConfigError, match="--volume: expected"):
        Volume.from_text(text)


@pytest.mark.parametrize("value", ["4 cores", "-1", "8GB", "1e9", "", "²"])
def test_quantities_that_cannot_be_used(value):
    for role, option in (("worker", "--memory"), ("server", "--ps-memory")):
        with pytest.raises(ClusterConfigError, match=f"^{option}: expected bytes"):
            options(**{role: Resources(memory=value)})


@pytest.mark.parametrize("name", JOBS)
def test_the_pods_are_restricted(name):
    """As the security standard "restricted" of Kubernetes wants it."""
    for template in pod_templates(JOBS[name]).values():
        pod, (container,) = template["spec"]["securityContext"], template["spec"]["containers"]
        assert pod["runAsNonRoot"] and pod["runAsUser"] > 0
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        # Off unless asked for: a script that writes beside itself continues doing so.
        read_only = {"readOnlyRootFilesystem": True} if name.endswith("-protected") else {}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            **read_only,
        }


@pytest.mark.parametrize("engine", ENGINES)
def test_a_read_only_root_leaves_room_for_temporary_files(engine):
    more = {"workers": ELASTIC} if engine == "statefulset" else {}
    claim = {"name": "volume-0", "persistentVolumeClaim": {"claimName": "data"}}
    job = options(
        engine,
        read_only_root=True,
        volumes=(Volume("data", "/data"),),
        environment=(("KERAS_HOME", "/data/keras"),),
        ps=1,
        **more,
    )
    templates = pod_templates(job)
    assert len(templates) >= 2
    for template in templates.values():
        (container,) = template["spec"]["containers"]
        assert template["spec"]["volumes"] == [claim, {"name": "scratch", "emptyDir": {}}]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts == {"volume-0": "/data", "scratch": "/tmp"}
        names = [variable["name"] for variable in container["env"]]
        values = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert len(set(names)) == len(names) and values["KERAS_HOME"] == "/data/keras"
        for name in ("MPLCONFIGDIR", "XDG_CACHE_HOME", "CUDA_CACHE_PATH"):
            assert values[name].startswith("/tmp/")


def test_a_volume_may_be_the_place_for_temporary_files():
    job = options(read_only_root=True, volumes=(Volume("scratch", "/tmp"),))
    (template,) = pod_templates(job).values()
    assert [volume["name"] for volume in template["spec"]["volumes"]] == ["volume-0"]
    (container,) = template["spec"]["containers"]
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/tmp"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_network_policy_lets_in_the_jobs_own_pods(engine):
    more = {"workers": ELASTIC} if engine == "statefulset" else {"evaluator": True}
    assert of_kind(options(engine, **more), "NetworkPolicy") == []
    job = options(engine, ps=1, network_policy=True, **more)
    (policy,) = of_kind(job, "NetworkPolicy")
    own = {"podSelector": {"matchLabels": {"app.kubernetes.io/instance": "train"}}}
    assert policy["spec"] == {
        "podSelector": own["podSelector"],
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [own]}],
    }
    # It selects every pod of the job.
    (labels,) = own["podSelector"].values()
    for template in pod_templates(job).values():
        assert labels.items() <= template["metadata"]["labels"].items()


def test_a_network_policy_with_metrics_and_without_egress():
    more = {"ps": 2, "evaluator": True, "metrics_port": 9400, "network_policy": True}
    (policy,) = of_kind(options(**more), "NetworkPolicy")
    ports = [{"protocol": "TCP", "port": 9400}]
    assert policy["spec"]["ingress"][1:] == [{"ports": ports}]
    job = options(**more, metrics_namespace="monitoring", no_egress=True)
    (policy,) = of_kind(job, "NetworkPolicy")
    selector = {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
    assert policy["spec"]["ingress"][1:] == [
        {"ports": ports, "from": [{"namespaceSelector": selector}]}
    ]
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    dns = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    own = policy["spec"]["ingress"][0]["from"]
    assert policy["spec"]["egress"] == [{"to": own}, {"ports": dns}]


@pytest.mark.parametrize("engine", ENGINES)
def test_prometheus_finds_the_metrics_of_each_pod(engine):
    more = {"workers": ELASTIC} if engine == "statefulset" else {"evaluator": True}
    job = options(engine, ps=2, metrics_port=9400, pod_monitor=True, network_policy=True, **more)
    (monitor,) = of_kind(job, "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (policy,) = of_kind(job, "NetworkPolicy")
    assert policy["spec"]["ingress"][1]["ports"] == [{"protocol": "TCP", "port": 9400}]
    for template in pod_templates(job).values():
        selected = monitor["spec"]["selector"]["matchLabels"].items()
        assert selected <= template["metadata"]["labels"].items()
        assert set(monitor["spec"]["podTargetLabels"]) <= template["metadata"]["labels"].keys()
        (container,) = template["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports[endpoint["port"]] == 9400
        annotations = template["metadata"]["annotations"]
        assert annotations["prometheus.io/port"] == "9400"
        assert annotations["prometheus.io/path"] == endpoint["path"] == "/metrics"
        # The tasks listen there: each has the host of its own pod.
        values = {"TFDIST_SECRET": SECRET, "JOB_COMPLETION_INDEX": "0"}
        settings = Settings.from_environment(environment(template, values))
        assert settings.metrics_port == 9400 and settings.metrics_same_port


def test_prometheus_has_the_token_of_the_metrics():
    (monitor,) = of_kind(options(metrics_port=9400, pod_monitor=True), "PodMonitor")
    (made,) = read(secret("train"))
    credentials = monitor["spec"]["podMetricsEndpoints"][0]["authorization"]["credentials"]
    assert credentials["name"] == made["metadata"]["name"]
    value, token = (base64.b64decode(made["data"][k]) for k in ("secret", credentials["key"]))
    assert token.decode() == metrics_token(value)


@pytest.mark.parametrize(
    ("memory", "budget"),
    [("1Gi", 256 << 20), ("2Gi", 1280 << 20), ("64Gi", 56 << 30), ("8G", 6675 << 20)],
)
def test_a_server_stays_below_the_memory_of_its_pod(memory, budget):
    templates = pod_templates(options(ps=1, server=Resources(memory=memory)))
    values = environment(templates["ps"], {"TFDIST_SECRET": SECRET})
    assert Settings.from_environment(values).ps_memory == budget
    assert "TFDIST_PS_MEMORY" not in environment(templates["worker"], {"TFDIST_SECRET": SECRET})


def test_servers_have_resources_unless_told_otherwise():
    def of_server(**more):
        (container,) = pod_templates(options(ps=1, **more))["ps"]["spec"]["containers"]
        values = {variable["name"]: variable.get("value") for variable in container["env"]}
        return container.get("resources"), values.get("TFDIST_PS_MEMORY")

    amounts = {"cpu": "2", "memory": "4Gi"}
    assert of_server() == ({"requests": amounts, "limits": amounts}, "3328M")
    assert of_server(server=Resources()) == (None, None)
    given = (("TFDIST_PS_MEMORY", "100M"),)
    small = {"memory": "512Mi"}
    assert of_server(server=Resources(memory="512Mi"), environment=given) == (
        {"requests": small, "limits": small},
        "100M",
    )


def test_gpus_are_the_workers():
    job = options(ps=1, evaluator=True, gpus=2, worker=Resources("4"))
    found = {
        role: template["spec"]["containers"][0]["resources"]["limits"]
        for role, template in pod_templates(job).items()
    }
    assert found["worker"] == {"cpu": "4", "nvidia.com/gpu": "2"}
    assert found["evaluator"] == {"cpu": "4"} and "nvidia.com/gpu" not in found["ps"]


def test_threads_follow_the_limit_of_the_container():
    given = (("OMP_NUM_THREADS", "1"),)
    for template in pod_templates(options(ps=1, evaluator=True, environment=given)).values():
        variables = {v["name"]: v for v in template["spec"]["containers"][0]["env"]}
        assert variables["OMP_NUM_THREADS"]["value"] == "1"
        for name in THREADS[1:]:
            reference = variables[name]["valueFrom"]["resourceFieldRef"]
            assert reference == {"resource": "limits.cpu", "divisor": "1"}


def test_no_manifest_has_a_secret_but_the_secret():
    for job in JOBS.values():
        assert "Secret" not in [document["kind"] for document in documents(job)]
    (one,), (other,) = (read(secret("train", "research")) for _ in range(2))
    assert problems(one) == [] and one["metadata"]["name"] == "train-secret"
    assert one["data"] != other["data"]
    with pytest.raises(ClusterConfigError, match="name: expected"):
        secret("a b")


def test_the_example_is_what_its_command_prints(capsys):
    example = (ROOT / "keras_examples/clusters/kubernetes.yaml").read_text()
    (command,) = re.findall("^# Made by: tfdist (.*)$", example, re.MULTILINE)
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == example


def test_the_command_of_the_page(capsys):
    page = (ROOT / "docs/operate/kubernetes.md").read_text()
    (command,) = re.findall(
        r"^tfdist (k8s render .*?) > train.yaml$", page, re.DOTALL | re.MULTILINE
    )
    assert main(shlex.split(command.replace("\\\n", " "))) == 0
    assert [p for document in read(capsys.readouterr().out) for p in problems(document)] == []


def test_the_image_has_the_user_of_the_pods():
    (user,) = re.findall("^USER (.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert int(user) == options().user
