"""Rendered manifests in tests: read as YAML, and held to the schemas of their kinds."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from tfdist.kubernetes import Engine, JobOptions, render

_SCHEMAS = Path(__file__).parent / "kubernetes_schemas"


@functools.cache
def _schemas() -> tuple[dict[str, str], dict[str, Any]]:
    kinds: dict[str, str] = {}
    definitions: dict[str, Any] = {}
    for file in sorted(_SCHEMAS.glob("*.json")):
        schema = json.loads(file.read_text())
        kinds |= schema["kinds"]
        definitions |= schema["$defs"]
    return kinds, definitions


@functools.cache
def _validator(kind: str) -> jsonschema.Draft202012Validator:
    kinds, definitions = _schemas()
    assert kind in kinds, f"{kind}: no schema"
    schema = {"$ref": f"#/$defs/{kinds[kind]}", "$defs": definitions}
    return jsonschema.Draft202012Validator(schema)


def problems(document: dict[str, Any]) -> list[str]:
    """Returns where a document differs from the schema of its kind."""
    errors = _validator(document["kind"]).iter_errors(document)
    return [f"{document['kind']} {error.json_path}: {error.message}" for error in errors]


def options(engine: str = "jobset", **more: Any) -> JobOptions:
    """Returns the options of a job `train` with two workers."""
    given = {
        "name": "train",
        "image": "registry.example/train:1",
        "command": ("python", "train.py"),
        "workers": 2,
    }
    return JobOptions(engine=Engine(engine), **(given | more))


def documents(job: JobOptions) -> list[dict[str, Any]]:
    """Returns the objects in a job's manifests, which a reader of YAML has read."""
    return json.loads(_as_json(job))


@functools.cache
def _as_json(job: JobOptions) -> str:
    return json.dumps(read(render(job)))


def read(text: str) -> list[Any]:
    """Returns the documents in a text of YAML."""
    return list(yaml.load_all(text, Loader=yaml.CSafeLoader))


def of_kind(job: JobOptions, kind: str) -> list[dict[str, Any]]:
    """Returns a job's objects of a kind."""
    return [document for document in documents(job) if document["kind"] == kind]


def pod_templates(job: JobOptions) -> dict[str, dict[str, Any]]:
    """Returns the pod template of each role, or of each type of replica of a TFJob."""
    found: dict[str, dict[str, Any]] = {}
    for document in documents(job):
        spec = document.get("spec", {})
        if document["kind"] in ("Job", "StatefulSet"):
            role = document["metadata"]["labels"]["app.kubernetes.io/component"]
            found[role] = spec["template"]
        elif document["kind"] == "TFJob":
            found |= {name: replica["template"] for name, replica in spec["tfReplicaSpecs"].items()}
        elif document["kind"] in ("JobSet", "TrainingRuntime"):
            jobset = spec if document["kind"] == "JobSet" else spec["template"]["spec"]
            for replicated in jobset["replicatedJobs"]:
                found[replicated["name"]] = replicated["template"]["spec"]["template"]
    return found


def environment(template: dict[str, Any], values: dict[str, str]) -> dict[str, str]:
    """Returns the variables that a kubelet gives the only container of a pod.

    Args:
      template: the pod's.
      values: the values of the references to secrets and fields, by the variable's name.
    """
    found = {}
    for variable in template["spec"]["containers"][0]["env"]:
        if "value" in variable:
            found[variable["name"]] = expand(variable["value"])
        elif "resourceFieldRef" in variable["valueFrom"]:
            found[variable["name"]] = "4"  # CPUs
        else:
            found[variable["name"]] = values[variable["name"]]
    return found


def expand(text: str) -> str:
    """Replaces $$ as a kubelet does; refuses $(NAME), which no manifest of ours has."""
    assert "$(" not in text.replace("$$", ""), text
    return text.replace("$$", "$")
