"""The processes that form an elastic job, and their ranks."""

from __future__ import annotations

import pytest

from tfdist.elastic.protocol import arrivals
from tfdist.elastic.protocol.founders import Founders
from tfdist.elastic.protocol.members import Member
from tfdist.elastic.protocol.start_size import StartSize

ADDRESSES = tuple(f"host{index}:1000" for index in range(5))
# Their ids have another order than their addresses.
MEMBERS = [Member(f"process {9 - i}", f"worker {i}", a) for i, a in enumerate(ADDRESSES)]


def size(number):
    """A job that begins with this number of founders only."""
    return StartSize(number, number, 0.0)


def founders(start, *indices):
    """The founders of a job at worker 0, to which some have come in this order."""
    found = Founders(MEMBERS[0], ADDRESSES, size(start))
    for index in indices:
        assert not found.are_complete()
        come(found, MEMBERS[index])
    return found


def come(found, member):
    """A founder comes and answers at its address."""
    arrival, _ = found.add(member)
    found.confirm(member.process)
    return arrival


def test_ranks_follow_the_addresses():
    generation = founders(4, 3, 1, 2, 0).first_generation()
    assert generation.members == tuple(MEMBERS[:4])
    assert (generation.number, generation.newcomers) == (1, frozenset())


def test_the_first_to_come_form_the_job_with_the_leader():
    found = founders(3, 4, 2, 3, 0)
    assert found.are_complete()
    assert found.first_generation().members == (MEMBERS[0], MEMBERS[2], MEMBERS[4])
    # The remaining ones would form another job.
    assert found.missing() == [0, 1, 2, 3, 4]


def test_a_founder_of_an_unknown_address_has_the_last_rank():
    found = founders(2, 0)
    stranger = Member("stranger", "worker 1", "elsewhere:1000")
    come(found, stranger)
    assert found.first_generation().members == (MEMBERS[0], stranger)


def test_no_process_founds_a_job_without_the_leader():
    assert not founders(2, 1, 2, 3).are_complete()


def test_a_founder_that_was_restarted_counts_once():
    found = founders(3, 1)
    again = Member("again", "worker 1", ADDRESSES[1])
    come(found, again)
    come(found, MEMBERS[0])
    assert found.missing() == [2, 3, 4] and not found.are_complete()
    come(found, MEMBERS[2])
    assert found.first_generation().members == (MEMBERS[0], again, MEMBERS[2])


def test_founders_that_are_gone_do_not_count(monkeypatch):
    found = founders(3)
    dead, broken, silent = (come(found, member) for member in MEMBERS[1:4])
    found.forget(dead.member.process)
    found.remove(broken)
    monkeypatch.setattr(arrivals, "_LEASE", -1.0)
    silent.await_next_call()
    come(found, MEMBERS[0])
    assert found.missing() == [1, 2, 3, 4]


def test_a_founder_that_has_come_again_is_not_removed():
    found = founders(3)
    former = come(found, MEMBERS[1])
    come(found, MEMBERS[1])
    found.remove(former)
    assert 1 not in found.missing()


def test_only_the_first_address_is_a_meeting_place():
    elsewhere = Founders(MEMBERS[1], ADDRESSES, size(2))
    assert elsewhere.reason_to_refuse(size(2)) == (
        "this is worker 1 at host1:1000, but founders meet at the first training address, "
        "host0:1000",
        "founders meet at the first training address, which is another task's",
    )


def test_no_job_begins_early_without_the_leader():
    found = Founders(MEMBERS[0], ADDRESSES, StartSize(4, 2, 1e-9))
    for member in (MEMBERS[1], MEMBERS[2]):
        come(found, member)
        assert not found.are_complete()
    come(found, MEMBERS[0])
    assert not found.are_complete()  # the time counts from here
    assert found.are_complete()
    assert found.first_generation().members == tuple(MEMBERS[:3])


def test_founders_that_are_gone_do_not_begin_early(monkeypatch):
    found = Founders(MEMBERS[0], ADDRESSES, StartSize(3, 2, 1e-9))
    silent = come(found, MEMBERS[1])
    come(found, MEMBERS[0])
    assert not found.are_complete()
    monkeypatch.setattr(arrivals, "_LEASE", -1.0)
    silent.await_next_call()
    assert not found.are_complete()


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (StartSize(3, 2, 5.0), "3 founders, or of 2 after 5 s"),
        (StartSize(3, 1, 9.0), "3 founders, or of 1 after 9 s"),
        (StartSize(3, 3, 0.0), "3 founders"),
    ],
)
def test_all_expect_the_same_time_and_least_number(other, words):
    found = Founders(MEMBERS[0], ADDRESSES, StartSize(3, 2, 9.0))
    assert found.reason_to_refuse(StartSize(3, 2, 9.0)) is None
    assert found.reason_to_refuse(other) == (
        f"the caller expects a job of {words}, this task one of 3, or of 2 after 9 s",
        f"the caller expects a job of {words}, this task another number",
    )


def test_all_expect_the_same_number():
    assert founders(2).reason_to_refuse(size(2)) is None
    assert founders(2).reason_to_refuse(size(3)) == (
        "the caller expects a job of 3 founders, this task one of 2",
        "the caller expects a job of 3 founders, this task another number",
    )
