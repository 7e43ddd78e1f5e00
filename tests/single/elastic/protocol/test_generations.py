"""The members of the next generation of an elastic job: the state machine, without a network."""

from __future__ import annotations

import itertools
import json

import pytest

from support.elastic.control_tasks import Background
from tfdist.config.elastic import Elastic
from tfdist.control import callers
from tfdist.control.encoding import MessageError
from tfdist.control.held_calls import ClientContext
from tfdist.elastic.protocol import arrivals, messages, proofs
from tfdist.elastic.protocol.generations import Generations
from tfdist.elastic.protocol.members import Generation, Member
from tfdist.elastic.protocol.start_size import StartSize


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A process that came counts as alive, however slowly a busy machine runs a test."""
    monkeypatch.setattr(arrivals, "_LEASE", 1000.0)


ADDRESSES = tuple(f"host{index}:1000" for index in range(8))


def key_of(index):
    """The key of the process with the address of an index."""
    return f"key {index}"


def machine(index, start, elastic=None, *, key=None, signed=False, answers=True, **description):
    """The state of the process with the address of an index; its id has another order.

    With `answers` the processes that come answer at once when they are asked at their addresses.
    """
    member = Member(proofs.process_id(key or key_of(index)), f"worker {index}", ADDRESSES[index])

    def ask(other, host):
        if answers:
            state.confirm(other.address, lambda process: process == other.process)

    state = Generations(
        member,
        elastic or Elastic(),
        ADDRESSES,
        StartSize(start, start, 0.0),
        description,
        ask=ask,
        callers_are_signed=signed,
    )
    return state


def come_as_founder(caller, leader, start, wait=0.0, **changes):
    """Calls `admit_founder` of the leader as a founder of a job of `start`."""
    fields = {
        "fingerprint": callers.fingerprint(ADDRESSES),
        "process": caller.me.process,
        "name": caller.me.name,
        "address": caller.me.address,
        "description": caller.description,
        "start": start,
        "least": start,
        "patience": 0.0,
        "wait": wait,
    }
    return leader.admit_founder(
        messages.ElasticFoundRequest(**{**fields, **changes}), ClientContext()
    )


def form(caller, leader, wait=0.0, context=None, to=None, **changes):
    """Calls `form` of the leader as the caller would; it means the leader, or the process `to`."""
    me, reference = caller.me, caller.reference
    fields = {
        "fingerprint": callers.fingerprint(ADDRESSES),
        "process": me.process,
        "name": me.name,
        "address": me.address,
        "description": caller.description,
        "call": caller.call,
        "number": reference.number if reference is not None else 0,
        "mark": reference.mark if reference is not None else "",
        "holds_state": caller.base is not None,
        "highest": caller.highest,
        "dead": sorted(caller.dead),
        "nonce": "",
        "proof": "",
        "wait": wait,
    }
    to = to or ("" if reference is None else leader.me.process)
    request = proofs.prove(messages.ElasticFormRequest(**{**fields, **changes}), to)
    answer = leader.form(request, context or ClientContext())
    assert proofs.is_from(answer, request.nonce, leader.me.process)
    return without_proof(answer)


def address(caller, leader, generation, wait=0.0, to=None):
    """Calls `address` of the leader."""
    request = messages.ElasticAddressRequest(
        caller.me.process,
        generation.mark,
        caller.description,
        data_address(caller),
        "",
        "",
        wait,
    )
    request = proofs.prove(request, leader.me.process if to is None else to)
    return without_proof(leader.address(request, ClientContext()))


def without_proof(answer):
    """An answer's content."""
    return {field: value for field, value in answer.items() if field != "proof"}


def leave(caller, other):
    """Tells another member that the caller leaves."""
    assert say_goodbye(key_of(ADDRESSES.index(caller.me.address)), other) == {"status": "noted"}


def say_goodbye(key, other):
    """Tells another member that the process with a key leaves."""
    return other.leave(messages.ElasticLeaveRequest(key, 0.0), ClientContext())


