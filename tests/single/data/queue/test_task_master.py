"""The master: opening queues, refusals, restored states, and what a member may ask for."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from concurrent import futures

import pytest

from tfdist.config.cluster import Cluster
from tfdist.control import callers, waiting
from tfdist.control.client import UnreachableError
from tfdist.control.held_calls import ClientContext
from tfdist.data.queue import messages
from tfdist.data.queue.client import TaskClient
from tfdist.data.queue.description import Description, FilePosition, Spec
from tfdist.data.queue.master import TaskMaster
from tfdist.errors import CheckpointError, ClusterConfigError, RendezvousTimeoutError

RANGES = Spec("ranges", 10, 4, "", (), 2, False, None, 5.0)
FILES = Spec("files", 0, 2, "lines", (("a", 100), ("b", 50)), 2, False, None, 5.0)
PLACES = (FilePosition(0, 0, 2, 0, 60), FilePosition(0, 2, 1, 60, 40), FilePosition(1, 0, 2, 0, 50))


def cluster(index=0):
    return Cluster(workers=("a:1", "b:2"), task_index=index)


class Job:
    """A master and its clients, without networking; `down` is an unreachable master."""

    def __init__(self):
        self.now = 0.0
        self.master = TaskMaster(cluster(), clock=lambda: self.now)
        self.down = False
        self.closed = threading.Event()

    def call(self, method, request, wait):
        if self.down:
            raise UnreachableError("connection refused")
        answer = self.master.handlers[method](request, ClientContext())
        if answer["status"] == "refused":
            raise ClusterConfigError(answer["reason"])
        return answer

    def client(self, rank, process=None, timeout=5.0):
        return TaskClient(
            cluster(rank), process or f"process {rank}", self.call, "rank 0", timeout, self.closed
        )


def describing(spec, places=()):
    return lambda: Description(spec, places)


@pytest.fixture
def job():
    return Job()


def test_one_worker_counts_and_the_others_wait(job):
    counted, go_on = [], threading.Event()

    def slowly():
        counted.append(1)
        assert go_on.wait(60)
        return Description(FILES, PLACES)

    with futures.ThreadPoolExecutor() as pool:
        opened = [pool.submit(job.client(r).open, "train", FILES, slowly) for r in (0, 1, 1)]
        assert not futures.wait(opened, 0.2).done
        go_on.set()
        found = [one.result(10) for one in opened]
    assert [(one.tasks, one.records) for one in found] == [(3, 5)] * 3
    assert len({one.seed for one in found}) == 1
    assert len(counted) == 1 or len(counted) == 2  # the second worker has two threads


def test_another_worker_counts_if_the_first_is_dead(job):
    answer = job.call(messages.TASK_OPEN, open_request(rank=0), 0.0)
    assert answer["status"] == "describe"
    assert job.call(messages.TASK_OPEN, open_request(rank=1), 0.0) == {
        "status": "waiting",
        "rank": 0,
    }
    job.now = 16.0
    assert job.call(messages.TASK_OPEN, open_request(rank=1), 0.0)["status"] == "describe"


def open_request(rank=0, **changes):
    request = messages.TaskOpenRequest(
        fingerprint=callers.fingerprint(cluster().training_addresses),
        process=f"process {rank}",
        rank=rank,
        queue="train",
        digest=RANGES.digest,
        description=None,
        wait=0.0,
    )
    return dataclasses.replace(request, **changes)


@pytest.mark.parametrize(
    ("other", "first"),
    [
        ({"records": 11}, "records: 11, 10"),
        ({"task_size": 5}, "task_size: 5, 4"),
        ({"epochs": None}, "epochs: None, 2"),
        ({"shuffle": True}, "shuffle: True, False"),
    ],
)
def test_other_arguments_are_refused_with_both_names(job, other, first):
    job.client(0).open("train", RANGES, describing(RANGES))
    spec = dataclasses.replace(RANGES, **other)
    with pytest.raises(ClusterConfigError) as caught:
        job.client(1).open("train", spec, describing(spec))
    for part in ("worker 1 at b:2", "worker 0 at a:1", first, "'train'"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("files", "first"),
    [
        ((("a", 100), ("c", 50)), "file 1: c of 50 bytes, b of 50 bytes"),
        ((("a", 100), ("b", 51)), "file 1: b of 51 bytes, b of 50 bytes"),
        ((("a", 100),), "file 1: no such file, b of 50 bytes (1 files, 2)"),
    ],
)
def test_other_files_are_refused_with_the_first_difference(job, files, first):
    job.client(0).open("train", FILES, describing(FILES, PLACES))

    def never():
        raise AssertionError("only the first worker needs to count records")

    with pytest.raises(ClusterConfigError) as caught:
        job.client(1).open("train", dataclasses.replace(FILES, files=files), never)
    assert first in str(caught.value)


def test_a_queue_of_many_files(job):
    files = tuple((f"é{i:05}", 10) for i in range(5000))
    places = tuple(FilePosition(i, 0, 1, 0, 10) for i in range(5000))
    spec = dataclasses.replace(FILES, files=files)
    assert job.client(0).open("train", spec, describing(spec, places)).tasks == 5000


def test_an_epoch_of_two_workers(job):
    one, two = job.client(0), job.client(1)
    one.open("train", FILES, describing(FILES, PLACES))
    two.open("train", FILES, describing(FILES, PLACES))
    assert one.begin("train", -1, 1).epoch == 0
    mine = one.lease("train", 0, waits=True, wait=0.0)
    other = two.lease("train", 0, waits=True, wait=0.0)
    assert (mine.place, other.place) == ((0, 0, 60, 0), (0, 60, 40, 2))
    assert one.report("train", {mine.lease: 2}) == []
    assert one.report("train", {mine.lease: 2}) == []  # it has ended
    assert two.report("train", {mine.lease: 2}) == [mine.lease]
    assert one.report("train", {}) == []
    assert one.report("train", {mine.lease: 2}) == [mine.lease]  # and is forgotten
    last = one.lease("train", 0, waits=True, wait=0.0)
    one.report("train", {last.lease: 2})
    assert one.lease("train", 0, waits=True, wait=0.0) == (1,)
    two.report("train", {other.lease: 1})
    assert one.lease("train", 0, waits=True, wait=0.0) is None
    begun = one.begin("train", 0)
    assert (begun.epoch, begun.current) == (1, 1)


def test_the_names_of_tasks():
    files = Description(FILES, PLACES)
    assert files.name(2) == "task 2 (records 0 to 1 of 'b')"
    assert files.name(0, 1) == "task 0 (records 1 to 1 of 'a')"
    ranges = Description(RANGES)
    assert (ranges.name(1), ranges.name(2, 1)) == (
        "task 1 (records 4 to 7)",
        "task 2 (records 9 to 9)",
    )
    shuffled = Description(dataclasses.replace(RANGES, shuffle=True))
    assert shuffled.name(2, 1) == "task 2 (records 8 to 9, 1 of them trained)"


def test_a_parked_task_is_named(job, caplog):
    caplog.set_level(logging.WARNING, "tfdist.data.queue")
    for death in range(3):
        client = job.client(1, f"process {death}")
        client.open("train", FILES, describing(FILES, PLACES))
        for _ in range(4):
            task = client.lease("train", 0, waits=False, wait=0.0)
            if task and task.task == 1:
                break
            if task:
                client.report("train", {task.lease: task.size})
        client.report("train", {}, [task.lease], failed=True)
    assert "task 1 (records 2 to 2 of 'a') came back from worker 1 at b:2" in caplog.text
    assert "task 1 (records 2 to 2 of 'a') is parked: 3 workers in a row have died" in caplog.text
    (shown,) = job.call(messages.TASK_STATUS, messages.TaskStatusRequest(0.0), 0.0)["queues"]
    assert shown["parked"] == [{"task": "task 1 (records 2 to 2 of 'a')", "deaths": 3}]
    assert "parked" in job.master.unfinished()[0]


def test_a_state_goes_to_a_new_master(job):
    client = job.client(0)
    client.open("train", RANGES, describing(RANGES))
    task = client.lease("train", 0, waits=False, wait=0.0)
    client.report("train", {task.lease: 3})
    state = client.state()
    job.master = TaskMaster(cluster(), is_ready=False)
    job.master.restore(state)
    with futures.ThreadPoolExecutor() as pool:
        again = pool.submit(client.lease, "train", 0, waits=False, wait=0.0)
        assert not futures.wait([again], 0.2).done
        job.master.start()
        assert (again.result(10).task, again.result().first) == (0, 3)
    # The task that the worker still reads is not its own any more.
    assert client.report("train", {task.lease: 4}) == [task.lease]


def test_a_state_of_other_data_is_refused(job):
    client = job.client(0)
    client.open("train", RANGES, describing(RANGES))
    state = client.state()
    job.master = TaskMaster(cluster())
    job.master.restore(state)
    spec = dataclasses.replace(RANGES, records=12)
    with pytest.raises(ClusterConfigError, match="checkpoint is of other data"):
        job.client(0).open("train", spec, describing(spec))
    # More epochs are not other data.
    spec = dataclasses.replace(RANGES, epochs=9)
    job.client(0).open("train", spec, describing(spec))


@pytest.mark.parametrize(
    "text",
    ["[]", "{", '{"format": 2}', '{"format": 1, "queues": {"a": {"data": 1}}}', "[" * 100_000],
)
def test_a_damaged_state_is_refused(job, text):
    with pytest.raises(CheckpointError):
        job.master.restore(text)
    with pytest.raises(CheckpointError):
        job.client(0).restore(text)


def test_only_rank_0_restores(job):
    with pytest.raises(CheckpointError, match="only rank 0"):
        job.client(1).restore('{"format": 1, "queues": {}}')


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fingerprint": "0"}, "another cluster"),
        ({"rank": 2}, "the caller says rank 2"),
        ({"rank": -1}, "the caller says rank -1"),
        ({"process": ""}, "identity"),
        ({"queue": ""}, "name of a queue"),
        ({"queue": "x" * 101}, "name of a queue"),
        ({"description": ""}, "description"),
        ({"description": "{}"}, "description"),
        ({"description": "[" * 9_000}, "description"),
    ],
)
def test_what_is_no_valid_request_is_refused(job, changes, reason):
    answer = job.master.handlers[messages.TASK_OPEN](open_request(**changes), ClientContext())
    assert answer["status"] == "refused" and reason in answer["reason"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "music"),
        ("records", -1),
        ("records", 10**9 * 5),  # too many tasks of 4
        ("task_size", 0),
        ("task_size", True),
        ("epochs", 0),
        ("lease", 0.5),
        ("lease", float("nan")),
        ("seed", "1"),
        ("shuffle", 1),
        ("files", [["a", 1]]),
        ("about", 7),
    ],
)
def test_a_description_of_wrong_numbers_is_refused(job, field, value):
    fields = json.loads(Description(RANGES).text())
    fields["spec"][field] = value
    answer = job.master.handlers[messages.TASK_OPEN](
        open_request(description=json.dumps(fields)), ClientContext()
    )
    assert answer["status"] == "refused"


@pytest.mark.parametrize(
    "place", [(2, 0, 1, 0, 1), (0, 0, 3, 0, 1), (0, 0, 0, 0, 1), (0, 0, 1, 99, 2), (0, 0, 1)]
)
def test_a_place_outside_of_the_files_is_refused(job, place):
    fields = json.loads(Description(FILES, PLACES).text())
    fields["places"][0] = place
    answer = job.master.handlers[messages.TASK_OPEN](
        open_request(description=json.dumps(fields)), ClientContext()
    )
    assert answer["status"] == "refused"


def report(**changes):
    who = dataclasses.asdict(open_request())
    request = messages.TaskReportRequest(
        **{name: who[name] for name in ("fingerprint", "process", "rank", "queue")},
        held=[],
        released=[],
        refused=[],
        failed=False,
        wait=0.0,
    )
    return dataclasses.replace(request, **changes)


def test_a_report_of_no_leases_is_refused(job):
    job.client(0).open("train", RANGES, describing(RANGES))
    many = [messages.HeldLease(lease, 0) for lease in range(1001)]
    for changes in (
        {"held": [messages.HeldLease(1, -1)]},
        {"held": many},
        {"released": [0] * 1001},
        {"refused": [0] * 1001},
    ):
        answer = job.master.handlers[messages.TASK_REPORT](report(**changes), ClientContext())
        assert answer["status"] == "refused", changes
    answer = job.master.handlers[messages.TASK_REPORT](report(held=many[1:]), ClientContext())
    assert answer == {"status": "reported", "lost": list(range(1, 1001))}


def test_a_worker_waits_for_its_master_and_then_says_so(job, caplog, monkeypatch):
    monkeypatch.setattr(waiting, "LOG_INTERVAL", 0.3)
    client = job.client(1, timeout=1.0)
    client.open("train", RANGES, describing(RANGES))
    job.down = True
    with pytest.raises(RendezvousTimeoutError, match="rank 0, which deals out .* within 1 s"):
        client.lease("train", 0, waits=False, wait=0.0)
    assert "worker 1: waiting for rank 0, which deals out the data tasks" in caplog.text


class Calls:
    """A master of eight workers, and hand-made calls of it."""

    def __init__(self):
        self.now = 0.0
        workers = Cluster(workers=tuple(f"a:{i + 1}" for i in range(8)), task_index=0)
        self.fingerprint = callers.fingerprint(workers.training_addresses)
        self.master = TaskMaster(workers, clock=lambda: self.now)

    def call(self, method, **fields):
        who = {"fingerprint": self.fingerprint, "wait": 0.0}
        rank = fields.setdefault("rank", 1)
        who["process"] = f"process {rank}"
        request = method.request(**{**who, **fields})
        return self.master.handlers[method](request, ClientContext())

    def describe(self, queue, description=None, **fields):
        fields = {"digest": "", **fields}
        return self.call(messages.TASK_OPEN, queue=queue, description=description, **fields)


def test_queues_that_nobody_describes_make_room():
    calls = Calls()
    for i in range(64):
        assert calls.describe(f"queue {i}")["status"] == "describe"
    assert calls.describe("x", rank=2)["status"] == "refused"
    calls.now = 16.0
    assert calls.describe("x", rank=2)["status"] == "describe"


def test_all_queues_together_have_a_bound_of_tasks():
    calls = Calls()
    answers = []
    for i in range(5):
        spec = Spec("ranges", 10**6, 1, "", (), None, False, i, 5.0)
        text = Description(spec).text()
        answers.append(calls.describe(f"queue {i}", description=text, digest=spec.digest))
    assert [answer["status"] for answer in answers] == ["open"] * 4 + ["refused"]
    assert "expected at most 4000000 tasks in all queues, received 5000000" in answers[4]["reason"]


def test_a_worker_has_a_bound_of_tasks():
    calls = Calls()
    spec = Spec("ranges", 2000, 1, "", (), None, False, 1, 5.0)
    text = Description(spec).text()
    calls.describe("train", description=text, digest=spec.digest)

    def lease(rank):
        return calls.call(messages.TASK_LEASE, rank=rank, queue="train", epoch=0, waits=False)

    assert {lease(1)["status"] for _ in range(1000)} == {"task"}
    answer = lease(1)
    assert answer["status"] == "refused" and "worker 1 at a:2 has 1000 tasks" in answer["reason"]
    assert lease(2)["status"] == "task"


@pytest.mark.parametrize("epoch", [-1, 2**31, 10**400])
@pytest.mark.parametrize("method", [messages.TASK_LEASE, messages.TASK_END, messages.TASK_BEGIN])
def test_epochs_that_do_not_exist_are_refused(method, epoch):
    calls = Calls()
    spec = Spec("ranges", 10, 1, "", (), None, False, 1, 5.0)
    calls.describe("train", description=Description(spec).text(), digest=spec.digest)
    fields = {
        messages.TASK_LEASE: {"epoch": epoch, "waits": True},
        messages.TASK_END: {"epoch": epoch, "waits": True, "idle": True},
        messages.TASK_BEGIN: {"ended": epoch - (epoch < 0), "fit": 0},
    }[method]
    answer = calls.call(method, queue="train", **fields)
    assert answer["status"] == "refused" and "there is no epoch" in answer["reason"]


def test_the_end_of_an_unknown_queue_is_unknown():
    answer = Calls().call(messages.TASK_END, queue="x", epoch=0, idle=False, waits=True)
    assert answer["status"] == "unknown"
    answer = Calls().call(messages.TASK_END, queue="x", epoch=0, idle=False, waits=True, rank=8)
    assert answer["status"] == "refused"


def test_nobody_ends_or_gives_back_the_tasks_of_another_process():
    calls = Calls()
    spec = Spec("ranges", 10, 10, "", (), 1, False, 1, 5.0)
    calls.describe("train", description=Description(spec).text(), digest=spec.digest)
    lease = calls.call(messages.TASK_LEASE, queue="train", epoch=0, waits=False)["lease"]
    held = [messages.HeldLease(lease, 10)]
    lists = {"held": held, "released": [lease], "refused": [lease]}
    answer = calls.call(messages.TASK_REPORT, rank=2, queue="train", failed=True, **lists)
    assert answer["lost"] == [lease]
    answer = calls.call(messages.TASK_END, rank=2, queue="train", epoch=0, idle=True, waits=True)
    assert answer["status"] == "waiting" and answer["ranks"] == [1]
    assert answer["pending"] == "10 records of task 0 (records 0 to 9) were"
    (sentence,) = calls.master.lost()
    assert sentence == (
        "queue 'train': 10 records of task 0 (records 0 to 9) were dealt out and are not trained"
    )
