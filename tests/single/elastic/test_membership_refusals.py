"""Processes that an elastic job refuses by name, and that the job continues undisturbed."""

from __future__ import annotations

import pytest

from single.elastic.elastic_members import (
    Process,
    addresses,
    check,
    closing,
    formed,
    founded,
    together,
)
from support.elastic.control_tasks import Background, LogWatch
from tfdist.config.cluster import Cluster
from tfdist.config.elastic import Elastic
from tfdist.config.settings import Settings
from tfdist.elastic import membership
from tfdist.elastic.protocol import messages
from tfdist.errors import AuthenticationError, ClusterConfigError
from tfdist.job.plane import ControlPlane

SECRET = b"correct horse battery staple"
OTHER = b"another battery staple"
LIMITS = Elastic(1, 4, 2)


def test_a_signed_job_goes_on_after_a_crash():
    with closing() as processes:
        founded(processes, 3, secret=SECRET)
        processes[0].crash()
        formed(processes[1:])


@pytest.mark.parametrize("dead", [None, 0])
@pytest.mark.parametrize("secret", [OTHER, None])
def test_a_newcomer_with_another_secret(secret, dead):
    with closing() as processes:
        known = founded(processes, 2, LIMITS, known=addresses(3), secret=SECRET)
        if dead is not None:
            processes[dead].crash()
        stranger = Process(known, 2, LIMITS, secret=secret)
        processes.append(stranger)
        with pytest.raises(AuthenticationError, match="worker 2 at .* called worker [01]"):
            stranger.membership.begin()
        alive = processes[:2] if dead is None else processes[1:2]
        assert not alive[0].membership.newcomers_wait()
        formed(alive)


def test_a_newcomer_with_another_description():
    with closing() as processes:
        known = founded(processes, 2, LIMITS, known=addresses(3))
        stranger = Process(known, 2, LIMITS, description={"clip": "mean"})
        processes.append(stranger)
        assert stranger.membership.begin() is None
        with LogWatch() as log, pytest.raises(ClusterConfigError) as caught:
            stranger.form()
        # Of the member that has answered first.
        problems = [
            f"'clip' differs: expected 'sum' as on worker {i} at {known[i]}, received 'mean'"
            for i in range(2)
        ]
        assert any(problem in str(caught.value) for problem in problems)
        log.wait_for("refused .*: 'clip' differs: expected 'sum'")
        assert not processes[0].membership.newcomers_wait()
        formed(processes[:2])


def test_a_newcomer_with_another_model():
    with closing() as processes:
        known = addresses(3)
        processes.extend(Process(known, index, LIMITS) for index in range(2))
        together([process.membership.begin for process in processes])
        for process in processes:
            process.membership.describe({"model": "abc"})
        worlds = together([process.form for process in processes])
        check(processes, worlds)
        newcomer = Process(known, 2, LIMITS)
        processes.append(newcomer)
        assert newcomer.membership.begin() is None
        newcomer.membership.describe({"model": "abd"})
        with pytest.raises(ClusterConfigError, match="'model' differs: expected 'abc' as on"):
            newcomer.form()
        formed(processes[:2])


def test_a_newcomer_without_a_field():
    with closing() as processes:
        known = founded(processes, 2, LIMITS, known=addresses(3), description={"a": "1", "b": "2"})
        processes.append(Process(known, 2, LIMITS, description={"a": "1"}))
        with pytest.raises(ClusterConfigError, match="'b' differs: expected '2' .* received null"):
            processes[2].start()


def test_a_newcomer_of_another_version(monkeypatch):
    with closing() as processes:
        known = founded(processes, 2, LIMITS, known=addresses(3))
        monkeypatch.setattr(membership, "__version__", "0.0.1")
        processes.append(Process(known, 2, LIMITS))
        monkeypatch.undo()
        with pytest.raises(ClusterConfigError, match="'tfdist version' differs: .* '0.0.1'"):
            processes[2].start()
        formed(processes[:2])


def test_a_founder_whose_description_grows_late_is_not_refused():
    with closing() as processes:
        known = addresses(2)
        processes.extend(Process(known, index, Elastic()) for index in range(2))
        together([process.membership.begin for process in processes])
        processes[1].membership.describe({"model": "abc"})
        call = Background(processes[1].form)
        with pytest.raises(TimeoutError):
            call.result(timeout=0.5)
        processes[0].membership.describe({"model": "abc"})
        check(processes, [processes[0].form(), call.result()])


