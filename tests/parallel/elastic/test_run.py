"""`tfdist.elastic.run`: loops whose members are killed, leave and join end as one process does."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from parallel.elastic import elastic_loops
from parallel.elastic.elastic_loops import check, train
from support.processes.ranks import start_ranks

pytestmark = pytest.mark.timeout(240)
ELASTIC = {"TFDIST_ELASTIC": "1:4"}
TIMEOUT = 60.0
PAGE = Path(__file__).parents[3] / "docs/start/porting.md"


def results_of(outcomes):
    for outcome in outcomes:
        assert outcome.ok, outcome.describe()
    return [outcome.result for outcome in outcomes]


@pytest.mark.long("*-1", covered_by="the other cases")
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("kind", list(elastic_loops.LOOPS))
def test_a_rank_is_killed_in_the_middle_of_a_step(kind, victim):
    options = {"kind": kind, "stop_at": 5, "victim": victim}
    with start_ranks(train, 3, kwargs=options, env=ELASTIC) as ranks:
        ranks.wait_for(victim, "middle")
        ranks[victim].kill()
        others = [rank for rank in range(3) if rank != victim]
        results = results_of(ranks.join(TIMEOUT, only=others))
    check(results)
    for result in results:
        assert result["begun"] == [*range(6), *range(5, 12)]
        assert result["sizes"] == [3, 2] and result["resets"] == [2]


def test_all_but_one_are_killed():
    options = {"stop_at": 5, "victim": 0}
    with start_ranks(train, 3, kwargs=options, env=ELASTIC) as ranks:
        ranks.wait_for(0, "middle")
        ranks[0].kill()
        ranks[1].kill()
        results = results_of(ranks.join(TIMEOUT, only=[2]))
    check(results)
    assert results[0]["sizes"][-1] == 1


@pytest.mark.long("tape-0", covered_by="the other cases")
@pytest.mark.parametrize(("kind", "victim"), [("tape", 0), ("tape", 1), ("strategy", 1)])
def test_a_killed_rank_is_started_again_and_joins(kind, victim):
    options = {"kind": kind, "stop_at": 5, "victim": victim, "until_size": 3}
    with start_ranks(train, 3, kwargs=options, env=ELASTIC) as ranks:
        ranks.wait_for(victim, "middle")
        ranks[victim].kill()
        ranks.restart(victim)
        results = results_of(ranks.join(TIMEOUT))
    check(results)
    newcomer = results.pop(victim)
    for survivor in results:
        assert survivor["sizes"] == [3, 2, 3] and survivor["resets"] == [2, 3]
        # The newcomer's wait has cost no step.
        assert survivor["begun"] == [*range(6), *range(5, survivor["steps"])]
    assert newcomer["sizes"] == [3] and newcomer["resets"] == [3]
    assert newcomer["begun"] == list(range(newcomer["steps"] - 12, newcomer["steps"]))


def test_with_a_commit_every_five_steps_five_are_repeated_at_most():
    options = {"stop_at": 8, "victim": 2, "every": 5, "steps": 15}
    with start_ranks(train, 3, kwargs=options, env=ELASTIC) as ranks:
        ranks.wait_for(2, "middle")
        ranks[2].kill()
        results = results_of(ranks.join(TIMEOUT, only=[0, 1]))
    check(results)
    for result in results:
        assert result["begun"] == [*range(9), *range(5, 15)]


@pytest.mark.parametrize("victim", [0, 2])
def test_a_planned_leave_repeats_nothing(victim):
    options = {"stop_at": 5, "victim": victim}
    with start_ranks(train, 3, kwargs=options, env=ELASTIC) as ranks:
        ranks.wait_for(victim, "middle")
        ranks[victim].send_signal(signal.SIGTERM)
        ranks.send(victim, "continue")
        outcomes = ranks.join(TIMEOUT)
    assert outcomes[victim].exception == "Preempted" and outcomes[victim].exit_code == 143
    results = results_of([outcome for outcome in outcomes if outcome.rank != victim])
    check(results)
    for result in results:
        assert result["begun"] == list(range(12))
        assert result["sizes"] == [3, 2] and result["resets"] == [2]


def test_all_stop_if_too_few_would_be_left():
    options = {"stop_at": 5, "victim": 1}
    with start_ranks(train, 2, kwargs=options, env={"TFDIST_ELASTIC": "2:4"}) as ranks:
        ranks.wait_for(1, "middle")
        ranks[1].send_signal(signal.SIGTERM)
        ranks.send(1, "continue")
        outcomes = ranks.join(TIMEOUT)
    assert [outcome.exception for outcome in outcomes] == ["Preempted"] * 2
    assert "the program saves nothing by itself" in outcomes[0].output


@pytest.mark.long(covered_by="parallel/elastic/test_membership_processes.py")
@pytest.mark.alone
def test_a_rank_that_was_stopped_joins_again():
    options = {"stop_at": 5, "victim": 1, "until_size": 3}
    with start_ranks(train, 3, kwargs=options, env=ELASTIC) as ranks:
        ranks.wait_for(1, "middle")
        ranks[1].stop()
        # The others continue without it.
        ranks.wait_for(0, "step", 7, timeout=90.0)
        ranks[1].resume()
        ranks.send(1, "continue")
        results = results_of(ranks.join(90.0))
    check(results)
    assert results[1]["sizes"] == [3, 3]
    for rank in (0, 2):
        sizes = results[rank]["sizes"]
        assert sizes[:2] == [3, 2] and sizes[-1] == 3


def run_the_page_s_program(ctx, program):
    middle = ctx.tmp_path / "middle"

    def at_batch(state):
        if ctx.rank == 1 and state.batch == 20 and not middle.exists():
            middle.touch()
            ctx.report("middle")
            ctx.wait_for("never")

    names = {"at_batch": at_batch}
    exec(compile(program, "porting.md", "exec", dont_inherit=True), names)
    return names["state"].batch, names["weights"].numpy().tolist()


def test_the_program_of_the_porting_guide_survives_a_kill():
    (program,) = (
        text
        for text in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
        if "elastic" in text
    )
    line = "        state.batch += 1\n"
    assert program.count(line) == 1
    program = program.replace(line, "        at_batch(state)\n" + line)
    with start_ranks(run_the_page_s_program, 3, args=[program], env=ELASTIC) as ranks:
        ranks.wait_for(1, "middle")
        ranks[1].kill()
        results = results_of(ranks.join(TIMEOUT, only=[0, 2]))
    assert results[0] == results[1] and results[0][0] == 50
    assert max(abs(weight - 1.0) for weight in results[0][1]) < 1e-3
