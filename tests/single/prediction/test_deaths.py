"""A record is parked when it was the only one in work at three deaths."""

from __future__ import annotations

import pytest

from tfdist.prediction.deaths import Deaths


def after(*notes):
    deaths = Deaths(batch_size=10)
    for kind, first in notes:
        deaths = deaths.and_one(kind, first)
    return deaths


def test_three_deaths_of_a_record():
    alone = [("row", 27)] * 3
    assert after(("fast", 20), *alone[:2]).parked() == set()
    assert after(("fast", 20), *alone).parked() == {27}
    assert after(("row", 27), ("row", 28), ("batch", 20), *alone[:2]).parked() == {27}


def test_deaths_of_other_records_do_not_count():
    assert after(*[("row", row) for row in range(9)]).parked() == set()
    assert after(*[("batch", 20)] * 5, *[("fast", 20)] * 5).parked() == set()


def test_a_second_record_is_parked_too():
    assert after(("fast", 20), *[("row", 27)] * 3, *[("row", 31)] * 3).parked() == {27, 31}


def test_each_owner_begins_with_another_record():
    orders = [after(*[("row", 27)] * deaths).order(20, 30) for deaths in range(4)]
    assert all(sorted(order) == list(range(20, 30)) for order in orders)
    assert len({order[0] for order in orders}) == 4
    assert after(("row", 20)).order(20, 21) == [20]


def test_records_in_work_are_suspects():
    deaths = after(("fast", 20))
    assert deaths.is_careful and not after().is_careful
    assert not deaths.is_suspect(10, 20) and deaths.is_suspect(20, 30)
    assert deaths.is_suspect(60, 70)  # read ahead
    assert not deaths.is_suspect(500, 510)
    batch = after(("batch", 20))
    assert batch.is_suspect(29, 31) and not batch.is_suspect(30, 40)


def test_a_batch_whose_records_do_not_kill_alone():
    assert list(after(*[("batch", 20)] * 5).deadly_batches()) == []
    assert list(after(*[("batch", 20)] * 6).deadly_batches()) == [20]


def test_notes_are_checked():
    with pytest.raises(ValueError, match="expected the note of an owner, received 'slow' 3"):
        after(("slow", 3))
