"""The activity of a job between two looks, and refused answers."""

from __future__ import annotations

import dataclasses
import time

import pytest

from single.observe.live.live_states import fit, state
from tfdist.observe.live.records import ReportedState, TaskAnswer, activity

EVENT = {
    **{"kind": "span", "operation": "step", "name": "7", "detail": "", "bytes": 0},
    **{"failed": False, "submitted": 1.0, "started": None, "ended": None},
}


def answers(at, *states):
    return [TaskAnswer(one["task"], "host:1", at, ReportedState.from_json(one)) for one in states]


def test_rates_between_two_looks():
    before = answers(
        10.0,
        state("worker 0", steps=100, waits={"worker 1": 1.0}, traffic={"worker 1": (10, 20)}),
        state("worker 1", steps=90, waits={"worker 0": 0.0}),
    )
    after = answers(
        12.0,
        state("worker 0", steps=120, waits={"worker 1": 2.5}, traffic={"worker 1": (2010, 20)}),
        state("worker 1", steps=100, waits={"worker 0": 0.1}),
    )
    job = activity(before, after)
    first, second = job.tasks
    assert (first.steps, first.step_rate, first.row_rate) == (120, 10.0, 320.0)
    assert second.step_rate == 5.0
    assert first.communication == pytest.approx(0.1)
    assert first.waits == {"worker 1": 0.75}
    assert first.traffic == {"worker 1": (1000.0, 0.0)}
    assert (first.sent, first.received) == (10_000.0, 20_000.0)
    assert (first.cpu, second.cpu) == (pytest.approx(0.05), pytest.approx(0.025))
    assert job.straggler == "worker 1" and job.waited_for["worker 1"] == 0.75
    assert job.seconds == 2.0
    # A single look knows no rates.
    job = activity(after, after)
    assert job.tasks[0].steps == 120 and job.tasks[0].step_rate is None
    assert job.straggler is None


def test_the_last_state_of_a_task_that_does_not_answer():
    (last,) = answers(10.0, state(steps=7))
    ended = dataclasses.replace(last, problem="has ended")
    (task,) = activity([last], [ended]).tasks
    assert (task.problem, task.steps, task.step_rate) == ("has ended", 7, None)


def test_little_waiting_makes_no_straggler():
    before = answers(0.0, state("worker 0", waits={"worker 1": 0.0}))
    after = answers(10.0, state("worker 0", waits={"worker 1": 0.9}))
    assert activity(before, after).straggler is None


def test_tasks_that_wait_for_each_other_are_no_stragglers():
    def at(now, waited):
        first = state("worker 0", waits={"worker 1": waited})
        return answers(now, first, state("worker 1", waits={"worker 0": waited * 1.1}))

    assert activity(at(0.0, 0.0), at(10.0, 4.0)).straggler is None


def test_a_task_that_was_started_again_begins_at_zero():
    before = answers(0.0, state(steps=100, traffic={"worker 1": (5000, 0)}))
    after = answers(1.0, state(steps=3, pid=8, traffic={"worker 1": (10, 0)}))
    (task,) = activity(before, after).tasks
    assert task.steps == 3 and task.step_rate is None and not task.traffic
    # The same process does not count backwards either.
    (task,) = activity(before, answers(1.0, state(steps=3))).tasks
    assert task.step_rate == 0.0


def test_tasks_that_do_not_answer_or_train():
    silent = TaskAnswer("worker 1", "host:2", 3.0, problem="does not listen")
    server = state("ps 0")
    server["metrics"] = [["tfdist_restarts", [], 2], ["tfdist_bytes_sent", ["workers"], 5]]
    job = activity([silent, *answers(1.0, server)], [silent, *answers(2.0, server)])
    assert job.tasks[0].problem == "does not listen" and job.tasks[0].steps is None
    ps = job.tasks[1]
    assert (ps.steps, ps.step_rate, ps.communication, ps.sent) == (None, None, None, 0.0)
    assert ps.restarts == 2


def test_queues():
    def with_tasks(records, done):
        one = state()
        one["metrics"] += [
            *(
                ["tfdist_tasks", ["examples", kind], count]
                for kind, count in (("to do", 5), ("pending", 2), ("done", done), ("parked", 1))
            ),
            ["tfdist_records", ["examples"], records],
        ]
        return one

    job = activity(answers(0.0, with_tasks(100, 3)), answers(2.0, with_tasks(300, 4)))
    (queue,) = job.queues
    assert (queue.name, queue.to_do, queue.pending, queue.done, queue.parked) == (
        *("examples", 5, 2, 4, 1),
    )
    assert queue.record_rate == 100.0


