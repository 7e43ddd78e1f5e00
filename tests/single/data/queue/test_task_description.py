"""Descriptions of queues that come from a peer: their numbers."""

import json

import pytest

from tfdist.data.queue.description import Description, DescriptionError, Spec

RIGHT = Description(Spec("ranges", 10, 4, "", (), 2, True, 7, 30.0))


@pytest.mark.parametrize(
    "lease",
    [0.5, 4000, 10**400, -(10**400), float("inf"), float("nan")],
    ids=["short", "long", "huge", "negative", "infinite", "none"],
)
def test_a_lease_out_of_range(lease):
    found = json.loads(RIGHT.text())
    found["spec"]["lease"] = lease
    with pytest.raises(DescriptionError, match="lease: expected 1 to 3600 seconds, received"):
        Description.parse(json.dumps(found))
