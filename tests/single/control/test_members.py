"""The members of an elastic job as messages carry them."""

from __future__ import annotations

import json
import uuid

from tfdist.config.elastic import MAX_WORKERS
from tfdist.control import messages
from tfdist.control.members import Generation, Member


def generation(size: int) -> Generation:
    """A generation of members with long addresses, as Kubernetes gives them."""
    members = tuple(
        Member(
            uuid.uuid4().hex, f"worker {i}", f"trainer-{i}.trainer.training.svc.cluster.local:22"
        )
        for i in range(size)
    )
    newcomers = frozenset(member.process for member in members[::3])
    return Generation(2**40, members, newcomers, "j" * 16, "s" * 32)


def test_a_generation_is_packed_and_unpacked():
    for size in (1, 2, MAX_WORKERS):
        packed = generation(size)
        assert Generation.from_packed(packed.to_packed()) == packed


def test_a_request_of_the_largest_job_fits_the_limit():
    """Nearly all members are dead, and described as much as `fit` does."""
    reference = generation(MAX_WORKERS)
    me = reference.members[-1]
    request = messages.ElasticForm(
        protocol=messages.PROTOCOL,
        to=reference.members[0].process,
        process=me.process,
        name=me.name,
        address=me.address,
        description=json.dumps({str(i): "x" * 1000 for i in range(4)}),
        reference=reference.to_packed(),
        holds_state=True,
        highest=2**62,
        dead=json.dumps([member.process for member in reference.members[:-1]]),
        wait=4.0,
    )
    assert len(messages.encode(request)) < messages.MAX_REQUEST_BYTES
