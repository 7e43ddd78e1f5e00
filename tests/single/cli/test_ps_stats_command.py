"""`tfdist ps stats`: rates of two readings, the report, and errors."""

from __future__ import annotations

import pytest

import tfdist.cli.main
from tfdist.errors import ClusterConfigError
from tfdist.launch.ports import free_ports
from tfdist.ps.stats import rates, report

COUNTERS = (
    "rows bytes lookups hits created updates lost_updates evicted_for_room evicted_by_age "
    "evicted_by_norm"
).split()


def reading(seconds, incarnation="7", pulls=0, pushes=0, **tables):
    server = {
        "pulls": pulls,
        "pushes": pushes,
        "value_bytes": 500,
        "connections": 2,
        "log_failed": int(incarnation == "full"),
        "memory_held": 6 << 20,
        "memory_budget": 8 << 30 if incarnation == "limited" else 0,
    }
    return {
        "seconds": seconds,
        "incarnation": incarnation,
        "server": server,
        "tables": {name: dict.fromkeys(COUNTERS, 0) | counts for name, counts in tables.items()},
    }


BEFORE = reading(10.0, pulls=100, pushes=50, users={"lookups": 1000, "hits": 400, "updates": 10})
AFTER = reading(
    12.0,
    pulls=120,
    pushes=60,
    users={
        "rows": 30,
        "bytes": 4_200_000,
        "lookups": 3000,
        "hits": 1900,
        "updates": 50,
        "evicted_by_age": 2,
        "evicted_by_norm": 3,
        "lost_updates": 4,
    },
    items={"rows": 5, "bytes": 1000, "lookups": 1000, "hits": 1000},
)


def test_rates():
    found = rates.rates(BEFORE, AFTER)
    assert (found.rows, found.bytes, found.workers) == (35, 4_201_500, 2)
    assert (found.pulls, found.pushes, found.lookups) == (10, 5, 1500)
    assert found.hit_rate == 2500 / 3000
    users = found.tables["users"]
    assert (users.lookups, users.hit_rate, users.updates) == (1000, 0.75, 20)
    assert (users.evicted, users.lost_updates) == (5, 4)
    assert found.tables["items"].lookups == 500


@pytest.mark.parametrize("before", [None, BEFORE | {"incarnation": "8"}, AFTER])
def test_without_a_reading_before_there_are_no_rates(before):
    found = rates.rates(before, AFTER)
    assert (found.rows, found.pulls, found.lookups, found.hit_rate) == (35, 0, 0, None)


def test_what_is_printed():
    text = report.describe(
        ["a:1", "b:2", "c:3"], [BEFORE, None, None], [AFTER, "no answer in time", None]
    )
    assert text == (
        "      workers  rows   bytes  memory  pulls/s  pushes/s  lookups/s  hit rate\n"
        "ps 0        2    35  4.2 MB    6.0M     10.0       5.0       1500    83.3 %\n"
        "\n"
        "               rows   bytes  lookups/s  hit rate  updates/s  evicted  lost\n"
        "items on ps 0     5  1.0 KB        500   100.0 %          0        0     0\n"
        "users on ps 0    30  4.2 MB       1000    75.0 %         20        5     4\n"
        "\n"
        "ps 1 at b:2: no answer in time\n"
        "ps 2 at c:3: no worker has come yet\n"
    )


def test_a_budget_is_shown():
    text = report.describe(["a:1"], [None], [reading(1.0, incarnation="limited")])
    head, line = text.splitlines()
    assert head.split()[3] == "memory" and "  6.0M of 8.0G  " in line


def test_a_log_that_has_failed_is_shown():
    text = report.describe(["a:1"], [None], [reading(1.0, incarnation="full")])
    assert text.endswith(
        "\n\nps 0 at a:1: log_failed: rows were changed that are neither in a snapshot nor in the "
        "log\n"
    )


class _Answers:
    """A control address that gives one answer."""

    def __init__(self, answer):
        self.answer = answer

    def call(self, *_, **__):
        if isinstance(self.answer, Exception):
            raise self.answer
        return {"status": "stats", **self.answer}


@pytest.mark.parametrize(
    "answer",
    [{}, AFTER | {"tables": []}, AFTER | {"seconds": "soon"}, AFTER | {"server": {"pulls": 1}}],
)
def test_an_answer_of_something_else_is_a_line(answer):
    assert "received" in report._ask(_Answers(answer))


def test_what_others_say_does_not_steer_the_terminal():
    hostile = AFTER | {"tables": {"\x1b]0;owned\x07": AFTER["tables"]["users"]}}
    refused = report._ask(_Answers(ClusterConfigError("\x1b[2J")))
    text = report.describe(["a:1", "b:2"], [None] * 2, [hostile, refused])
    shown = report._printable(text)
    assert "\x1b" in text and "\x1b" not in shown and "\\x1b]0;owned\\x07 on ps 0" in shown
    assert len(report._printable("x" * (2 << 20))) < 1.1 * (1 << 20)


def test_which_servers(monkeypatch):
    assert report.servers_of("a:1, b:2") == ["a:1", "b:2"]
    config = '{"cluster": {"worker": ["w:1"], "ps": ["a:1", "b:2"]}}'
    assert report.servers_of(config) == ["a:1", "b:2"]
    monkeypatch.setenv("TF_CONFIG", config)
    assert report.servers_of(None) == ["a:1", "b:2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cluster", "nowhere"], "--cluster: expected \"host:port\", received 'nowhere'"),
        (["--cluster", ","], "--cluster: expected addresses of parameter servers, received ','"),
        (["--cluster", "{"], "--cluster: expected a TF_CONFIG"),
        ([], "TF_CONFIG: expected addresses of parameter servers, received ''"),
    ],
)
def test_a_cluster_that_makes_no_sense(capsys, monkeypatch, arguments, message):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert tfdist.cli.main.main(["ps", "stats", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ps"], "required: COMMAND"),
        (["ps", "stats", "--watch", "0"], "expected seconds, more than 0, received '0'"),
        (["ps", "stats", "--interval", "x"], "expected seconds, more than 0, received 'x'"),
    ],
)
def test_a_wrong_command_line(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        tfdist.cli.main.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_nobody_there(capsys):
    address = f"127.0.0.1:{free_ports(1)[0]}"
    arguments = ["ps", "stats", "--cluster", address, "--interval", "0.05"]
    assert tfdist.cli.main.main(arguments) == 1
    assert f"ps 0 at {address}: " in capsys.readouterr().out


def test_nothing_is_asked_of_an_unreadable_cluster():
    with pytest.raises(ClusterConfigError, match="expected a TF_CONFIG"):
        report.servers_of("{}]")
