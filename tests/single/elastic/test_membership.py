"""Members of an elastic job form it, continue without the dead, and take in newcomers."""

from __future__ import annotations

import random
import time

import pytest

from single.elastic.elastic_members import (
    SLOW,
    Process,
    addresses,
    check,
    closing,
    formed,
    formed_with_newcomers,
    founded,
    joining,
    together,
)
from support.elastic.control_tasks import Background
from support.patience import wait_until
from support.tiers import rounds
from tfdist import ops
from tfdist.config.cluster import Cluster
from tfdist.config.elastic import Elastic
from tfdist.config.settings import Settings
from tfdist.elastic.membership import Membership
from tfdist.errors import ClusterConfigError, RendezvousTimeoutError, TfdistError


@pytest.mark.parametrize("size", [1, 2, 4])
def test_founders_get_their_ranks_in_the_order_of_the_addresses(size):
    with closing() as processes:
        founded(processes, size)


def test_a_process_without_a_cluster_is_a_job_of_its_own():
    membership = Membership(Cluster.local(), Settings(), Elastic(), {})
    with ops.Communicator(0, 1, resizable=True) as communicator:
        world = membership.begin()
        assert world.size == 1 and world.generation == 1
        membership.form(communicator)
        membership.establish()
        assert membership.form(communicator).generation == 2
        membership.leave()


def test_a_task_that_does_not_train_is_refused():
    cluster = Cluster(workers=("a:1",), ps=("b:1",), task_type="ps")
    with pytest.raises(ClusterConfigError, match="ps 0: expected a chief or worker"):
        Membership(cluster, Settings(), Elastic(), {})


@pytest.mark.parametrize("dead", [[1], [0], [3], [0, 1], [1, 3], [0, 1, 2], [1, 2, 3]])
def test_the_others_go_on_after_a_crash(dead):
    with closing() as processes:
        founded(processes, 4)
        for index in dead:
            processes[index].crash()
        survivors = [p for p in processes if p.index not in dead]
        assert formed(survivors)[0].generation == 2


def test_a_crash_between_founding_and_the_first_form():
    with closing() as processes:
        known = addresses(3)
        processes.extend(Process(known, index, Elastic()) for index in range(3))
        worlds = together([process.membership.begin for process in processes])
        assert [(world.rank, world.size) for world in worlds] == [(0, 3), (1, 3), (2, 3)]
        processes[0].crash()
        assert formed(processes[1:])[0].generation == 2


def test_a_planned_change_keeps_the_ranks():
    with closing() as processes:
        founded(processes, 4)
        for generation in range(2, 5):
            assert formed(processes)[0].generation == generation


def test_a_newcomer_waits_at_rank_0_until_it_is_taken_in():
    with closing() as processes:
        known = founded(processes, 2, Elastic(1, 4, 2), known=addresses(3))
        calls = [joining(processes, known, 2, Elastic(1, 4, 2))]
        assert not processes[1].membership.newcomers_wait()
        worlds = formed_with_newcomers(processes[:2], 3)
        check(processes, [*worlds, calls[0].result()], newcomers=[2])
        assert not processes[0].membership.newcomers_wait()
        # The next generation knows no newcomers: all have established this one.
        formed(processes)


def test_a_newcomer_s_address_need_not_be_known_to_the_others():
    with closing() as processes:
        known = founded(processes, 2)
        further = (known[1], *addresses(1))
        call = joining(processes, further, 1, Elastic(1, 4, 1))
        processes[2].index = 2
        worlds = formed_with_newcomers(processes[:2], 3)
        check(processes, [*worlds, call.result()], newcomers=[2])
        # Rank 0 is found through rank 1, also after its death.
        processes[0].crash()
        formed(processes[1:])


def test_a_restarted_task_is_a_new_member_with_the_last_rank():
    with closing() as processes:
        known = founded(processes, 3)
        processes[0].crash()
        restarted = Process(known, 0, Elastic())
        processes.append(restarted)
        assert restarted.membership.begin() is None
        call = Background(restarted.form)
        worlds = formed_with_newcomers(processes[1:3], 3)
        check(processes[1:], [*worlds, call.result()], newcomers=[2])


def test_max_workers_bounds_those_taken_in():
    with closing() as processes:
        limits = Elastic(1, 3, 2)
        known = founded(processes, 2, limits, known=addresses(4))
        calls = [joining(processes, known, index, limits) for index in (2, 3)]
        worlds = together([processes[0].form, processes[1].form])
        check(processes[:3], [*worlds, calls[0].result()], newcomers=[2])
        assert not processes[0].membership.newcomers_wait() and not calls[1].done()
        processes[1].leave()
        worlds = together([processes[0].form, processes[2].form])
        check([processes[0], *processes[2:]], [*worlds, calls[1].result()], newcomers=[2])


def test_too_few_workers_wait_for_newcomers():
    with closing() as processes:
        limits = Elastic(2, 4, 3)
        known = founded(processes, 3, limits)
        told = []
        processes[0].crash()
        processes[2].crash()
        call = Background(processes[1].form, on_too_few=lambda: told.append(1))
        wait_until(lambda: told, "the call")
        restarted = Process(known, 2, limits)
        processes.append(restarted)
        worlds = together([call.result, restarted.start])
        check([processes[1], restarted], worlds, newcomers=[1])
        assert told == [1]