def test_a_founder_with_another_model_is_left_out():
    with closing() as processes:
        known = addresses(3)
        processes.extend(Process(known, index, Elastic()) for index in range(3))
        together([process.membership.begin for process in processes])
        for process, model in zip(processes, ("abc", "abd", "abc"), strict=True):
            process.membership.describe({"model": model})
        calls = [Background(process.form) for process in processes]
        with pytest.raises(ClusterConfigError, match="'model' differs: .* received 'abd'"):
            calls[1].result()
        processes[1].leave()
        worlds = [calls[0].result(), calls[2].result()]
        check([processes[0], processes[2]], worlds)
        assert worlds[0].generation == 2


def test_founders_that_differ():
    with closing() as processes:
        known = addresses(2)
        processes.append(Process(known, 0, Elastic(), timeout=1.0))
        processes.append(Process(known, 1, Elastic(), description={"clip": "mean"}))
        calls = [Background(process.membership.begin) for process in processes]
        with pytest.raises(ClusterConfigError, match="'clip' differs: expected 'sum'"):
            calls[1].result()


def test_founders_of_different_numbers():
    with closing() as processes:
        known = addresses(3)
        processes.append(Process(known, 0, LIMITS, timeout=1.0))
        processes.append(Process(known, 1, Elastic(1, 4, 3)))
        calls = [Background(process.membership.begin) for process in processes]
        with pytest.raises(ClusterConfigError, match="job of 3 founders, this task one of 2"):
            calls[1].result()


def test_a_task_of_fixed_size_beside_elastic_ones():
    with closing() as processes:
        known = addresses(2)
        processes.append(Process(known, 0, Elastic()))
        cluster = Cluster(workers=tuple(known), task_index=1)
        with ControlPlane(cluster, Settings(rendezvous_timeout=5.0)) as plane:
            with pytest.raises(ClusterConfigError, match="a task of an elastic job; expected TFD"):
                plane.rendezvous("127.0.0.1:1234")


def test_an_elastic_task_beside_those_of_fixed_size():
    with closing() as processes:
        known = addresses(2)
        with ControlPlane(Cluster(workers=tuple(known)), Settings()):
            processes.append(Process(known, 1, Elastic()))
            with pytest.raises(
                ClusterConfigError, match="no service Elastic; expected TFDIST_ELASTIC"
            ):
                processes[0].membership.begin()


def test_messages_that_make_no_sense():
    with closing() as processes:
        known = founded(processes, 2)
        client = processes[1].probes
        fields = dict(vars(processes[1].membership._peers.form_request(0.0)))
        for changes, message in (
            ({"process": ""}, "expected a process to be 1 to 64 characters"),
            ({"name": "a\nb"}, "expected a task's name"),
            ({"address": "nowhere"}, "worker 1: it has no port"),
            ({"dead": {}}, r"expected dead to be list\[str\]"),
            ({"dead": [1]}, r"expected dead\[0\] to be str"),
            ({"address": "a" * 60_000 + ":1"}, "it has more than 300 characters"),
            ({"proof": "a guess"}, "means another process, or is none of this job"),
            ({"description": [1]}, r"expected description to be dict\[str, str\]"),
        ):
            request = messages.ElasticFormRequest(**{**fields, **changes})
            with pytest.raises(ClusterConfigError, match=message):
                client.call(known[0], "worker 0", messages.ELASTIC_FORM, request)
        formed(processes)


def test_impostors_who_know_the_secret():
    with closing() as processes:
        known = founded(processes, 3, secret=SECRET)
        client, me = processes[1].probes, processes[1].membership
        fields = dict(vars(me._peers.form_request(0.0)))
        living = {"number": 0, "holds_state": False}
        for changes, message in (
            # Beside the living one, with its address.
            ({"process": "twin", "address": known[0], **living}, "worker 0 at .* lives, and is"),
            ({"process": processes[0].membership.process}, "has the id of this process, worker 0"),
            ({"process": processes[2].membership.process}, "has the id of worker 2 at .* is work"),
        ):
            request = messages.ElasticFormRequest(**{**fields, **changes})
            with pytest.raises(ClusterConfigError, match=message):
                client.call(known[0], "worker 0", messages.ELASTIC_FORM, request)
        # Of a generation that is over, or of none.
        fields = {"mark": "salt", "data_address": "127.0.0.1:1", "nonce": "", "proof": ""}
        fields |= {"process": me.process, "description": me._state.description, "wait": 0.0}
        request = messages.ElasticAddressRequest(**fields)
        answer = client.call_member(me.world.members[0], messages.ELASTIC_ADDRESS, request)
        assert answer["status"] == "again"
        assert not processes[0].membership.newcomers_wait()
        assert formed(processes)[0].generation == 2
