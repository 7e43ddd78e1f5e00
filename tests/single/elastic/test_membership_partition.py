"""Members that cannot reach each other: at most one part of a job continues."""

from __future__ import annotations

import dataclasses

import pytest

from single.elastic.elastic_members import (
    QUICK,
    Process,
    addresses,
    check,
    closing,
    cut,
    formed,
    founded,
    joining,
    summed,
    together,
)
from support.elastic.control_tasks import Background
from support.patience import wait_until
from tfdist.config.elastic import Elastic
from tfdist.errors import RendezvousTimeoutError

pytestmark = pytest.mark.timeout(300)


@pytest.mark.long("2", covered_by="the other cases")
@pytest.mark.parametrize("alone", [0, 2, 3])
def test_three_of_four_go_on_and_the_fourth_comes_back_as_a_newcomer(alone):
    with closing() as processes:
        founded(processes, 4)
        others = [process for process in processes if process.index != alone]
        cut(others, [processes[alone]])
        excluded = Background(processes[alone].form)
        assert formed(others)[0].generation == 2
        assert not excluded.done()
        cut(processes)
        wait_for_newcomer(others[0], excluded)
        worlds = together([process.form for process in others])
        check([*others, processes[alone]], [*worlds, excluded.result()], newcomers=[3])
        assert excluded.result().is_newcomer and not worlds[0].is_newcomer


@pytest.mark.long("groups1", covered_by="the other cases")
@pytest.mark.parametrize("groups", [((0, 1), (2, 3)), ((0, 3), (1, 2))])
def test_two_halves_make_no_progress_until_the_network_heals(groups):
    # The last to come is waited for as long as an answer may take: long enough on a busy machine.
    timing = dataclasses.replace(QUICK, answer=4.0)
    with closing() as processes:
        founded(processes, 4, timing=timing)
        cut(*([processes[index] for index in group] for group in groups))
        calls = [Background(process.form) for process in processes]
        # Longer than the grace: both leaders have given the other half up.
        with pytest.raises(TimeoutError):
            calls[0].result(timeout=4.5)
        assert not any(call.done() for call in calls)
        cut(processes)
        check(processes, [call.result() for call in calls])


def test_a_member_of_a_generation_that_others_have_established_does_not_join_those_before_it():
    with closing() as processes:
        founded(processes, 5)
        cut(processes[:3], processes[3:])
        together([process.form for process in processes[:3]])
        together([lambda p=process: summed(p) for process in processes[:3]])
        # Rank 2 has lost the others before it had the sum. All five know it from generation 1.
        for process in processes[:2]:
            process.membership.establish()
        cut(processes[:2], processes[2:])
        assert [world.size for world in formed(processes[:2])] == [2, 2]
        others = [Background(process.form) for process in processes[2:]]
        with pytest.raises(TimeoutError):
            others[0].result(timeout=4.0)
        assert not any(call.done() for call in others)
        cut(processes)
        # Rank 2 learns it from the members of its own part; the others, when it is a member again.
        members, calls = processes[:2], dict(zip(processes[2:], others, strict=True))
        while calls:
            wait_for_newcomer(members[0], next(iter(calls.values())))
            formed_with = [Background(process.form) for process in members]
            world = formed_with[0].result()
            # Two may come at once, in either order.
            by_id = {process.membership.process: process for process in calls}
            come = [by_id[m.process] for m in world.members if m.process in by_id]
            worlds = [call.result() for call in (*formed_with, *(calls.pop(p) for p in come))]
            members = [*members, *come]
            check(members, worlds, newcomers=world.newcomers)
        assert world.size == 5


def test_a_member_goes_on_without_an_established_generation_whose_others_are_dead():
    with closing() as processes:
        founded(processes, 3)
        cut(processes[:2], processes[2:])
        together([process.form for process in processes[:2]])
        cut(processes)
        processes[0].crash()
        formed(processes[1:])


def test_a_member_goes_on_when_the_newcomers_of_an_attempt_are_cut_off():
    with closing() as processes:
        limits = Elastic(start_workers=1)
        known = founded(processes, 1, limits, known=addresses(2))
        newcomer = joining(processes, known, 1, limits)
        # Both have entered generation 2, and neither has established it.
        together([processes[0].form, newcomer.result])
        cut(processes[:1], processes[1:])
        assert [world.size for world in formed(processes[:1])] == [1]


def test_two_halves_end_at_the_deadline_and_name_the_others():
    with closing() as processes:
        known = founded(processes, 2)
        for process in processes:  # after the job was formed
            process.membership._peers.timeout = 3.5
        cut(*([process] for process in processes))
        calls = [Background(process.form) for process in processes]
        for index, call in enumerate(calls):
            with pytest.raises(RendezvousTimeoutError) as caught:
                call.result()
            assert "more than half of the living members of generation 1" in str(caught.value)
            assert f"missing: worker {1 - index} at {known[1 - index]}" in str(caught.value)


def test_a_member_that_redirects_to_a_leader_that_was_passed_over():
    with closing() as processes:
        founded(processes, 3)
        # Only rank 2 cannot reach rank 0, for a while.
        cut(processes[:2], processes[2:])
        processes[2].probes.cut = frozenset([processes[0].address])
        processes[0].probes.cut = frozenset()
        processes[1].probes.cut = frozenset()
        calls = [Background(process.form) for process in processes]
        with pytest.raises(TimeoutError):
            calls[0].result(timeout=1.0)
        cut(processes)
        check(processes, [call.result() for call in calls])


def test_a_dead_member_s_successor_keeps_a_woken_one_from_going_on_alone():
    with closing() as processes:
        known = founded(processes, 3)
        # Rank 2 does not notice what happens; the job continues with rank 0 and 1, then 1 and a new
        # process, so that all others that rank 2 knows are dead but one; in the end all are.
        cut(processes[:2], processes[2:])
        formed(processes[:2])
        processes[0].crash()
        formed(processes[1:2])
        successor = Process(known, 0, Elastic())
        processes.append(successor)
        assert successor.membership.begin() is None
        joining = Background(successor.form)
        wait_for_newcomer(processes[1], joining)
        check([processes[1], successor], [processes[1].form(), joining.result()], newcomers=[1])
        processes[1].crash()
        formed([successor])
        cut(processes[2:])
        excluded = Background(processes[2].form)
        wait_for_newcomer(successor, excluded)
        worlds = [successor.form(), excluded.result()]
        check([successor, processes[2]], worlds, newcomers=[1])


def wait_for_newcomer(leader, call):
    """Waits until a newcomer waits at the leader; its call continues."""
    wait_until(lambda: leader.membership.newcomers_wait() or call.done(), "the arrival")
    assert not call.done()


@pytest.mark.long("1-*", covered_by="the other cases")
@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["same address", "another address"])
@pytest.mark.parametrize("killed", [0, 1])
def test_a_task_that_runs_again_proves_the_end_of_its_process_on_another_host(killed, is_elsewhere):
    with closing() as processes:
        known = list(founded(processes, 2, Elastic(min_workers=2)))
        survivor = processes[1 - killed]
        survivor.probes.distant = frozenset({known[killed]})
        processes[killed].crash()
        call = Background(survivor.form)
        with pytest.raises(TimeoutError):  # longer than the grace
            call.result(timeout=2.5)
        if is_elsewhere:
            (known[killed],) = addresses(1)
        restarted = Process(known, killed, Elastic(min_workers=2))
        processes.append(restarted)
        worlds = together([call.result, restarted.start])
        check([survivor, restarted], worlds, newcomers=[1])
