"""Who is in the next generation of an elastic job: the state machine, without a network."""

from __future__ import annotations

import itertools
import json

import pytest
from control_tasks import Background

from tfdist.config.elastic import Elastic
from tfdist.control import arrivals, messages
from tfdist.control.generations import Generations
from tfdist.control.held_calls import ClientContext
from tfdist.control.members import Generation, Member
from tfdist.control.messages import MessageError

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A process that came counts as alive, however slowly a busy machine runs a test."""
    monkeypatch.setattr(arrivals, "_LEASE", 1000.0)


ADDRESSES = tuple(f"host{index}:1000" for index in range(8))


def machine(index, start, elastic=None, **description):
    """The state of the process with the address of an index; its id has another order."""
    member = Member(f"process {9 - index}", f"worker {index}", ADDRESSES[index])
    return Generations(member, elastic or Elastic(), ADDRESSES, start, description)


def found(caller, leader, start, wait=0.0):
    """Calls `found` of the leader as a founder of a job of `start`."""
    me = caller.me
    request = messages.ElasticFound(
        messages.PROTOCOL,
        me.process,
        me.name,
        me.address,
        caller.description,
        start,
        wait,
    )
    return leader.found(request, ClientContext())


def form(caller, leader, wait=0.0, context=None, **changes):
    """Calls `form` of the leader as the caller would."""
    me, reference = caller.me, caller.reference
    fields = {
        "protocol": messages.PROTOCOL,
        "to": leader.me.process,
        "process": me.process,
        "name": me.name,
        "address": me.address,
        "description": caller.description,
        "reference": reference.to_packed() if reference is not None else "",
        "holds_state": caller.base is not None,
        "highest": caller.highest,
        "dead": json.dumps(sorted(caller.dead)),
        "wait": wait,
    }
    request = messages.ElasticForm(**{**fields, **changes})
    return leader.form(request, context or ClientContext())


def address(caller, leader, generation, wait=0.0):
    """Calls `address` of the leader."""
    request = messages.ElasticAddress(
        messages.PROTOCOL,
        caller.me.process,
        generation.salt,
        caller.description,
        data_address(caller),
        wait,
    )
    return leader.address(request, ClientContext())


def leave(caller, other):
    """Tells another member that the caller leaves."""
    request = messages.ElasticLeave(messages.PROTOCOL, caller.me.process, 0.0)
    assert other.leave(request, ClientContext()) == {"status": "noted"}


def probe(callee):
    """Probes a process."""
    return callee.probe(messages.ElasticProbe(messages.PROTOCOL, "p", 0.0), ClientContext())


def data_address(caller):
    """A data address that identifies a process."""
    return caller.me.address.replace("1000", "2000")


def job(size, elastic=None):
    """The founders of a job, which have established generation 1."""
    processes = [machine(index, size, elastic) for index in range(size)]
    for process in processes[1:]:
        assert found(process, processes[0], size)["status"] == "waiting"
    generation = Generation.from_text(found(processes[0], processes[0], size)["generation"])
    for process in processes[1:]:
        answer = found(process, processes[0], size)
        assert answer == {"status": "complete", "generation": generation.to_text()}
        process.adopt(generation)
    connect(generation, processes)
    for process in processes:
        process.establish()
    return processes


def connect(generation, processes):
    """Round 2 of a generation that the first process leads."""
    leader = processes[0]
    leader.begin_forming(generation)
    leader.set_address(generation, data_address(leader))
    for process in processes[1:]:
        process.receive(generation)
        address(process, leader, generation)
    expected = [data_address(process) for process in processes]
    assert leader.addresses(generation) == expected
    for process in processes[1:]:
        answer = address(process, leader, generation)
        assert answer == {"status": "complete", "addresses": expected}
    for process in processes:
        process.enter(generation)


def lead(leader, others, given_up=(), asked_all=True):
    """The decision of a leader to which others have come."""
    leader.begin_forming()
    leader.lead()
    for other in others:
        other.begin_forming()
        assert form(other, leader)["status"] == "waiting"
    return leader.decide({p.me.process for p in given_up}, asked_all=asked_all)


def names(generation):
    """The members' names, by rank."""
    return [member.name for member in generation.members]


