"""The extended class of `LocalUpdateStrategy` in elastic jobs."""

from __future__ import annotations

from tfdist.strategies._extended.elastic import ElasticExtended
from tfdist.strategies._extended.local_update import LocalUpdateExtended


class ElasticLocalUpdateExtended(LocalUpdateExtended, ElasticExtended):
    """As `LocalUpdateExtended`; needs other workers for synchronizations alone."""
