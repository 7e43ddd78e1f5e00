"""The members of an elastic job as messages carry them."""

from __future__ import annotations

import dataclasses
import json
import uuid

from tfdist.config.elastic import MAX_WORKERS
from tfdist.control import encoding, pieces
from tfdist.elastic.protocol import messages, proofs
from tfdist.elastic.protocol.members import Generation, Member


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


def test_a_generation_on_its_way():
    for size in (1, 2, MAX_WORKERS):
        written = generation(size)
        read = Generation.from_fields(json.loads(json.dumps(written.to_fields())))
        assert read == written and read.mark == written.mark


def test_the_mark_of_a_generation_needs_its_salt():
    written = generation(3)
    others = [dataclasses.replace(written, salt="t" * 32), dataclasses.replace(written, number=7)]
    assert written.mark not in [other.mark for other in others]
    assert written.salt not in written.mark


def test_a_request_of_the_largest_job_fits_the_limit():
    """Nearly all members are dead, and described as much as `fit` does."""
    reference = generation(MAX_WORKERS)
    me = reference.members[-1]
    request = messages.ElasticFormRequest(
        fingerprint="f" * 16,
        process=me.process,
        name=me.name,
        address=me.address,
        description={str(i): "x" * 1000 for i in range(4)},
        call=2**62,
        number=reference.number,
        mark=reference.mark,
        holds_state=True,
        highest=2**62,
        dead=[member.process for member in reference.members[:-1]],
        nonce="",
        proof="",
        wait=4.0,
    )
    request = proofs.prove(request, reference.members[0].process)
    assert len(encoding.encode(request)) < pieces.MAX_REQUEST_BYTES