def test_a_job_is_founded_by_calls():
    processes = [machine(index, 3) for index in range(5)]
    for index in (4, 2, 3):
        assert found(processes[index], processes[0], 3)["status"] == "waiting"
    generation = Generation.from_text(found(processes[0], processes[0], 3)["generation"])
    assert names(generation) == ["worker 0", "worker 2", "worker 4"]
    for index in (1, 3):
        assert found(processes[index], processes[0], 3) == {"status": "newcomer"}
    assert "of 2 founders, this task one of 3" in found(processes[1], machine(0, 3), 2)["reason"]


# What may have become of each other member.
FATES = ("comes", "dead", "left", "silent")


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_majorities(size):
    for fates in itertools.product(FATES, repeat=size - 1):
        for asked_all in (False, True):
            processes = job(size)
            leader, others = processes[0], processes[1:]
            which = {
                fate: [p for p, f in zip(others, fates, strict=True) if f == fate] for fate in FATES
            }
            for process in which["dead"]:
                leader.declare_dead(process.me.process, "for a test")
            for process in which["left"]:
                leave(process, leader)
            decision = lead(leader, which["comes"], which["silent"], asked_all)
            come, left = 1 + len(which["comes"]), len(which["left"])
            living = come + len(which["silent"])
            if 2 * come <= living:
                assert (decision.generation, decision.lacks) == (None, "majority"), fates
                assert list(decision.gone) == [process.me for process in which["silent"]]
            elif 2 * (come + left) <= size and not asked_all:
                assert (decision.generation, decision.lacks) == (None, "proof"), fates
            else:
                assert decision.generation is not None, fates
                assert names(decision.generation) == [p.me.name for p in [leader, *which["comes"]]]
                assert decision.generation.number == 2 and not decision.generation.newcomers


def test_of_any_two_parts_at_most_one_goes_on():
    formed = []
    for part in itertools.product((0, 1), repeat=4):
        groups = [[i for i in range(4) if part[i] == side] for side in (0, 1)]
        processes = job(4)
        sizes = []
        for group, rest in zip(groups, reversed(groups), strict=True):
            if group:
                members = [processes[index] for index in group]
                gone = [processes[index] for index in rest]
                decision = lead(members[0], members[1:], gone, asked_all=True)
                if decision.generation is not None:
                    sizes.append(len(group))
        assert len(sizes) <= 1, part
        formed += sizes
    assert sorted(formed) == [3] * 8 + [4] * 2


def test_a_member_that_may_come_is_waited_for():
    processes = job(3)
    decision = lead(processes[0], processes[1:2])
    assert decision.generation is None and decision.lacks == ""
    assert decision.missing == (processes[2].me,)
    assert form(processes[1], processes[0])["missing"] == ["worker 2 at host2:1000"]


def test_others_are_redirected_to_the_leader():
    processes = job(3)
    for process in processes:
        process.begin_forming()
    assert form(processes[2], processes[1])["status"] == "waiting"
    processes[1].follow(processes[0].me)
    answer = form(processes[2], processes[1])
    assert answer["status"] == "redirect"
    assert Member.from_fields(answer["leader"]) == processes[0].me
    # It has not come here any more.
    processes[1].lead()
    assert processes[2].me in processes[1].missing()


def test_a_held_call_is_redirected_when_the_leader_is_known():
    processes = job(3)
    processes[1].begin_forming()
    call = Background(form, processes[2], processes[1], wait=20.0)
    processes[1].follow(processes[0].me)
    assert call.result()["status"] == "redirect"