def test_too_few_workers_at_the_deadline():
    with closing() as processes:
        founded(processes, 3, Elastic(3, 4), timeout=2.0)
        processes[2].crash()
        told = []
        calls = [Background(p.form, on_too_few=lambda: told.append(1)) for p in processes[:2]]
        with pytest.raises(
            RendezvousTimeoutError, match="expected at least 3 workers, there are 2"
        ):
            calls[0].result()
        with pytest.raises(
            RendezvousTimeoutError,
            match="within 2 s .*, which waits for more workers",
        ):
            calls[1].result()
        assert told == [1]


def test_founders_that_are_missing_are_named():
    with closing() as processes:
        known = addresses(3)
        processes.extend(Process(known, index, Elastic(), timeout=1.5) for index in (0, 2))
        calls = [Background(process.membership.begin) for process in processes]
        for call in calls:
            with pytest.raises(RendezvousTimeoutError) as caught:
                call.result()
            assert f"still missing: worker 1 at {known[1]}" in str(caught.value)
            assert "expected 3 processes" in str(caught.value)


def test_founders_whose_leader_is_missing_name_it():
    with closing() as processes:
        known = addresses(2)
        processes.append(Process(known, 1, Elastic(), timeout=1.0))
        with pytest.raises(RendezvousTimeoutError, match=f"missing: worker 0 at {known[0]}"):
            processes[0].membership.begin()


def test_the_first_to_come_form_the_job_and_others_join():
    with closing() as processes:
        limits = Elastic(1, 4, 2)
        known = addresses(4)
        processes.extend(Process(known, index, limits) for index in range(4))
        calls = {index: Background(processes[index].membership.begin) for index in (3, 2, 1)}
        first = processes[0].membership.begin()
        begun = {0: first, **{index: call.result() for index, call in calls.items()}}
        founders = [index for index in range(4) if begun[index] is not None]
        assert len(founders) == 2 and founders[0] == 0
        assert [begun[index].rank for index in founders] == [0, 1]
        formed([processes[index] for index in founders])


def test_a_member_that_leaves_is_not_waited_for():
    with closing() as processes:
        founded(processes, 3, timing=SLOW)
        for leaver, others in ((1, (0, 2)), (0, (2,))):
            processes[leaver].leave()
            began = time.monotonic()
            formed([processes[index] for index in others])
            assert time.monotonic() - began < SLOW.answer


def test_leaving_ends_a_call_in_progress():
    with closing() as processes:
        founded(processes, 3)
        call = Background(processes[0].form)
        other = Background(processes[2].form)
        processes[0].leave()
        with pytest.raises(TfdistError, match="worker 0: has left the job"):
            call.result()
        formed_by = Background(processes[1].form)
        check(processes[1:], [formed_by.result(), other.result()])
        with pytest.raises(TfdistError, match="worker 0: has left the job"):
            processes[0].form()
        processes[0].leave()


def test_newcomers_form_the_job_again_when_all_members_have_died():
    with closing() as processes:
        known = founded(processes, 2)
        processes[0].crash()
        restarted = Process(known, 0, Elastic())
        processes.append(restarted)
        assert restarted.membership.begin() is None
        call = Background(restarted.form)
        processes[1].crash()
        processes.append(Process(known, 1, Elastic()))
        worlds = [processes[3].start(), call.result()]
        check(processes[2:], worlds[::-1])


def test_a_newcomer_alone_gives_up():
    with closing() as processes:
        known = founded(processes, 2)
        call = joining(processes, (*known, *addresses(1)), 2, Elastic(), timeout=1.5)
        processes[0].crash()
        processes[1].crash()
        with pytest.raises(RendezvousTimeoutError, match="worker 2: no member of the job"):
            call.result()


def test_a_soak_of_crashes_leaves_and_restarts():
    generator = random.Random(20)
    with closing() as processes:
        limits = Elastic(1, 5, 4)
        known = founded(processes, 4, limits, known=addresses(5))
        alive = list(processes)
        for _ in range(rounds(12, long=100)):
            free = [i for i in range(5) if known[i] not in {p.address for p in alive}]
            comes = free and generator.random() < 0.6
            new = Process(known, generator.choice(free), limits) if comes else None
            if new is not None:
                processes.append(new)
                assert new.membership.begin() is None
            call = Background(new.form) if new is not None else None
            if new is not None:
                wait_until(alive[0].membership.newcomers_wait, "the arrival")
            count = generator.randrange(len(alive)) if len(alive) > 1 else 0
            for victim in generator.sample(alive, min(count, 2)):
                (victim.leave if generator.random() < 0.3 else victim.crash)()
                alive.remove(victim)
            worlds = together([process.form for process in alive])
            if new is not None and worlds[0].size == len(alive):
                check(alive, worlds)
                wait_until(alive[0].membership.newcomers_wait, "the arrival")
                worlds = together([process.form for process in alive])
            if new is not None:
                worlds.append(call.result())
                alive.append(new)
            newcomers = [len(alive) - 1] if new is not None else []
            check(alive, worlds, newcomers=newcomers)
