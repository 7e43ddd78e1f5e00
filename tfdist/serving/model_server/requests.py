"""A request for a signature of a model, and the answer, in any protocol."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from tfdist.serving.model_server.signature import Signature

DEFAULT_SIGNATURE = "serving_default"


@dataclasses.dataclass(frozen=True)
class Asked:
    """The model, version and signature that a request is for.

    Args:
      model: the name.
      version: the number; None for the newest.
      label: a name for a version; empty for none.
      signature: the name; empty for "serving_default".
    """

    model: str
    version: int | None = None
    label: str = ""
    signature: str = ""

    @property
    def signature_name(self) -> str:
        """The name, also if the request leaves it out."""
        return self.signature or DEFAULT_SIGNATURE


@dataclasses.dataclass(frozen=True)
class Answer:
    """The outputs of a signature.

    Args:
      version: of the model that has computed them.
      signature: their types and shapes.
      outputs: the values, by name.
    """

    version: int
    signature: Signature
    outputs: Mapping[str, np.ndarray]
