"""Kubernetes manifests of a job, for people who keep them in git. Imports no TensorFlow.

`options` describes a job and checks it, `pods` makes the pods of a role, `objects` the objects
beside them, `engines` the kind that starts them, and `manifest` the text.
"""

from __future__ import annotations

from tfdist.kubernetes.manifest import render, secret
from tfdist.kubernetes.options import Engine, JobOptions, Resources, Volume

__all__ = ["Engine", "JobOptions", "Resources", "Volume", "render", "secret"]
