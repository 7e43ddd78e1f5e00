"""Patches of manifests: they are merged as Kubernetes merges, and none is lost silently."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.manifests import options, problems, read
from tfdist.cli.main import main
from tfdist.config.elastic import Elastic
from tfdist.errors import ClusterConfigError
from tfdist.kubernetes import Patch, Volume, render
from tfdist.kubernetes.merge import KEYS, MergeError, merge

ROOT = Path(__file__).parents[3]
ENGINES = ("job", "jobset", "trainjob", "tfjob", "statefulset")
GPU_POOL = """
kind: PodTemplate
metadata: {name: worker}
template:
  spec:
    nodeSelector: {pool: gpu}
    tolerations: [{key: nvidia.com/gpu, operator: Exists}]
---
apiVersion: v1
kind: PodTemplate
template:
  spec:
    imagePullSecrets: [{name: registry}]
    volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 1Gi}}]
"""


def patched(job, *texts):
    patches = [patch for text in texts for patch in Patch.from_text(text, "more.yaml")]
    found = read(render(job, patched=patches))
    assert [problem for document in found for problem in problems(document)] == []
    return found


def templates(node):
    """The pod templates within a part of an object."""
    if isinstance(node, list):
        return [found for one in node for found in templates(one)]
    if not isinstance(node, dict):
        return []
    if "containers" in (node.get("spec") or {}):
        return [node]
    return [found for one in node.values() for found in templates(one)]


@pytest.mark.parametrize("engine", ENGINES)
def test_pods_of_one_role_and_of_all(engine):
    more = {"workers": Elastic.from_text("2:8")} if engine == "statefulset" else {}
    job = options(engine, ps=1, volumes=(Volume("data", "/data"),), **more)
    found = templates(patched(job, GPU_POOL))
    assert len(found) >= 2
    for template in found:
        is_worker = template["metadata"]["labels"]["app.kubernetes.io/component"] == "worker"
        spec = template["spec"]
        assert spec.get("nodeSelector") == ({"pool": "gpu"} if is_worker else None)
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert [volume["name"] for volume in spec["volumes"]] == ["volume-0", "shm"]


def test_a_container_is_merged_by_its_name():
    text = """
kind: PodTemplate
template:
  metadata: {annotations: {team: vision}}
  spec:
    containers:
      - name: worker
        env: [{name: OMP_NUM_THREADS, value: "1"}, {name: MODE, value: fast}]
        volumeMounts: [{name: volume-0, mountPath: /data, readOnly: true}]
      - {name: proxy, image: registry.example/proxy:1}
"""
    job = options(volumes=(Volume("data", "/data"),))
    (before,), (after,) = templates(patched(job)), templates(patched(job, text))
    worker, proxy = after["spec"]["containers"]
    assert proxy == {"name": "proxy", "image": "registry.example/proxy:1"}
    assert worker["command"] == before["spec"]["containers"][0]["command"]
    variables = {variable["name"]: variable for variable in worker["env"]}
    # It had a `valueFrom`, beside which a value is not permitted.
    assert variables["OMP_NUM_THREADS"] == {"name": "OMP_NUM_THREADS", "value": "1"}
    assert variables["MODE"]["value"] == "fast" and "TFDIST_WORKERS" in variables
    assert worker["volumeMounts"] == [{"name": "volume-0", "mountPath": "/data", "readOnly": True}]
    assert after["metadata"]["annotations"] == {"team": "vision"}


def test_an_object_of_a_kind_and_name():
    text = """
