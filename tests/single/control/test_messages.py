"""Kinds of requests have one name, in their methods, their proofs and errors."""

from __future__ import annotations

import pytest

from tfdist.control import messages


@pytest.mark.parametrize(("method", "kind"), messages.REQUESTS.items())
def test_the_wire_name_of_a_request_is_its_methods(method: str, kind: type) -> None:
    # Processes of another version prove their requests with these names.
    assert f"/{messages.SERVICE}/{messages.wire_name(kind)}" == method
