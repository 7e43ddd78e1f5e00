"""Calls to an elastic job, made by hand: by processes that are none of it, or hostile members."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import json
import os
import socket
import threading
import time
from concurrent import futures

import grpc
import pytest

from single.elastic.elastic_members import (
    SLOW,
    TIMEOUT,
    Process,
    addresses,
    check,
    closing,
    formed,
    founded,
    joining,
    together,
)
from support.elastic.control_tasks import Background, LogWatch
from support.elastic.strangers import STRANGER, call, flood, form, leave, made_up, probe, proof
from tfdist.config.elastic import Elastic
from tfdist.control import callers
from tfdist.elastic.protocol import messages, proofs
from tfdist.errors import ClusterConfigError, RendezvousTimeoutError

SECRET = b"correct horse battery staple"
LIMITS = Elastic(1, 4, 2)


def agreed(process: Process) -> dict:
    """The description that a member has, and true newcomers send."""
    return process.membership._state.description


def test_strangers_read_no_address_id_or_key():
    with closing() as processes:
        founded(processes, 3)
        generation = processes[0].membership._state.reference
        answers = []
        for process in processes:
            answers += [probe(process.address), probe(process.address, proof=STRANGER)]
            for description in ({}, agreed(process)):
                answers.append(form(process.address, description))
                answers.append(form(process.address, description, process=STRANGER[::-1]))
            founder = {"process": STRANGER, "name": "worker 0", "address": "127.0.0.1:1"}
            for start in (2, 3):
                answers.append(
                    call(
                        process.address,
                        messages.ELASTIC_FOUND,
                        **founder,
                        fingerprint="",
                        description={},
                        start=start,
                    )
                )
        assert {"here", "waiting"} <= {answer["status"] for answer in answers}
        told = json.dumps(answers)
        values = [member.address for member in generation.members]
        values += [member.process for member in generation.members]
        for value in (*values, generation.job, generation.salt):
            assert value not in told
        formed(processes)


def test_refusals_do_not_tell_strangers_what_newcomers_must_agree_on():
    with closing() as processes, LogWatch() as log:
        founded(processes, 2, description={"clip": "a long value"})
        processes[0].membership.describe({"model": "another value"})
        description = {}
        for _ in range(4):
            reason = form(processes[0].address, description)["reason"]
            field = reason.partition(" differs")[0].strip("'")
            assert field in agreed(processes[0]) and agreed(processes[0])[field] not in reason
            description[field] = agreed(processes[0])[field]  # a guess that is right
            if len(description) == 3:
                break
            description["model"] = "mine"
        log.wait_for("refused a caller from 127.0.0.1: 'clip' differs: expected 'a long value'")


@contextlib.contextmanager
def mute_port():
    """The address of a port that accepts connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_made_up_newcomer_is_never_a_member():
    with closing() as processes, mute_port() as mute:
        known = founded(processes, 2, LIMITS, known=addresses(3), timing=SLOW)
        places = ("127.0.0.1:1", mute, known[2], known[1])
        newcomers = itertools.product(places, (False, True))
        calls = []
        for number, (place, holds_state) in enumerate(newcomers):
            fields = {"process": f"{number:032x}", "address": place, "holds_state": holds_state}
            claims = {"highest": 2**40, "dead": [STRANGER]}
            for process in processes:
                body = (process.address, agreed(process))
                calls.append(Background(form, *body, **fields, **claims, wait=9.0))
        began = time.monotonic()
        while time.monotonic() < began + 0.5:
            assert not processes[0].membership.newcomers_wait()
            time.sleep(0.01)
        for generation in (2, 3):
            worlds = formed(processes)
            assert worlds[0].generation == generation and not worlds[0].newcomers
        # No process has been waited for.
        assert time.monotonic() < began + 0.5 + SLOW.answer
        # The present one is taken in beside them.
        newcomer = joining(processes, known, 2, LIMITS)
        worlds = together([process.form for process in processes[:2]])
        check(processes, [*worlds, newcomer.result()], newcomers=[2])
        for process in processes:
            process.crash()
        assert not [c for c in calls if "generation" in json.dumps(c.result())]


