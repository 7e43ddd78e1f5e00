"""Twenty seconds of what tests/soak/test_hostile_soak.py does for ten minutes."""

from __future__ import annotations

import pytest
from attackers import check_under_attack


@pytest.mark.timeout(900)
def test_attacks_change_nothing(tmp_path):
    check_under_attack(tmp_path, with_secret=True, seconds=20)
