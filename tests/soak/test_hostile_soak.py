"""Ten minutes of attacks on a job whose parameter servers run under sanitizers, twice.

`attacks.KINDS` lists the attacks of strangers and of a hostile member, with the memory that each
kind may cost; `attacks` lists actions that a member may take, and does not take here. The job's
results equal an undisturbed job's of as many steps, bit for bit; no sanitizer reports anything;
each task holds at most the memory of the undisturbed one, and the allowance of the kinds and of
`attackers.QUIET`.
"""

from __future__ import annotations

import pytest

from support.hostile.attackers import check_under_attack


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("with_secret", [True, False], ids=["secret", "no_secret"])
def test_attacks_change_nothing(tmp_path, with_secret):
    check_under_attack(tmp_path, with_secret, seconds=600)
