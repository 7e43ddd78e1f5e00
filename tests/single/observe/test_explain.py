"""The output of `explain` for made-up dumps; test_hangs.py has dumps of real jobs."""

from __future__ import annotations

import dataclasses

import pytest

from tfdist.observe.dumps import Dump
from tfdist.observe.explain import explain

SECOND = 10**9
EMPTY = Dump(
    task="worker 0",
    rank=0,
    training=["worker 0", "worker 1", "worker 2"],
    servers=[],
    elastic=False,
    pid=1,
    host="here",
    versions={},
    wall_time=100.0,
    steady_ns=50 * SECOND,
    reasons=["a test asks"],
    has_finished=False,
    exception=None,
    communicators=[],
    events=[],
    lost=0,
    threads=[],
)


def frame(file, function, code=""):
    return {"file": file, "line": 7, "function": function, "code": code}


def collective(name, number, state="done", rank=0, **fields):
    event = {
        "sequence": number + 1,
        "communicator": 99,
        "key": 5,
        "number": number,
        "signature": 11,
        "bytes": 16,
        "elements": 4,
        "submitted": (number + 1) * SECOND,
        "started": 0,
        "ended": 0 if state in ("submitted", "started") else (number + 2) * SECOND,
        "rank": rank,
        "size": 3,
        "peer": -1,
        "kind": "collective",
        "state": state,
        "operation": "all_reduce",
        "dtype": "float32",
        "name": name,
        "detail": "float[4]",
        "error": "",
    }
    return event | fields


def request(server, number, **fields):
    of_server = {"kind": "request", "peer": server, "size": 0, "communicator": 0, "rank": -1}
    return collective("a pull of 2 parameters", number, "started", operation="pull") | {
        **of_server,
        "detail": "kernel and 1 more",
        **fields,
    }


def job(*events_by_rank, **fields):
    """The dumps of workers with these events."""
    return [
        dataclasses.replace(
            EMPTY,
            task=f"worker {rank}",
            rank=rank,
            events=[{**event, "rank": rank} for event in events],
            **fields,
        )
        for rank, events in enumerate(events_by_rank)
    ]


def only(dumps, crashes=None):
    (finding,) = explain(dumps, crashes)
    return finding


def test_nothing_is_wrong():
    finding = only(job(*[[collective("a", 0)]] * 3))
    assert finding.kind == "nothing" and finding.tasks == ()
    assert finding.text.startswith("No collective and no request is waiting.")


def test_no_dumps():
    assert only([]).text == "There are no dumps."


def test_names_alone_tell_nothing_while_all_goes_well():
    assert only(job([collective("dense", 0)], *[[collective("dense_1", 0)]] * 2)).kind == "nothing"


def test_numbered_names_are_the_same():
    other = collective("dense_1/kernel_3", 0, "failed")
    dumps = job([collective("dense/kernel", 0, "failed")], [other], [other])
    assert only(dumps).kind == "nothing"


def test_a_failure_that_no_task_explains():
    dumps = job(*[[collective("w", 0, "failed")]] * 3)
    failed = [{"rank": 1, "size": 3, "failure": "rank 1 of 3: lost rank 2", "waiting": None}]
    dumps[1] = dataclasses.replace(dumps[1], communicators=failed)
    assert only(dumps).text == (
        "No task differs from the others. The collectives of worker 1 ended by this: rank 1 of 3: "
        "lost rank 2."
    )


def test_another_order():
    a, b = collective("a", 0, "failed"), collective("b", 0, "failed")
    finding = only(job([a], [a], [b]))
    assert (finding.kind, finding.tasks) == ("order", ("worker 2",))
    assert finding.text == (
        "The order differs: worker 2 started all_reduce 'b' float[4] where worker 0 and worker 1 "
        "started all_reduce 'a' float[4]."
    )


@pytest.mark.parametrize(
    ("fields", "what", "ours", "theirs"),
    [
        ({"signature": 12, "elements": 8, "detail": "float[8]"}, "shape", "float[8]", "float[4]"),
        ({"dtype": "int32", "detail": "int32[4]"}, "dtype", "int32[4]", "float[4]"),
        ({"peer": 2}, "root", "root 2", "root -1"),
    ],
)
def test_mismatch(fields, what, ours, theirs):
    same, other = collective("w", 0, "failed"), collective("w", 0, "failed", **fields)
    finding = only(job([same], [other], [same]))
    assert (finding.kind, finding.tasks) == ("mismatch", ("worker 1",))
    assert finding.text == (
        f"The {what} differs in all_reduce 'w': worker 1 started it with {ours}, worker 0 and "
        f"worker 2 with {theirs}."
    )