def test_few_addresses_that_strangers_name_are_called_at_a_time():
    with closing() as processes, contextlib.ExitStack() as opened:
        known = founded(processes, 2, LIMITS, known=addresses(3))
        ports = [opened.enter_context(mute_port()) for _ in range(20)]
        for number, place in enumerate((*ports, *ports)):
            answer = form(known[0], agreed(processes[0]), process=f"{number:032x}", address=place)
            assert answer["status"] == "waiting"
        assert 0 < len(processes[0].membership._peers.confirming._places) <= 8
        # One at an address that the members know does not wait for them.
        newcomer = joining(processes, known, 2, LIMITS)
        worlds = together([process.form for process in processes[:2]])
        check(processes, [*worlds, newcomer.result()], newcomers=[2])


def test_a_newcomer_that_no_member_can_reach_says_so():
    """A firewall lets it call the others, and drops what they send to its address."""
    with closing() as processes:
        known = founded(processes, 2, LIMITS, known=addresses(3))
        for process in processes:
            process.probes.probe_stranger = lambda address: None
        newcomer = Process(known, 2, LIMITS, timeout=2.0)
        processes.append(newcomer)
        assert newcomer.membership.begin() is None
        call = Background(newcomer.form)
        told = (
            f"worker 2: a newcomer: worker 0 at {known[0]} has not reached this process at "
            f"{known[2]}, for 2 s; expected"
        )
        with pytest.raises(RendezvousTimeoutError, match=told):
            call.result(TIMEOUT)


def test_a_member_that_was_given_other_addresses_is_no_stranger_to_the_port():
    """Its connection does not count among connections that are closed if there are too many."""
    with closing() as processes:
        founded(processes, 2, LIMITS)
        first, other = (process.membership for process in processes)
        request = other._peers.form_request(0.0)
        request = dataclasses.replace(request, fingerprint=callers.fingerprint(()))
        assert first._server is not None
        assert not first._server._is_of_the_job(request)
        assert not first._server._is_of_the_job(proofs.prove(request, STRANGER))
        assert first._server._is_of_the_job(proofs.prove(request, first.process))


def test_a_stranger_s_later_generation_keeps_no_member_and_no_newcomer_out():
    with closing() as processes:
        known = founded(processes, 2, LIMITS, known=addresses(3))
        # All that a stranger could have learned: the ids and the job, but no key.
        reference = processes[0].membership._state.reference
        claim = made_up(99, reference.job) | {"holds_state": True}
        for process in processes:
            for name in (STRANGER, *(member.process for member in reference.members)):
                form(process.address, agreed(process), process=name, **claim)
                form(process.address, agreed(process), process=name, **claim, proof="f" * 64)
        newcomer = joining(processes, known, 2, LIMITS)
        worlds = together([process.form for process in processes[:2]])
        check(processes, [*worlds, newcomer.result()], newcomers=[2])
        assert worlds[0].generation == 2


def test_nobody_leaves_because_a_stranger_says_so():
    with closing() as processes, LogWatch() as log:
        founded(processes, 3)
        calls = [Background(process.form) for process in processes[:2]]
        for process, other in itertools.product(processes, repeat=2):
            leave(process.address, other.membership.process)
        log.wait_for("refused a caller from 127.0.0.1: the caller is no other process of this job")
        worlds = together([*(call.result for call in calls), processes[2].form])
        check(processes, worlds)


