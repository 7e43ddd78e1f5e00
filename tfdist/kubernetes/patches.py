"""Patches: parts of objects from a file of the user's, merged into the rendered objects.

A file has one or more documents of YAML. A document changes pods, if it is a PodTemplate of
Kubernetes; its name is the role, and without a name it changes the pods of all roles:

    kind: PodTemplate
    metadata: {name: worker}
    template: {spec: {nodeSelector: {pool: gpu}}}

Any other document changes the one object of its kind and name:

    kind: Job
    metadata: {name: train-worker-0}
    spec: {ttlSecondsAfterFinished: 3600}
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

from tfdist.config.validation import show
from tfdist.errors import ClusterConfigError
from tfdist.kubernetes import yaml_text
from tfdist.kubernetes.merge import MergeError, merge
from tfdist.kubernetes.names import COMPONENT, Object

_PODS = "PodTemplate"
# Of a document; the deepest field of a Pod is at 15.
_MAX_DEPTH = 50


@dataclasses.dataclass(frozen=True)
class Patch:
    """A document of a file of patches.

    Args:
      source: the file and the number of the document, for messages.
      kind: the object's, or "PodTemplate".
      name: the object's, or a role; None for all roles.
      fields: the document.
    """

    source: str
    kind: str
    name: str | None
    fields: Object

    @classmethod
    def from_text(cls, text: str, source: str) -> list[Patch]:
        """Returns the patches in a text of YAML.

        Args:
          text: the content of a file.
          source: its name, for messages.

        Raises:
          ClusterConfigError: it is no YAML, has no document, or a document is no patch.
        """
        patches = []
        for number, document in enumerate(yaml_text.load(text, source), 1):
            if document is not None:
                patches.append(_patch(document, f"{source}, document {number}"))
        if not patches:
            raise ClusterConfigError(f"{source}: expected a document of YAML, received none")
        return patches


def apply(patches: Sequence[Patch], documents: Sequence[Object]) -> list[Object]:
    """Returns the rendered objects with all patches, in their order.

    Raises:
      ClusterConfigError: a patch has nothing to change, or does not fit its object.
    """
    patched = list(documents)
    for patch in patches:
        try:
            patched = _pods(patch, patched) if patch.kind == _PODS else _object(patch, patched)
        except MergeError as error:
            raise ClusterConfigError(f"{patch.source}: {error}") from None
    return patched


def _patch(document: Any, source: str) -> Patch:
    try:
        # Without aliases, dates and other values that JSON, and so Kubernetes, has not.
        text = json.dumps(document, allow_nan=False, ensure_ascii=False)
        fields = json.loads(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ClusterConfigError(f"{source}: expected values of JSON: {error}") from None
    if _depth(fields) > _MAX_DEPTH:
        raise ClusterConfigError(f"{source}: expected at most {_MAX_DEPTH} levels, received more")
    fields = fields if isinstance(fields, dict) else {}
    kind, metadata = fields.get("kind"), fields.get("metadata") or {}
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(kind, str) or not isinstance(name, str | None):
        raise ClusterConfigError(
            f"{source}: expected a mapping with kind and metadata.name, received {show(document)}"
        )
    if kind == _PODS:
        unknown = fields.keys() - {"apiVersion", "kind", "metadata", "template"}
        if unknown or not isinstance(fields.get("template"), dict):
            raise ClusterConfigError(
                f"{source}: expected template in a {_PODS}, received {', '.join(sorted(fields))}"
            )
    elif name is None:
        raise ClusterConfigError(f"{source}: expected metadata.name of the {kind}, received none")
    return Patch(source, kind, name, fields)


def _depth(node: Any) -> int:
    """Returns the number of levels of a value of JSON, whose own reader limits them."""
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return 1 + max(map(_depth, inner), default=0)


def _object(patch: Patch, documents: list[Object]) -> list[Object]:
    places = [(document["kind"], document["metadata"]["name"]) for document in documents]
    if (patch.kind, patch.name) not in places:
        known = ", ".join(f"{kind} {name}" for kind, name in places)
        raise ClusterConfigError(
            f"{patch.source}: expected one of the rendered objects, {known}, or {_PODS}; received "
            f"{patch.kind} {patch.name}"
        )
    found = places.index((patch.kind, patch.name))
    version = documents[found]["apiVersion"]
    if patch.fields.get("apiVersion", version) != version:
        raise ClusterConfigError(
            f"{patch.source}: expected apiVersion {version}, received {patch.fields['apiVersion']}"
        )
    merged = merge(documents[found], patch.fields)
    return [*documents[:found], merged, *documents[found + 1 :]]


def _pods(patch: Patch, documents: list[Object]) -> list[Object]:
    roles: list[str] = []

    def patched(template: Object) -> Object:
        role = _role(template)
        roles.append(role)
        return merge(template, patch.fields["template"]) if patch.name in (None, role) else template

    found = [_with_templates(document, patched) for document in documents]
    if patch.name is not None and patch.name not in roles:
        raise ClusterConfigError(
            f"{patch.source}: expected metadata.name to be a role of the job, "
            f"{', '.join(dict.fromkeys(roles))}, or none for all, received {patch.name}"
        )
    return found


def _role(template: Object) -> str:
    """Returns the role of a pod template; "" if a patch has removed its labels."""
    labels = template.get("metadata", {}).get("labels", {})
    return labels.get(COMPONENT, "")


def _with_templates(node: Any, change: Callable[[Object], Object]) -> Any:
    """Returns a part of an object in which `change` was called for each pod template."""
    if isinstance(node, list):
        return [_with_templates(one, change) for one in node]
    if not isinstance(node, dict):
        return node
    spec = node.get("spec")
    is_pod = isinstance(spec, dict) and "containers" in spec
    return change(node) if is_pod else {k: _with_templates(v, change) for k, v in node.items()}