def probe(callee, key="", fingerprint=""):
    """Probes a process as a caller that knows `key`."""
    request = messages.ElasticProbeRequest(fingerprint, "", "", 0.0)
    request = proofs.prove(request, key)
    answer = callee.probe(request, ClientContext())
    assert proofs.is_from(answer, request.nonce, callee.me.process)
    return without_proof(answer)


def data_address(caller):
    """A data address that identifies a process."""
    return caller.me.address.replace("1000", "2000")


def job(size, elastic=None):
    """The founders of a job, which have established generation 1."""
    processes = [machine(index, size, elastic) for index in range(size)]
    for process in processes[1:]:
        assert come_as_founder(process, processes[0], size)["status"] == "waiting"
    generation = Generation.from_fields(
        come_as_founder(processes[0], processes[0], size)["generation"]
    )
    for process in processes[1:]:
        answer = come_as_founder(process, processes[0], size)
        assert answer == {"status": "complete", "generation": generation.to_fields()}
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


def test_a_job_is_formed_by_calls():
    processes = [machine(index, 3) for index in range(5)]
    for index in (4, 2, 3):
        assert come_as_founder(processes[index], processes[0], 3)["status"] == "waiting"
    generation = Generation.from_fields(
        come_as_founder(processes[0], processes[0], 3)["generation"]
    )
    assert names(generation) == ["worker 0", "worker 2", "worker 4"]
    for index in (1, 3):
        assert come_as_founder(processes[index], processes[0], 3) == {"status": "newcomer"}
    assert (
        "of 2 founders, this task one of 3"
        in come_as_founder(processes[1], machine(0, 3), 2)["reason"]
    )
    for changes in ({"patience": 1e-9}, {"least": 1}, {"least": -1, "patience": -1.0}):
        answer = come_as_founder(processes[1], machine(0, 3), 3, **changes)
        assert answer["status"] == "refused" and "this task one of 3" in answer["reason"]


# The possible fates of each other member.
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
    # It is not told the leader's id.
    to_leader = {"name": "worker 0", "address": ADDRESSES[0]}
    assert form(newcomer, processes[1]) == {"status": "redirect", "leader": to_leader}
    assert not processes[0].newcomers_wait()
    assert form(newcomer, processes[0])["status"] == "waiting"
    assert processes[0].newcomers_wait()
    processes[1].declare_dead(processes[0].me.process, "for a test")
    processes[2].declare_dead(processes[0].me.process, "for a test")
    assert form(newcomer, processes[2])["leader"]["address"] == ADDRESSES[1]


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
            "generation": generation.to_fields(),
        }


@pytest.mark.parametrize(("limit", "taken"), [(2, 0), (3, 1), (4, 2), (None, 2)])
def test_max_workers(limit, taken):
    processes = job(2, Elastic(1, limit))
    for index in (4, 5):
        form(machine(index, 2), processes[0])
    assert processes[0].newcomers_wait() == (taken > 0)
    decision = lead(processes[0], processes[1:])
    assert len(decision.generation.members) == decision.workers == 2 + taken


@pytest.mark.parametrize("newcomers", [0, 1, 2])
def test_min_workers(newcomers):
    processes = job(3, Elastic(4))  # formed with fewer, so that none needs to die
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
    # The silent one wakes first: it is a member of the generation that rank 0 has established.
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
    assert answer == {"status": "out", "number": generation.number, "mark": generation.mark}


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
    assert form(processes[2], processes[0]) == {"status": "elsewhere"}
    assert not processes[0].is_outside()
    for process, is_outside in ((processes[1], False), (processes[2], True)):
        processes[0].hear(process.me.process, generation.number, generation.mark)
        assert processes[0].is_outside() == is_outside
    assert form(processes[2], processes[0]) == {"status": "elsewhere"}
    assert not probe(processes[0])["member"]
    # As a newcomer it comes last.
    processes[0].become_newcomer()
    assert not processes[0].is_outside() and processes[0].base is None
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
    answer = form(second[1], first[0], process="q")
    assert answer["status"] == "elsewhere" and first[0].reference.number == 1
    first[0].hear(second[1].me.process, generation.number, generation.mark)
    assert first[0].reference.number == 1 and not first[0].is_outside()


