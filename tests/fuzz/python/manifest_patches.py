"""A user's patches of Kubernetes manifests: `tfdist/kubernetes/patches.py`, `merge.py`.

Input: the text of a file of patches. It is refused with a ClusterConfigError, or the patched
objects are written as YAML that is read back as the same objects. A patch never changes the
rendered objects.
"""

import copy

from tfdist.errors import ClusterConfigError
from tfdist.kubernetes import JobOptions, Patch, engines, objects, patches, yaml_text

_JOB = JobOptions("a", "b", ("c",), ps=1, metrics_port=9400)
_OBJECTS = [objects.service(_JOB), *(document for _, document in engines.objects(_JOB))]
_RENDERED = copy.deepcopy(_OBJECTS)


def run(data: bytes) -> None:
    try:
        found = Patch.from_text(data.decode(errors="replace"), "file")
        patched = patches.apply(found, _OBJECTS)
    except ClusterConfigError as error:
        assert str(error).startswith("file")
    else:
        for document in patched:
            assert yaml_text.load(yaml_text.dump(document), "dumped") == [document]
    assert _OBJECTS == _RENDERED


def seeds() -> list[bytes]:
    return [
        b"kind: PodTemplate\nmetadata: {name: worker}\ntemplate: {spec: {nodeSelector: {a: b}}}",
        b"kind: PodTemplate\ntemplate: {metadata: null}\n---\nkind: PodTemplate\ntemplate: {x: 1}",
        b"kind: Service\nmetadata: {name: a}\nspec: {ports: [{port: 2222, $patch: delete}]}",
        b"kind: JobSet\nmetadata: {name: a}\nspec: {replicatedJobs: [{name: ps, replicas: 2}]}",
        b"kind: JobSet\nmetadata: {name: a}\nspec: {replicatedJobs: null}",
        b"kind: PodTemplate\ntemplate: {spec: {containers: [{name: ps, env: [{name: A}]}]}}",
        b"kind: PodTemplate\ntemplate: {spec: null}",
        b"kind: PodTemplate\ntemplate: {spec: {volumes: [{name: a, emptyDir: &a {}}, *a]}}",
        b'kind: Service\nmetadata: {name: a, labels: {a: "\\ud800\\n", 1: 0x10, ? [a] : b}}',
    ]
