"""Log lines of a newcomer that waits."""

from __future__ import annotations

import logging

import pytest

from single.elastic.elastic_members import addresses, closing, founded, joining
from support.patience import wait_until
from tfdist.config.elastic import Elastic

LIMITS = Elastic(1, 3, 2)


def test_a_newcomer_says_what_it_waits_for(caplog):
    """The members are in a long step; the test's warnings come every 0.5 s."""
    caplog.set_level(logging.INFO, "tfdist.elastic")
    with closing() as processes:
        known = founded(processes, 2, LIMITS, known=addresses(3))
        call = joining(processes, known, 2, LIMITS)
        text = "worker 2: a newcomer: waits at worker 0 at "
        wait_until(
            lambda: sum(line.startswith(text) for line in caplog.messages) >= 2, "two log lines"
        )
        lines = [r for r in caplog.records if r.getMessage().startswith(text)]
        assert [r.levelname for r in lines[:2]] == ["INFO", "WARNING"]
        assert "until the members have ended their present step" in lines[0].getMessage()
        assert lines[1].getMessage().endswith(" s by now")
        processes[2].leave()
        with pytest.raises(Exception, match="has left the job"):
            call.result()