kind: JobSet
metadata: {name: train, labels: {team: vision}}
spec: {ttlSecondsAfterFinished: 3600, failurePolicy: null}
---
kind: Service
metadata: {name: train-extra}
spec: {clusterIP: null}
"""
    with pytest.raises(ClusterConfigError, match="received Service train-extra"):
        patched(options(), text)
    (jobset,) = [d for d in patched(options(), text.split("---")[0]) if d["kind"] == "JobSet"]
    assert jobset["spec"]["ttlSecondsAfterFinished"] == 3600
    assert "failurePolicy" not in jobset["spec"] and jobset["spec"]["successPolicy"]
    assert jobset["metadata"]["labels"].keys() > {"team", "app.kubernetes.io/name"}


def test_later_patches_win():
    first, second = (
        f"kind: Service\nmetadata: {{name: train, labels: {{a: '{n}'}}}}" for n in "12"
    )
    (service,) = [d for d in patched(options("job"), first, second) if d["kind"] == "Service"]
    assert service["metadata"]["labels"]["a"] == "2"


@pytest.mark.parametrize(
    ("base", "patch", "expected"),
    [
        ({"a": 1, "b": {"c": 2}}, {"b": {"d": [3]}}, {"a": 1, "b": {"c": 2, "d": [3]}}),
        ({"a": 1, "b": 2}, {"b": None}, {"a": 1}),
        ({"args": ["x", "y"]}, {"args": ["z"]}, {"args": ["z"]}),
        (
            {"volumes": [{"name": "a", "x": 1}, {"name": "b"}]},
            {"volumes": [{"name": "a", "y": 2}, {"name": "b", "$patch": "delete"}]},
            {"volumes": [{"name": "a", "x": 1, "y": 2}]},
        ),
        (
            {"ports": [{"containerPort": 1, "name": "a"}]},
            {"ports": [{"containerPort": 1, "name": "b"}, {"containerPort": 2}]},
            {"ports": [{"containerPort": 1, "name": "b"}, {"containerPort": 2}]},
        ),
        ({}, {"volumes": [{"name": "a"}]}, {"volumes": [{"name": "a"}]}),
    ],
)
def test_merge(base, patch, expected):
    before = repr(base)
    assert merge(base, patch) == expected and repr(base) == before


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"spec": []}, r"^spec: expected a mapping, received \[\]"),
        ({"spec": {"volumes": {}}}, r"^spec.volumes: expected a list, received {}"),
        ({"spec": {"nodeSelektor": None}}, "^spec.nodeSelektor: expected a field to remove"),
        ({"spec": {"volumes": [{"emptyDir": {}}]}}, "^spec.volumes: expected elements with name"),
        ({"spec": {"hostname": {"a": 1}}}, "^spec.hostname: expected a single value"),
        ({"spec": {"imagePullSecrets": "a"}}, "^spec.imagePullSecrets: expected a list"),
        ({"spec": {"volumes": [1]}}, "^spec.volumes: expected elements with name, received 1"),
        (
            {"spec": {"volumes": [{"name": "b", "$patch": "delete"}]}},
            r"^spec.volumes\[name=b\]: expected an element to remove",
        ),
        ({"spec": {"$patch": "replace"}}, r"^spec: expected \$patch: delete in a list with keys"),
        (
            {"spec": {"containers": [{"name": "wroker"}]}},
            r"^spec.containers\[name=wroker\]: expected one of worker, or an image",
        ),
    ],
)
def test_a_patch_that_does_not_fit(patch, message):
    spec = {"volumes": [{"name": "a"}], "containers": [{"name": "worker", "image": "x"}]}
    base = {"spec": spec | {"hostname": "x"}}
    with pytest.raises(MergeError, match=message):
        merge(base, patch)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "more.yaml: expected YAML"),
        ("# nothing\n", "more.yaml: expected a document of YAML, received none"),
        ("- kind: Job", "document 1: expected a mapping with kind and metadata.name"),
        ("kind: Job", "document 1: expected metadata.name of the Job, received none"),
        ("kind: 1", "expected a mapping with kind and metadata.name"),
        ("kind: JobSet\nmetadata: {name: [a]}", "expected a mapping with kind"),
        (
            "kind: JobSet\nmetadata: {name: other}",
            "expected one of the rendered objects, PodDisrup",
        ),
        ("kind: JobSet\napiVersion: v1\nmetadata: {name: train}", "expected apiVersion jobset.x"),
        ("kind: PodTemplate\nspec: {}", "expected template in a PodTemplate, received kind, spec"),
        (
            "kind: PodTemplate\nmetadata: {name: ps}\ntemplate: {}",
            "expected metadata.name to be a role of the job, worker, or none for all, received ps",
        ),
        ("kind: &a {b: *a}\n", "document 1: expected values of JSON"),
        ("kind: JobSet\nmetadata: {name: train, day: 2026-01-01}", "expected values of JSON"),
        ("kind: JobSet\nmetadata: {name: train, x: .nan}", "expected values of JSON"),
        ("---\n---\nkind: Service\nmetadata: {name: a}", "document 2: expected one of"),
        ("[" * 100_000, "more.yaml: expected YAML"),
        ("kind: JobSet\nx: " + "[" * 60 + "]" * 60, "expected at most 50 levels"),
        ('kind: JobSet\nmetadata: {name: "\\ud800"}', "expected values of JSON"),
        ("kind: JobSet\nmetadata: {name: train}\nspec: 3", "document 1: spec: expected a mapping"),
    ],
)
def test_patches_that_cannot_be_used(text, message):
    with pytest.raises(ClusterConfigError) as error:
        patched(options(), text)
    assert message in str(error.value)


def test_the_command(capsys, tmp_path):
    file = tmp_path / "gpu pool.yaml"
    command = "k8s render --name train --image b --workers 2".split()
    assert main([*command, "--patch", str(file), "--", "python"]) == 2
    assert f"patch: expected a file of YAML, received {file}" in capsys.readouterr().err
    file.write_text(GPU_POOL)
    assert main([*command, "--patch", str(file), "--", "python"]) == 0
    out = capsys.readouterr().out
    assert f"--patch={file}" in out.splitlines()[0]
    (template,) = templates(read(out))
    assert template["spec"]["nodeSelector"] == {"pool": "gpu"}


def test_the_patch_of_the_page():
    page = (ROOT / "docs/operate/kubernetes.md").read_text()
    (text,) = re.findall(r"`gpu.yaml`:\n\n```yaml\n(.*?)```", page, re.DOTALL)
    (jobset,) = [d for d in patched(options(workers=4, gpus=1), text) if d["kind"] == "JobSet"]
    assert jobset["spec"]["ttlSecondsAfterFinished"] == 86400
    (template,) = templates(jobset)
    (container,) = template["spec"]["containers"]
    assert container["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm"}]
    assert template["spec"]["imagePullSecrets"] == [{"name": "registry"}]


def test_the_page_lists_the_keys_of_lists():
    page = (ROOT / "docs/operate/kubernetes.md").read_text()
    (rule,) = re.findall(r"^- \*\*Lists with a key\*\*.*?(?=^- )", page, re.DOTALL | re.MULTILINE)
    for field, keys in KEYS.items():
        assert f"`{field}`" in rule and all(f"`{key}`" in rule for key in keys)