def resident() -> int:
    """The resident bytes of this process."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_long_and_many_calls_of_strangers_cost_no_memory():
    with closing() as processes:
        founded(processes, 2)
        description = agreed(processes[0])
        sizes = []
        for _ in range(20):
            flood(processes[0].address, 30, description)
            gc.collect()  # `closing` has turned the collector off
            sizes.append(resident())
        # 100 MB have come since the first 10 MB.
        assert sizes[-1] - sizes[1] < 10e6, sizes
        state = processes[0].membership._state
        assert not state.dead and len(state._arrived) <= 64
        formed(processes)


def test_strangers_cannot_complete_a_founding_with_made_up_founders():
    with closing() as processes:
        known = addresses(2)
        processes.append(Process(known, 0, Elastic()))
        first = Background(processes[0].membership.begin)
        founder = {"name": "worker 1", "fingerprint": "", "start": 2, "wait": 9.0}
        calls = [
            Background(
                call,
                known[0],
                messages.ELASTIC_FOUND,
                **founder,
                process=f"{number:032x}",
                address=place,
                description=processes[0].membership._state.description,
            )
            for number, place in enumerate((known[1], "127.0.0.1:1"))
        ]
        with pytest.raises(TimeoutError):
            first.result(timeout=0.5)
        processes.append(Process(known, 1, Elastic()))
        processes[1].membership.begin()
        world = first.result()
        assert [m.process for m in world.members] == [p.membership.process for p in processes]
        check(processes, together([process.form for process in processes]))
        assert "salt" not in json.dumps([call.result() for call in calls])


def test_a_job_goes_on_beside_a_flood():
    with closing() as processes:
        known = founded(processes, 2, LIMITS, known=addresses(3))
        description, end = agreed(processes[0]), threading.Event()
        numbers = itertools.count()

        def flood() -> None:
            while not end.is_set():
                for process in processes[:2]:
                    own = {"process": f"{next(numbers):032x}", "address": known[2]}
                    form(process.address, description, **own)
                    form(process.address, {}, proof="a guess")
                    probe(process.address)
                    leave(process.address, process.membership.process)

        floods = [Background(flood) for _ in range(2)]
        try:
            while next(numbers) < 20:
                time.sleep(0.01)
            newcomer = joining(processes, known, 2, LIMITS)
            worlds = together([process.form for process in processes[:2]])
            check(processes, [*worlds, newcomer.result()], newcomers=[2])
            formed(processes)
        finally:
            end.set()
        for flooding in floods:
            flooding.result()


def test_what_a_hostile_member_says_of_others():
    """It holds the secret, and knows all that members know, but not their keys."""
    with closing() as processes, LogWatch() as log:
        founded(processes, 3, secret=SECRET)
        victim, other, hostile = processes
        member = hostile.membership._state
        for each in (victim, other):
            for process in processes:
                leave(each.address, process.membership.process, secret=SECRET)
            request = vars(hostile.membership._peers.form_request(0.0))
            claim = {**request, **made_up(99, member.job)}
            fields = {field: claim[field] for field in request} | {"nonce": "n", "proof": ""}
            body = json.dumps(fields).encode()
            fields["proof"] = proof(each.membership.process, "ElasticForm", body)
            answer = call(each.address, messages.ELASTIC_FORM, secret=SECRET, **fields)
            assert answer["status"] == "elsewhere"
        log.wait_for("the caller is no other process of this job, and can make none leave")
        formed(processes)


def test_a_hostile_member_s_answers_send_nobody_out(caplog):
    with closing() as processes:
        founded(processes, 3, secret=SECRET, timeout=4.0)
        state = processes[2].membership._state
        state._reference = dataclasses.replace(
            state.reference, number=99, members=(processes[2].membership._state.me,)
        )
        worlds = together([process.form for process in processes[:2]])
        check(processes[:2], worlds)
        said = (
            f"worker 2 at {processes[2].address} says that generation 99 has continued without this"
        )
        assert said in caplog.text


def test_a_squatter_at_a_dead_member_s_port_is_not_believed():
    """It answers all calls: that the job has continued, and that the caller is refused."""
    with closing() as processes:
        known = founded(processes, 3)
        processes[0].crash()
        answers = {"status": "refused", "reason": "go away", "proof": "f" * 64}

        class Squatter(grpc.GenericRpcHandler):
            def service(self, details):
                return grpc.unary_unary_rpc_method_handler(
                    lambda body, context: json.dumps(answers).encode()
                )

        server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[Squatter()])
        assert server.add_insecure_port(known[0]) == int(known[0].rpartition(":")[2])
        server.start()
        try:
            for status in ("refused", "out", "complete"):
                answers["status"] = status
                formed(processes[1:])
        finally:
            server.stop(None)


def test_a_newcomer_of_another_list_is_refused_without_values():
    with closing() as processes:
        known = founded(processes, 2, LIMITS, known=addresses(3))
        further = (known[1], *addresses(1))
        newcomer = Process(further, 1, LIMITS, description={"clip": "mean"})
        processes.append(newcomer)
        assert newcomer.membership.begin() is None
        with LogWatch() as log, pytest.raises(ClusterConfigError) as caught:
            newcomer.form()
        assert "'clip' differs: received 'mean'. This task's log has" in str(caught.value)
        assert "'sum'" not in str(caught.value)
        log.wait_for("refused .*: 'clip' differs: expected 'sum' as on worker")
