"""Kubernetes manifests of a job, for people who keep them in git. Imports no TensorFlow.

`options` describes a job and checks it, `names` names its objects, `pods` makes the pods of a role
with the `variables` of their containers, `objects` the objects beside them, `engines` the kind that
starts them, and `manifest` the text.
"""

from __future__ import annotations

from tfdist.kubernetes.manifest import render, secret
from tfdist.kubernetes.options import Engine, JobOptions
from tfdist.kubernetes.resources import Resources
from tfdist.kubernetes.volumes import Volume

__all__ = ["Engine", "JobOptions", "Resources", "Volume", "render", "secret"]
