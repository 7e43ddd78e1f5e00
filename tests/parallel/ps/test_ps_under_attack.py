"""Twenty seconds of the attacks that tests/soak/test_hostile_soak.py makes for ten minutes."""

from __future__ import annotations

import pytest

from support.hostile.attackers import check_under_attack

# It compiles the op library under sanitizers, and starts two jobs.
pytestmark = pytest.mark.long(
    covered_by="parallel/ps/test_ps_unauthenticated.py, core/ps/server/hostile_test.cc"
)


@pytest.mark.timeout(900)
def test_attacks_change_nothing(tmp_path):
    check_under_attack(tmp_path, with_secret=True, seconds=20)