def test_a_leader_that_dies_after_round_1():
    processes = job(4)
    generation = lead(processes[0], processes[1:]).generation
    for process in processes[1:]:
        answer = form(process, processes[0])
        assert answer == {"status": "complete", "generation": generation.to_fields()}
        process.receive(generation)
        process.give_up(generation)
        process.declare_dead(processes[0].me.process, "for a test")
    decision = lead(processes[1], processes[2:])
    assert decision.generation.number == 3
    assert names(decision.generation) == [f"worker {index}" for index in (1, 2, 3)]
    assert probe(processes[1], processes[1].me.process)["ended"] == 2


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
        assert answer == {"status": "complete", "generation": generation.to_fields()}


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
    answer = form(processes[0], processes[1], to=proofs.process_id("former"))
    assert answer["status"] == "refused" and "means another process" in answer["reason"]
    assert processes[1].missing() == [processes[0].me]


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
        Background(come_as_founder, machine(1, 2), founding, 2, wait=20.0),
    ]
    processes[0].close()
    founding.close()
    for call in calls:
        assert call.result()["status"] == "closed"
    assert probe(processes[0])["status"] == "closed"
    assert form(processes[2], processes[0]) == {"status": "closed"}


def test_probes():
    founder = machine(0, 2)
    assert probe(founder) == {"status": "here", "member": False}
    known = probe(founder, founder.me.process)
    assert known == {
        "status": "here",
        "member": False,
        "number": 0,
        "mark": "",
        "ended": 0,
    }
    processes = job(2)
    reference = processes[1].reference
    answer = probe(processes[1], processes[1].me.process)
    assert answer["member"]
    assert (answer["number"], answer["mark"]) == (1, reference.mark)
    # A process that knows the job alone, at an address where it knows no member.
    assert probe(processes[1], reference.job) == answer
    processes[1].begin_forming()
    assert probe(processes[1], processes[1].me.process)["ended"] == 1


def test_newcomers_are_taken_in_where_they_stand():
    processes = job(2)
    newcomer = machine(3, 2)
    for process in processes:
        process.stand(call=4, ended=3)
    newcomer.stand(call=2, ended=1)
    assert form(newcomer, processes[0]) == {"status": "over"}
    assert not processes[0].newcomers_wait()
    for call, waits in ((5, False), (4, True)):
        newcomer.stand(call=call, ended=3)
        assert form(newcomer, processes[0])["status"] == "waiting"
        assert processes[0].newcomers_wait() == waits
    # No process can stand in a call that is within another one.
    processes[0].stand(call=-1, ended=3)
    assert not processes[0].newcomers_wait()
    processes[0].stand(call=4, ended=3)
    assert processes[0].newcomers_wait()


def test_a_waiting_newcomer_hears_that_its_call_is_over():
    processes = job(2)
    processes[0].stand(call=4, ended=3)
    newcomer = machine(3, 2)
    newcomer.stand(call=4, ended=3)
    waiting = Background(form, newcomer, processes[0], wait=20.0)
    while not processes[0].newcomers_wait():
        processes[0].wait(5.0, processes[0].changes)
    processes[0].stand(call=0, ended=4)
    assert waiting.result() == {"status": "over"}


def test_another_call_than_the_members_is_not_taken_in_when_they_form_a_generation():
    processes = job(2)
    processes[0].stand(call=4, ended=3)
    for process in processes:
        process.begin_forming()
    processes[0].lead()
    newcomers = [machine(3, 2), machine(4, 2)]
    for newcomer, call in zip(newcomers, (4, 5), strict=True):
        newcomer.stand(call=call, ended=3)
        assert form(newcomer, processes[0])["status"] == "waiting"
    assert form(processes[1], processes[0])["status"] == "waiting"
    generation = processes[0].decide(set(), asked_all=True, admits=True).generation
    assert newcomers[0].me in generation.members
    assert newcomers[1].me not in generation.members