@pytest.mark.parametrize(
    ("stack", "doing"),
    [
        (
            [frame("/home/me/train.py", "main", "time.sleep(9)")],
            "sleeps at /home/me/train.py:7 in main: time.sleep(9)",
        ),
        (
            [
                frame("/home/me/train.py", "main", "for row in data:"),
                frame("/v/site-packages/tensorflow/iterator_ops.py", "__next__"),
                frame("/v/site-packages/tensorflow/iterator_ops.py", "_next_internal"),
            ],
            "waits for its input pipeline at /home/me/train.py:7 in main: for row in data:",
        ),
        (
            [
                frame("/home/me/train.py", "main", "thread.join()"),
                frame("/usr/lib/python3.11/threading.py", "join"),
            ],
            "waits for another thread or process at /home/me/train.py:7 in main: thread.join()",
        ),
        (
            [frame("/home/me/train.py", "spin", "while True:")],
            "runs Python code at /home/me/train.py:7 in spin: while True:",
        ),
    ],
)
def test_missing_rank_and_what_it_does(stack, doing):
    before, waits = collective("first", 0), collective("w", 1, "started")
    dumps = job([before, waits], [before, waits], [before])
    threads = [{"name": "MainThread", "main": True, "stack": stack}]
    dumps[2] = dataclasses.replace(dumps[2], threads=threads)
    finding = only(dumps)
    assert (finding.kind, finding.tasks) == ("missing", ("worker 2",))
    assert finding.text == (
        "worker 0 and worker 1 have waited 48.0 s in all_reduce 'w' float[4], which worker 2 did "
        f"not start. worker 2 {doing}. Its last collective was all_reduce 'first' float[4], which "
        "it ended."
    )


def test_finished_early():
    dumps = job(*[[collective("w", 0, "failed")]] * 2, [])
    dumps[2] = dataclasses.replace(dumps[2], has_finished=True)
    finding = only(dumps)
    assert (finding.kind, finding.tasks) == ("missing", ("worker 2",))
    assert "worker 2 has finished its program, or returned early." in finding.text


def test_ranks_that_wait_for_each_other():
    metric = collective("metric", 3, "started", key=6)
    step = collective("gradients", 3, "started")
    finding = only(job([metric], [step], [step]))
    assert (finding.kind, finding.tasks) == ("order", ("worker 0",))
    assert "worker 0 in all_reduce 'metric' float[4], while worker 1 and worker 2" in finding.text
    assert "one rank alone calls" in finding.text


def test_dead_worker():
    dumps = job(*[[collective("w", 0, "started")]] * 3)
    del dumps[1]
    finding = explain(dumps)[0]
    assert (finding.kind, finding.tasks) == ("dead", ("worker 1",))
    assert finding.text.startswith("worker 1 has written no dump")


def test_elastic_jobs_may_lack_workers():
    dumps = job(*[[collective("w", 0)]] * 3, elastic=True)
    assert only(dumps[:2]).kind == "nothing"


def test_former_generations_of_an_elastic_job_are_over():
    lost = [collective("a", 0), collective("b", 1, "failed")]
    later = [collective("b", 0, communicator=100), collective("c", 1, communicator=100)]
    assert only(job([*lost, *later], lost[:1] + later, elastic=True)).kind == "nothing"
    # But not a rank that waits now.
    later[1] = collective("c", 1, "started", communicator=100)
    assert only(job([*lost, *later], lost[:1] + later[:1], elastic=True)).kind == "missing"


def test_fatal_signal():
    dumps = job(*[[collective("w", 0, "failed")]] * 3)
    crash = 'Fatal Python error: Segmentation fault\n\nThread 1:\n  File "x.py", line 3 in f'
    findings = explain(dumps[:2], {"worker-2": crash})
    assert [finding.kind for finding in findings] == ["dead"]
    assert "worker 2 was ended by a fatal signal: Fatal Python error" in findings[0].text
    assert 'in File "x.py", line 3 in f' in findings[0].text


def test_exception_that_is_the_cause_and_those_that_follow():
    failed = collective("w", 0, "failed")
    dumps = job([failed], [], [failed])
    dumps[1] = dataclasses.replace(dumps[1], exception="ValueError: a bad row\nmore")
    dumps[0] = dataclasses.replace(dumps[0], exception="UnavailableError: rank 1 ended")
    findings = explain(dumps)
    assert [(one.kind, one.tasks) for one in findings] == [
        ("dead", ("worker 1",)),
        ("missing", ("worker 1",)),
    ]
    assert findings[0].text == "worker 1 has ended with an exception: ValueError: a bad row."


def test_dead_server_and_slow_server():
    dumps = job([request(0, 1), request(1, 2)], servers=["ps 0", "ps 1"], training=["worker 0"])
    dumps.append(dataclasses.replace(dumps[0], task="ps 1", rank=None, events=[]))
    dead, slow = explain(dumps)
    assert (dead.kind, dead.tasks) == ("dead", ("ps 0",))
    assert "worker 0 has waited 48.0 s for it in a pull of 2 parameters" in dead.text
    assert (slow.kind, slow.tasks) == ("server", ("ps 1",))
    assert slow.text.startswith(
        "ps 1 has not answered a pull of 2 parameters (kernel and 1 more) of worker 0 for 47.0 s."
    )
