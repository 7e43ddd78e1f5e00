"""`tfdist.ops` offers the documented ops, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import tfdist.ops

ROOT = Path(__file__).parents[3]

COLLECTIVES = {
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "fused_all_reduce",
    "gather",
    "join",
    "reduce",
    "reduce_scatter",
    "scatter",
}
LOOKUPS = {"embedding_lookup", "prefetch_rows", "safe_embedding_lookup_sparse"}
# The types of their arguments and counters.
TYPES = {"CommunicationStats", "Communicator"}


def test_only_documented_ops_are_public() -> None:
    assert set(tfdist.ops.__all__) == COLLECTIVES | LOOKUPS | TYPES


def test_pages_name_the_ops() -> None:
    for page, names in (("collectives", COLLECTIVES), ("embedding", LOOKUPS)):
        text = (ROOT / f"docs/guides/{page}.md").read_text()
        # In code marks or programs; "reduce" is no part of "all_reduce" there.
        code = "".join(re.findall(r"```.*?```|`[^`]+`", text, re.DOTALL))
        missing = [name for name in sorted(names) if not re.search(rf"\b{name}\b", code)]
        assert missing == [], page