def test_a_newcomer_is_sent_to_rank_0_while_the_members_train():
    processes = job(3)
    newcomer = machine(4, 3)
    answer = form(newcomer, processes[1])
    assert Member.from_fields(answer["leader"]) == processes[0].me
    assert not processes[0].newcomers_wait()
    assert form(newcomer, processes[0])["status"] == "waiting"
    assert processes[0].newcomers_wait()
    processes[1].declare_dead(processes[0].me.process, "for a test")
    processes[2].declare_dead(processes[0].me.process, "for a test")
    answer = form(newcomer, processes[2])
    assert Member.from_fields(answer["leader"]) == processes[1].me


def test_newcomers_have_the_last_ranks_in_the_order_in_which_they_came():
    processes = job(2)
    newcomers = [machine(index, 2) for index in (5, 4)]
    for newcomer in newcomers:
        form(newcomer, processes[0])
    generation = lead(processes[0], processes[1:]).generation
    assert names(generation) == ["worker 0", "worker 1", "worker 5", "worker 4"]
    assert generation.newcomers == {newcomer.me.process for newcomer in newcomers}
    for newcomer in newcomers:
        assert form(newcomer, processes[0]) == {
            "status": "complete",
            "generation": generation.to_text(),
        }


@pytest.mark.parametrize(("most", "taken"), [(2, 0), (3, 1), (4, 2), (None, 2)])
def test_max_workers(most, taken):
    processes = job(2, Elastic(1, most))
    for index in (4, 5):
        form(machine(index, 2), processes[0])
    assert processes[0].newcomers_wait() == (taken > 0)
    decision = lead(processes[0], processes[1:])
    assert len(decision.generation.members) == decision.workers == 2 + taken


@pytest.mark.parametrize("newcomers", [0, 1, 2])
def test_min_workers(newcomers):
    processes = job(3, Elastic(4))  # founded with fewer, so that none needs to die
    for index in range(newcomers):
        form(machine(4 + index, 3), processes[0])
    decision = lead(processes[0], processes[1:])
    assert (decision.generation is not None) == (newcomers > 0)
    assert decision.workers == 3 + newcomers
    assert decision.lacks == ("" if newcomers else "workers")


def test_different_bases():
    processes = job(4)
    former = processes[3]
    generation = lead(processes[0], processes[1:3], [former]).generation
    connect(generation, processes[:3])
    # Only rank 1 has completed the first collective; rank 2 dies.
    processes[1].establish()
    for process in processes[:2]:
        process.declare_dead(processes[2].me.process, "for a test")
    # The one that was silent wakes first: it is a member of what rank 0 has established.
    former.begin_forming()
    processes[0].begin_forming()
    processes[0].lead()
    assert form(former, processes[0])["status"] == "waiting"
    # Rank 1 knows better.
    processes[1].begin_forming()
    assert form(processes[1], processes[0])["status"] == "waiting"
    assert processes[0].reference == generation and processes[0].base.number == 1
    decision = processes[0].decide(set(), asked_all=False)
    assert decision.generation.number == 3
    # The other one has still no base of this reference, and is taken in as any newcomer.
    assert names(decision.generation) == ["worker 0", "worker 1", "worker 3"]
    answer = form(former, processes[0], highest=5)
    assert answer == {"status": "out", "reference": generation.to_text()}


def test_a_generation_that_nobody_has_established_counts_for_nothing():
    processes = job(4)
    generation = lead(processes[0], processes[1:3], [processes[3]]).generation
    connect(generation, processes[:3])
    for process in processes[:3]:
        process.begin_forming()
    # The former rank 3 is a member again.
    decision = lead(processes[0], processes[1:])
    assert names(decision.generation) == [f"worker {index}" for index in range(4)]
    assert decision.generation.number == 3


