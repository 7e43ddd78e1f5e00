"""The strategic merge of Kubernetes: a part of an object is merged into the object.

    base                           patch                         result
    {a: 1, b: {c: 2}}              {b: {d: 3}}                   {a: 1, b: {c: 2, d: 3}}
    {a: 1, b: 2}                   {b: null}                     {a: 1}
    volumes: [{name: x, ...}]      volumes: [{name: y, ...}]     both volumes
    containers: [{name: x, ...}]   containers: [{name: x, ...}]  one container, merged
    env: [{name: X, value: "1"}]   env: [{name: X, value: "2"}]  env: [{name: X, value: "2"}]
    tolerations: [...]             tolerations: [...]            the patch's

Elements of some lists have a key, by which they are merged; `$patch: delete` beside the key removes
an element. All other lists are replaced. The types of Kubernetes and JobSet declare the keys:
https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/
Unlike there, a removal of something that is absent is an error.
"""

from __future__ import annotations

from typing import Any

# The keys of a list's elements, by the name of the field. Of several the first that an element has.
KEYS = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "volumeMounts": ("mountPath",),
    "ports": ("containerPort", "port"),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey",),
    "replicatedJobs": ("name",),
}
# Their elements are replaced: a variable has either `value` or `valueFrom`.
_WHOLE = ("env",)
_DIRECTIVE = "$patch"


class MergeError(Exception):
    """A patch does not fit its object; says where."""


def merge(base: dict[str, Any], patch: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Returns an object with a patch; changes neither.

    Raises:
      MergeError: a value has another type than the one it is merged into; a removed key or element
        is not there; an element of a list has no key; or a new container has no image.
    """
    merged = dict(base)
    for name, value in patch.items():
        place = f"{path}.{name}" if path else name
        if name.startswith("$"):
            raise MergeError(f"{path or name}: expected {_DIRECTIVE}: delete in a list with keys")
        if value is None:
            if name not in merged:
                raise MergeError(f"{place}: expected a field to remove, received none of this name")
            del merged[name]
        else:
            merged[name] = _value(name, merged.get(name), value, place)
    return merged


def _value(name: str, base: Any, patch: Any, place: str) -> Any:
    if isinstance(base, dict) and not isinstance(patch, dict):
        raise MergeError(f"{place}: expected a mapping, received {patch!r}")
    if (isinstance(base, list) or name in KEYS) and not isinstance(patch, list):
        raise MergeError(f"{place}: expected a list, received {patch!r}")
    if isinstance(patch, (dict, list)) and base is not None and not isinstance(base, (dict, list)):
        raise MergeError(f"{place}: expected a single value, received {patch!r}")
    if isinstance(patch, dict):
        return merge(base or {}, patch, place)
    if name in KEYS:
        return _list(name, base or [], patch, place)
    return patch


def _list(name: str, base: list[Any], patch: list[Any], place: str) -> list[Any]:
    merged = list(base)
    for element in patch:
        key = _key(name, element, place)
        at = next((i for i, one in enumerate(merged) if one.get(key) == element[key]), None)
        here = f"{place}[{key}={element[key]}]"
        if element.get(_DIRECTIVE) == "delete":
            if at is None:
                raise MergeError(f"{here}: expected an element to remove, received none")
            del merged[at]
        elif at is not None:
            merged[at] = merge({} if name in _WHOLE else merged[at], element, here)
        else:
            if name == "containers" and "image" not in element:
                names = ", ".join(one["name"] for one in merged)
                raise MergeError(f"{here}: expected one of {names}, or an image")
            merged.append(merge({}, element, here))
    return merged


def _key(name: str, element: Any, place: str) -> str:
    found = [key for key in KEYS[name] if isinstance(element, dict) and key in element]
    if not found:
        keys = " or ".join(KEYS[name])
        raise MergeError(f"{place}: expected elements with {keys}, received {element!r}")
    return found[0]
