"""The persistent volumes of a job."""

from __future__ import annotations

import dataclasses

from tfdist.config.validation import show
from tfdist.errors import ClusterConfigError
from tfdist.kubernetes import checks

_CLAIM_WORDS = f"a claim, {checks.SUBDOMAIN_WORDS}"


@dataclasses.dataclass(frozen=True)
class Volume:
    """A persistent volume claim that exists, and where the pods see it.

    Args:
      claim: the name of the claim.
      path: an absolute path in the container.
      read_only: whether the pods may only read it.

    Raises:
      ClusterConfigError: the name or the path cannot be used.

    Example:
      >>> Volume.from_text("data:/data:ro")
      Volume(claim='data', path='/data', read_only=True)
    """

    claim: str
    path: str
    read_only: bool = False

    def __post_init__(self) -> None:
        checks.match("--volume", self.claim, checks.SUBDOMAIN, _CLAIM_WORDS, 253)
        checks.path("--volume", self.path)

    @classmethod
    def from_text(cls, text: str) -> Volume:
        """Returns the volume in "CLAIM:PATH" or "CLAIM:PATH:ro".

        Raises:
          ClusterConfigError: the text has another form.
        """
        parts = text.split(":")
        if len(parts) not in (2, 3) or (len(parts) == 3 and parts[2] != "ro"):
            raise ClusterConfigError(
                f"--volume: expected CLAIM:PATH or CLAIM:PATH:ro, received {show(text)}"
            )
        return cls(parts[0], parts[1], len(parts) == 3)