def test_a_leader_that_is_out_sends_others_away():
    processes = job(4)
    generation = lead(processes[1], processes[2:], [processes[0]]).generation
    connect(generation, processes[1:])
    for process in processes[1:]:
        process.establish()
    processes[0].begin_forming()
    processes[0].lead()
    answer = form(processes[2], processes[0])
    assert answer == {"status": "elsewhere", "reference": generation.to_text()}
    assert processes[0].outside == generation and not probe(processes[0])["member"]
    # As a newcomer it comes last.
    processes[0].become_newcomer()
    assert processes[0].outside is None and processes[0].base is None
    form(processes[0], processes[1])
    decision = lead(processes[1], processes[2:])
    assert names(decision.generation) == [f"worker {index}" for index in (1, 2, 3, 0)]
    assert decision.generation.newcomers == {processes[0].me.process}


def test_another_job_is_not_joined_by_its_number():
    first, second = job(3), job(2)
    generation = lead(second[0], second[1:]).generation
    connect(generation, second)
    for process in second:
        process.establish()
    answer = form(second[1], first[0], to="", process="q")
    assert answer["status"] == "out" and first[0].outside is None


def test_a_leader_that_dies_after_round_1():
    processes = job(4)
    generation = lead(processes[0], processes[1:]).generation
    for process in processes[1:]:
        answer = form(process, processes[0])
        assert answer == {"status": "complete", "generation": generation.to_text()}
        process.receive(generation)
        process.give_up(generation)
        process.declare_dead(processes[0].me.process, "for a test")
    decision = lead(processes[1], processes[2:])
    assert decision.generation.number == 3
    assert names(decision.generation) == [f"worker {index}" for index in (1, 2, 3)]
    assert probe(processes[1])["ended"] == 2


def test_a_leader_that_dies_after_some_have_round_2():
    processes = job(4)
    generation = lead(processes[0], processes[1:]).generation
    connect(generation, processes)
    # Rank 1 has entered generation 2, the others have not: no collective was completed.
    for process in processes[1:]:
        process.give_up(generation)
        process.declare_dead(processes[0].me.process, "for a test")
    assert lead(processes[1], processes[2:]).generation.number == 3


def test_a_member_that_comes_back_during_round_2_ends_it():
    processes = job(3)
    generation = lead(processes[0], processes[1:]).generation
    processes[0].set_address(generation, data_address(processes[0]))
    processes[1].receive(generation)
    call = Background(address, processes[1], processes[0], generation, wait=20.0)
    processes[2].receive(generation)
    assert form(processes[2], processes[0])["status"] == "waiting"
    assert call.result() == {"status": "again"}
    assert processes[0].addresses(generation) is None
    assert processes[0].missing_addresses(generation) is None
    assert address(processes[2], processes[0], generation) == {"status": "again"}


def test_an_answer_that_was_lost_is_given_again():
    processes = job(2)
    generation = lead(processes[0], processes[1:]).generation
    for _ in range(2):
        answer = form(processes[1], processes[0])
        assert answer == {"status": "complete", "generation": generation.to_text()}


def test_numbers_only_grow():
    processes = job(2)
    form(processes[1], processes[0], highest=41)
    assert lead(processes[0], processes[1:]).generation.number == 42


def test_a_newcomer_of_a_generation_that_failed_is_still_one():
    processes = job(2)
    newcomer = machine(5, 2)
    form(newcomer, processes[0])
    first = lead(processes[0], processes[1:]).generation
    connect(first, [*processes, newcomer])
    second = lead(processes[0], [processes[1], newcomer]).generation
    assert names(second)[-1] == "worker 5" and second.newcomers == {newcomer.me.process}
    # Once the others have established a generation with it, it counts for their majority.
    connect(second, [*processes, newcomer])
    for process in processes:
        process.establish()
    decision = lead(processes[0], processes[1:])
    assert decision.missing == (newcomer.me,)
    # But it cannot lead, since it may not hold the job's state.
    assert newcomer.reference is None
    assert form(processes[1], newcomer)["status"] == "elsewhere"
    assert form(newcomer, processes[0])["status"] == "waiting"
    third = processes[0].decide(set(), asked_all=True).generation
    assert third.newcomers == {newcomer.me.process}