@pytest.mark.parametrize(
    "change",
    [
        {"format": 1},
        {"task": 3},
        {"task": None},
        {"pid": "x"},
        {"memory": float("inf")},
        {"metrics": [["tfdist_steps", [], "many"]]},
        {"metrics": [["tfdist_steps", [], float("nan")]]},
        {"metrics": [["tfdist_steps", [1], 2]]},
        {"metrics": 5},
        {"traffic": {"worker 1": [1]}},
        {"traffic": []},
        {"cpu": "much"},
        {"curves": {"loss": [[1, float("inf")]]}},
        {"curves": [[1, 0.5]]},
        {"since": None},
        {"fit": {}},
        {"fit": fit(epoch=1.5)},
        {"fit": fit(batches=10**30)},
        {"fit": fit(done=2.0)},
        {"fit": fit(remaining="soon")},
        {"events": [{"kind": "span"}]},
        {"events": [None]},
        {"pid": 10**30},
        {"pid": 1.5},
        {"memory": "7"},
        {"metrics": [["tfdist_samples", [], 1e308], ["tfdist_samples", ["x"], 1e308]]},
        {"metrics": [["tfdist_steps", [], 10**400]]},
        {"metrics": [["tfdist_steps", ["x"] * 1000, 1]]},
        {"metrics": [["tfdist_wait_seconds", [f"{i}"], 1] for i in range(100_000)]},
        {"traffic": {"worker 1": [10**400, 0]}},
        {"traffic": {f"worker {i}": [1, 1] for i in range(100_000)}},
        {"curves": {"loss": [[10**18, 0.5]]}},
        {"curves": {"loss": [[1, 0.5]] * 100_000}},
        {"curves": {f"metric {i}": [] for i in range(1000)}},
        {"events": [EVENT] * 100_000},
        {"events": [EVENT | {"submitted": 1e308}]},
        {"events": [EVENT | {"bytes": 2**70}]},
        {"events": [EVENT | {"name": ["x"]}]},
    ],
    ids=lambda change: f"{change}"[:60],
)
def test_other_answers_are_refused(change):
    with pytest.raises(ValueError):
        ReportedState.from_json({**state(), **change})


@pytest.mark.parametrize("fields", [None, [], "text", 5, {}])
def test_what_is_no_state_is_refused(fields):
    with pytest.raises(ValueError):
        ReportedState.from_json(fields)


def test_labels_of_another_number():
    """They are left out, and keep nothing else from being shown."""
    one = state("worker 0", steps=3, waits={"worker 1": 1.0})
    one["metrics"] += [
        *(["tfdist_wait_seconds", labels, 5.0] for labels in ([], ["worker 1", "again"])),
        *(["tfdist_tasks", labels, 5] for labels in ([], ["examples"], ["a", "to do", "c"])),
    ]
    job = activity(answers(0.0, one), answers(1.0, one))
    assert job.tasks[0].steps == 3 and set(job.tasks[0].waits) == {"worker 1"}
    assert [queue.to_do for queue in job.queues] == [0, 0]


def test_many_peers_take_no_time():
    waits = {f"worker {index}": 1.0 for index in range(15_000)}
    one = state("worker 0", waits=waits)
    one["metrics"] += [["tfdist_tasks", [f"{i}", "to do"], 1] for i in range(4000)]
    began = time.process_time()
    job = activity(answers(0.0, one), answers(1.0, one))
    assert len(job.tasks[0].waits) == 15_000 and len(job.queues) == 4000
    # Some 0.2 s; a product of the two numbers would be minutes.
    assert time.process_time() - began < 10


def test_values_of_a_training_that_diverges_and_of_a_clock_that_runs_ahead():
    found = ReportedState.from_json(
        state(
            task="x" * 100_000,
            curves={"y" * 100_000: [[1, 3e38], [2, 1e305], [3, -1e305]]},
            events=[EVENT | {"submitted": -5.0, "ended": -1e9}],
        )
    )
    assert found.curves == {"y" * 1000: [(1, 3e38), (2, None), (3, None)]}
    assert (found.events[0].submitted, found.events[0].ended) == (0.0, 0.0)
    assert found.task == "x" * 1000
