"""Kubernetes manifests of a job, for people who keep them in git. Imports no TensorFlow.

`options` describes a job and checks it. `pods` makes the pods of a role, `objects` the objects
beside them, and `engines` the kind that starts them. `patches` changes them, and `manifest` makes
the text.
"""

from __future__ import annotations

from tfdist.kubernetes.manifest import render, secret
from tfdist.kubernetes.options import Engine, JobOptions
from tfdist.kubernetes.patches import Patch
from tfdist.kubernetes.resources import Resources
from tfdist.kubernetes.volumes import Volume

__all__ = ["Engine", "JobOptions", "Patch", "Resources", "Volume", "render", "secret"]