def test_a_process_that_comes_is_not_dead():
    processes = job(3)
    processes[0].declare_dead(processes[1].me.process, "for a test")
    assert len(lead(processes[0], processes[1:]).generation.members) == 3


def test_the_dead_are_told():
    processes = job(3)
    processes[1].declare_dead(processes[2].me.process, "for a test")
    decision = lead(processes[0], processes[1:2])
    assert names(decision.generation) == ["worker 0", "worker 1"]


def test_another_process_at_the_address_of_a_member():
    processes = job(2)
    assert form(processes[0], processes[1], to="former") == {
        "status": "other",
        "process": processes[1].me.process,
    }


def test_a_call_whose_connection_breaks_does_not_count():
    processes = job(2)
    processes[0].begin_forming()
    processes[0].lead()
    context = ClientContext()
    call = Background(form, processes[1], processes[0], wait=20.0, context=context)
    while processes[0].missing():
        assert not call.done()
    context.disconnect()
    call.result()
    assert processes[0].missing() == [processes[1].me]


def test_closing_releases_all_calls():
    processes = job(3)
    processes[0].begin_forming()
    processes[0].lead()
    founding = machine(0, 2)
    calls = [
        Background(form, processes[1], processes[0], wait=20.0),
        Background(found, machine(1, 2), founding, 2, wait=20.0),
    ]
    processes[0].close()
    founding.close()
    for call in calls:
        assert call.result()["status"] == "closed"
    assert probe(processes[0]) == {"status": "closed"}
    assert form(processes[2], processes[0]) == {"status": "closed"}


def test_probes():
    founder = machine(0, 2)
    assert probe(founder) == {
        "status": "here",
        "process": founder.me.process,
        "member": False,
        "reference": "",
        "leader": None,
        "ended": 0,
        "news": "",
    }
    processes = job(2)
    processes[1].publish("three epochs")
    answer = probe(processes[1])
    assert answer["news"] == "three epochs"
    assert answer["member"] and Generation.from_text(answer["reference"]).number == 1
    assert Member.from_fields(answer["leader"]) == processes[0].me
    processes[1].begin_forming()
    assert probe(processes[1])["ended"] == 1
    request = messages.ElasticProbe(messages.PROTOCOL + 1, "p", 0.0)
    assert processes[1].probe(request, ClientContext())["status"] == "refused"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"number": 0, "members": [], "newcomers": [], "job": "", "salt": ""}',
        '{"number": 1, "members": [], "newcomers": [], "job": "", "salt": ""}',
        '{"number": 1, "members": [3], "newcomers": [], "job": "", "salt": ""}',
        '{"number": 1, "members": [{"process": "p", "name": "n"}], "newcomers": [], "job": "",'
        ' "salt": ""}',
    ],
)
def test_what_is_no_generation(text):
    with pytest.raises(MessageError):
        Generation.from_text(text)


def test_a_newcomer_that_differs_from_what_is_described_later_is_not_taken_in():
    processes = job(2)
    newcomer = machine(2, 2)
    newcomer.become_newcomer()
    newcomer.describe({"variables of fit 1": "7"})
    newcomer.describe({"variables of fit 2": "9"}, instead_of=["variables of fit 1"])
    assert json.loads(newcomer.description) == {"variables of fit 2": "9"}
    newcomer.begin_forming()
    processes[0].begin_forming()
    processes[0].lead()
    assert form(newcomer, processes[0])["status"] == "waiting"
    processes[0].describe({"variables of fit 2": "8"})
    processes[1].begin_forming()
    assert form(processes[1], processes[0])["status"] == "waiting"
    decision = processes[0].decide(set(), asked_all=True)
    assert names(decision.generation) == ["worker 0", "worker 1"]
    answer = form(newcomer, processes[0])
    assert answer["status"] == "refused" and "variables of fit 2" in answer["reason"]


