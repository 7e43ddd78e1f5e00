"""Calls outside of `strategy.scope()` train on several workers as on one."""

from __future__ import annotations

import contextlib

import pytest

import tfdist
from support.processes.ranks import on_ranks
from support.training import scope_cases
from support.training.models import ADAPTIVE, difference


@pytest.mark.long(covered_by="devices/test_outside_of_scope.py")
@on_ranks(2, timeout=120.0)
def test_trained(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    for case in scope_cases.TRAINED:
        found = scope_cases.trained(case, strategy.scope)
        expected = scope_cases.trained(case, contextlib.nullcontext)
        assert difference(found, expected) <= ADAPTIVE, case


@on_ranks(2)
def test_refused(ctx):
    """All workers find it, so none of them waits for the others."""
    strategy = tfdist.MultiWorkerMirroredStrategy()
    for case, (_, text) in scope_cases.REFUSED.items():
        with pytest.raises(ValueError, match=text):
            scope_cases.refused(case, strategy.scope)