@pytest.mark.parametrize(
    "text",
    [
        '""',
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
        Generation.from_fields(json.loads(text))


def test_a_newcomer_that_differs_from_what_is_described_later_is_not_taken_in():
    processes = job(2)
    newcomer = machine(2, 2)
    newcomer.become_newcomer()
    newcomer.describe({"variables of fit 1": "7"})
    newcomer.describe({"variables of fit 2": "9"}, instead_of=["variables of fit 1"])
    assert newcomer.description == {"variables of fit 2": "9"}
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
    others = [process.me.process for process in processes]
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
    mine = [processes[2].me.process, "nobody"]
    processes[0].begin_forming()
    assert form(processes[1], processes[0], dead=mine)["status"] == "waiting"
    assert list(processes[0].dead) == [processes[2].me.process]


def second(index):
    """Another process with the address of an index, a newcomer."""
    return machine(index, 3, key=f"second {index}")


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
    assert second(2).me.process in decision.generation.newcomers


def test_a_newcomer_that_calls_itself_is_sent_elsewhere():
    # Others still name its task's former process, at the same address, as the leader.
    newcomer = second(0)
    newcomer.become_newcomer()
    assert form(newcomer, newcomer) == {"status": "elsewhere"}


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


SECRET_FIELDS = {"clip": "sum", "model": "abc"}


def test_a_stranger_reads_no_value_of_the_job():
    processes = [machine(index, 2, **SECRET_FIELDS) for index in range(3)]
    assert come_as_founder(processes[1], processes[0], 2)["status"] == "waiting"
    stranger = machine(4, 3, clip="mean")
    answers = [come_as_founder(stranger, processes[0], 3, fingerprint="")]
    answers += [come_as_founder(stranger, processes[0], 3, fingerprint="", description={})]
    generation = Generation.from_fields(
        come_as_founder(processes[0], processes[0], 2)["generation"]
    )
    come_as_founder(processes[1], processes[0], 2)
    processes[1].adopt(generation)
    connect(generation, processes[:2])
    for process in processes[:2]:
        process.establish()
        process.begin_forming()
        answers += [probe(process), come_as_founder(stranger, process, 3, fingerprint="")]
        for changes in ({}, {"description": {}}, {"description": dict(SECRET_FIELDS)}):
            answers += [form(stranger, process, fingerprint="", **changes)]
            for other in processes[:2]:
                answers += [form(stranger, process, fingerprint="", address=other.me.address)]
    text = json.dumps([{k: v for k, v in answer.items() if k != "details"} for answer in answers])
    for value in ("abc", *(p.me.process for p in processes)):
        assert value not in text
    for value in (generation.job, generation.salt, generation.mark, ADDRESSES[0], ADDRESSES[1]):
        assert value not in text
    assert "'sum'" not in text


@pytest.mark.parametrize("signed", [False, True])
def test_a_refusal_has_the_values_for_who_knows_the_job_and_for_the_log(signed):
    founder = machine(0, 2, signed=signed, clip="sum")
    stranger = machine(1, 2, clip="mean")
    full = "'clip' differs: expected 'sum' as on worker 0 at host0:1000, received 'mean'"
    assert come_as_founder(stranger, founder, 2)["reason"] == full
    answer = come_as_founder(stranger, founder, 2, fingerprint="another")
    if signed:
        assert answer == {"status": "refused", "reason": full}
    else:
        assert answer["details"] == full
        assert answer["reason"].startswith("'clip' differs: received 'mean'. This task's log has")


def test_a_later_generation_in_a_stranger_s_call_has_no_effect():
    processes = job(3)
    processes[0].begin_forming()
    processes[0].lead()
    stranger = machine(6, 3, answers=False)
    claim = {"number": 99, "mark": "m", "highest": 2**40, "holds_state": True}
    dead = [process.me.process for process in processes]
    assert form(stranger, processes[0], **claim, dead=dead)["status"] == "waiting"
    assert form(stranger, processes[0], to="guess", **claim)["status"] == "refused"
    decision = lead(processes[0], processes[1:])
    assert names(decision.generation)[:3] == ["worker 0", "worker 1", "worker 2"]
    # As any other newcomer that answers at its address.
    assert decision.generation.number == 2
    assert decision.generation.newcomers == {stranger.me.process}


def test_a_later_generation_in_a_member_s_call_is_believed_if_it_was_received():
    processes = job(4)
    for process in processes:
        process.begin_forming()
    processes[0].lead()
    answer = form(processes[3], processes[0], number=99, mark="made up")
    assert answer == {"status": "elsewhere"}
    assert processes[0].reference.number == 1 and not processes[0].is_outside()
    assert processes[3].me in processes[0].missing()
    # It may come without the made-up generation.
    decision = lead(processes[0], processes[1:])
    assert names(decision.generation) == [f"worker {index}" for index in range(4)]


def test_answers_of_a_minority_send_nobody_out_while_the_others_are_here():
    processes = job(4)
    leader = processes[0]
    leader.begin_forming()
    leader.lead()
    leader.hear(processes[3].me.process, 99, "made up")
    assert not leader.is_outside()
    # No other process comes: one says so, the others have been silent.
    assert leader.is_outside({processes[1].me.process, processes[2].me.process})
    for process in processes[1:3]:
        assert form(process, leader)["status"] == "waiting"
    assert not leader.is_outside({process.me.process for process in processes})
    assert leader.has_majority
    (claim,) = leader.claims
    assert claim.startswith("worker 3 at host3:1000 says that generation 99 has continued")
    decision = leader.decide({processes[3].me.process}, asked_all=False)
    assert names(decision.generation) == ["worker 0", "worker 1", "worker 2"]


def test_a_minority_s_answers_count_if_one_that_is_here_has_seen_a_later_generation():
    processes = job(5)
    # Rank 4 has entered it, and lost the others before their first collective: they continued.
    generation = lead(processes[2], processes[3:], processes[:2]).generation
    connect(generation, processes[2:])
    leader = processes[0]
    leader.begin_forming()
    leader.lead()
    assert form(processes[1], leader)["status"] == "waiting"
    leader.hear(processes[2].me.process, generation.number + 1, "of rank 2 and 3")
    assert not leader.is_outside()
    processes[4].begin_forming()
    assert form(processes[4], leader)["status"] == "waiting"
    assert not leader.has_majority
    leader.hear(processes[3].me.process, generation.number + 1, "of rank 2 and 3")
    assert leader.is_outside()


def test_answers_of_most_others_send_a_process_out():
    processes = job(4)
    generation = lead(processes[1], processes[2:], [processes[0]]).generation
    for process, is_outside in zip(processes[1:], (False, True, True), strict=True):
        processes[0].hear(process.me.process, generation.number, generation.mark)
        assert processes[0].is_outside() == is_outside
    processes[0].become_newcomer()
    assert not processes[0].is_outside()


def test_a_process_can_only_leave_itself():
    processes = job(3)
    processes[0].begin_forming()
    processes[0].lead()
    form(processes[1], processes[0])
    for key in ("guess", processes[1].me.process, "x" * 60_000, key_of(7), key_of(0)):
        assert say_goodbye(key, processes[0])["status"] == "refused"
    assert not processes[0].dead
    assert say_goodbye(key_of(1), processes[0]) == {"status": "noted"}
    assert list(processes[0].dead) == [processes[1].me.process]
    # Nothing is kept of processes that only wait.
    newcomer = machine(5, 3)
    form(newcomer, processes[0])
    leave(newcomer, processes[0])
    assert newcomer.me.process not in processes[0]._arrived
    assert list(processes[0].dead) == [processes[1].me.process]


def test_a_process_whose_call_is_held_is_not_dead_because_another_one_says_so():
    processes = job(3)
    processes[0].begin_forming()
    processes[0].lead()
    call = Background(form, processes[1], processes[0], wait=20.0)
    while processes[1].me in processes[0].missing():
        assert not call.done()
    form(processes[2], processes[0], dead=[processes[1].me.process])
    assert not processes[0].dead
    decision = processes[0].decide(set(), asked_all=True)
    assert names(decision.generation) == ["worker 0", "worker 1", "worker 2"]
    assert call.result()["status"] == "complete"


def test_a_newcomer_counts_once_it_has_answered_at_its_address():
    leader, other = job(2)
    calls = []
    leader._ask = lambda member, host: calls.append(member)
    newcomer = machine(4, 2)
    assert form(newcomer, leader) == {"status": "waiting", "missing": [], "reached": False}
    assert calls == [newcomer.me] and not leader.newcomers_wait()
    # Another one answers there.
    leader.confirm(newcomer.me.address, lambda process: False)
    assert not leader.newcomers_wait()
    assert names(lead(leader, [other]).generation) == ["worker 0", "worker 1"]
    form(newcomer, leader)
    leader.confirm(newcomer.me.address, lambda process: process == newcomer.me.process)
    # The call that follows needs no question.
    form(newcomer, leader)
    assert len(calls) == 2
    assert names(lead(leader, [other]).generation) == ["worker 0", "worker 1", "worker 4"]


def test_strangers_that_wait_are_few_and_leave_room_for_others():
    leader, other = job(2)
    true = machine(4, 2)
    leader._ask = lambda member, host: None
    calls = [Background(form, machine(5, 2, key="held"), leader, wait=20.0)]
    while not leader._arrived:
        assert not calls[0].done()
    for number in range(200):
        form(machine(5, 2, key=f"stranger {number}"), leader, description={"a": "x"})
    assert len(leader._arrived) == arrivals._MAX_UNCONFIRMED
    # The oldest has made room, and its thread is free.
    assert calls[0].result()["status"] == "waiting"
    form(true, leader)
    leader.confirm(true.me.address, lambda process: process == true.me.process)
    for number in range(200):
        form(machine(5, 2, key=f"stranger {number}"), leader)
    assert leader.newcomers_wait()
    assert names(lead(leader, [other]).generation) == ["worker 0", "worker 1", "worker 4"]


def test_strangers_cannot_take_the_places_of_founders():
    leader = machine(0, 3)
    asked = []
    leader._ask = lambda member, host: asked.append(member)
    founders = [machine(index, 3) for index in (1, 2)]
    for founder in founders:
        assert come_as_founder(founder, leader, 3)["status"] == "waiting"
    for number in range(100):
        stranger = machine(1 + number % 2, 3, key=f"stranger {number}")
        assert come_as_founder(stranger, leader, 3)["status"] == "waiting"
    assert come_as_founder(leader, leader, 3)["missing"] == list(range(1, 8))
    for founder in founders:
        come_as_founder(founder, leader, 3)
        leader.confirm(founder.me.address, lambda process, me=founder.me: process == me.process)
    generation = Generation.from_fields(come_as_founder(leader, leader, 3)["generation"])
    assert [member.process for member in generation.members] == [
        process.me.process for process in (leader, *founders)
    ]


def test_a_data_address_comes_from_members_alone():
    processes = job(2)
    generation = lead(processes[0], processes[1:]).generation
    processes[0].set_address(generation, data_address(processes[0]))
    answer = address(processes[1], processes[0], generation, to="")
    assert answer["status"] == "refused"
    answer = address(processes[1], processes[0], processes[1].reference)
    assert answer == {"status": "again"}
    assert processes[0].missing_addresses(generation) == [processes[1].me]