def test_without_admission_no_newcomer_is_taken_in_and_few_members_go_on():
    processes = job(2, Elastic(min_workers=2))
    newcomer = machine(2, 2, Elastic(min_workers=2))
    newcomer.become_newcomer()
    newcomer.begin_forming()
    processes[0].begin_forming()
    processes[0].lead()
    processes[0].declare_dead(processes[1].me.process, "killed")
    assert form(newcomer, processes[0])["status"] == "waiting"
    decision = processes[0].decide(set(), asked_all=True, admits=False)
    assert names(decision.generation) == ["worker 0"]


def test_a_newcomer_or_an_excluded_member_has_no_say_in_who_lives():
    processes = job(4)
    others = json.dumps([process.me.process for process in processes])
    stale = processes.pop()
    decision = lead(processes[0], processes[1:], given_up=[stale])
    connect(decision.generation, processes)
    for process in processes:
        process.establish()
    newcomer = machine(5, 4)
    assert form(newcomer, processes[0], dead=others)["status"] == "waiting"
    assert form(stale, processes[0], dead=others)["status"] == "out"
    assert not processes[0].dead
    # A member has; but not about processes that are none.
    mine = json.dumps([processes[2].me.process, "nobody"])
    processes[0].begin_forming()
    assert form(processes[1], processes[0], dead=mine)["status"] == "waiting"
    assert list(processes[0].dead) == [processes[2].me.process]


def second(index):
    """Another process with the address of an index, a newcomer."""
    member = Member(f"second {index}", f"worker {index}", ADDRESSES[index])
    return Generations(member, Elastic(), ADDRESSES, 3, {})


@pytest.mark.parametrize("index", [0, 1])
def test_a_newcomer_with_the_address_of_a_member_that_lives_is_refused(index):
    processes = job(3)
    reason = (
        f"worker {index} at host{index}:1000 lives, and is another process than the caller: "
        "expected the caller to have an address of its own"
    )
    if index:
        # While the members train nothing is known about the one with this address.
        assert form(second(index), processes[0])["status"] == "waiting"
        assert not processes[0].newcomers_wait()
    processes[0].begin_forming()
    processes[0].lead()
    call = Background(form, processes[1], processes[0], wait=20.0)
    while processes[1].me in processes[0].missing():
        pass
    assert form(second(index), processes[0]) == {"status": "refused", "reason": reason}
    assert form(processes[2], processes[0])["status"] == "waiting"
    decision = processes[0].decide(set(), asked_all=True)
    assert names(decision.generation) == ["worker 0", "worker 1", "worker 2"]
    assert call.result()["status"] == "complete"


def test_a_task_that_was_started_again_is_taken_in_once_its_former_process_is_dead():
    processes = job(3)
    assert form(second(2), processes[0])["status"] == "waiting"
    assert not processes[0].newcomers_wait()
    processes[0].declare_dead(processes[2].me.process, "nothing listens at its address")
    assert processes[0].newcomers_wait()
    decision = lead(processes[0], processes[1:2])
    assert names(decision.generation) == ["worker 0", "worker 1", "worker 2"]
    assert "second 2" in decision.generation.newcomers


def test_a_newcomer_that_calls_itself_is_sent_elsewhere():
    # Others still name its task's former process, at the same address, as the leader.
    newcomer = second(0)
    newcomer.become_newcomer()
    assert form(newcomer, newcomer) == {"status": "elsewhere", "reference": ""}


def test_a_caller_with_the_id_of_another_process_is_refused():
    processes = job(2)
    processes[0].begin_forming()
    processes[0].lead()
    me, other = processes[0].me, processes[1].me
    for changes, reason in (
        ({"process": me.process}, f"the caller has the id of this process, {me}"),
        (
            {"address": ADDRESSES[5]},
            f"the caller has the id of {other}, and says that it is worker 1 at {ADDRESSES[5]}",
        ),
    ):
        answer = form(processes[1], processes[0], **changes)
        assert answer == {"status": "refused", "reason": reason}
    assert processes[0].missing() == [other]
    assert names(lead(processes[0], processes[1:]).generation) == ["worker 0", "worker 1"]
