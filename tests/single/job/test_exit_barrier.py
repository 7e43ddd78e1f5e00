"""The exit barrier: early finishers wait, but not for ranks that cannot finish."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading
import time

import pytest

from support.elastic.control_tasks import TIMEOUT, Background, clusters, data_address, meet, planes


def done_within(call: Background, seconds: float) -> bool:
    """Whether `call` ends in that time."""
    try:
        call.result(timeout=seconds)
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("last", [0, -1])
def test_an_early_finisher_waits_for_all(size, last):
    with planes(clusters(size)) as members:
        meet(members)
        late = members[last]
        early = [Background(m.exit_barrier) for m in members if m is not late]
        assert not any(done_within(call, 0.2) for call in early)
        assert late.exit_barrier() is True
        assert [call.result() for call in early] == [True] * (size - 1)


def test_everybody_hears_before_rank_0_is_gone():
    for _ in range(10):
        with planes(clusters(4)) as members:
            meet(members)

            def leave(plane):
                with plane:
                    return plane.exit_barrier(still_alive=lambda: True)

            calls = [Background(leave, member) for member in members]
            assert [call.result() for call in calls] == [True] * 4


def test_rank_0_lingers_for_those_who_have_not_heard_of_a_rendezvous():
    for _ in range(10):
        with planes(clusters(4)) as members:

            def join(rank, plane):
                with plane:
                    return plane.rendezvous(data_address(rank))

            calls = [Background(join, rank, member) for rank, member in enumerate(members)]
            assert len({call.result().key for call in calls}) == 1


def test_each_generation_has_its_own_barrier():
    with planes(clusters(2)) as members:
        for _ in range(2):
            meet(members)
            early = Background(members[1].exit_barrier)
            assert not done_within(early, 0.2)
            assert members[0].exit_barrier() is True
            assert early.result() is True


@pytest.mark.parametrize("witness", [0, 1])
def test_a_rank_known_dead_ends_the_wait_on_every_rank(witness):
    with planes(clusters(3)) as members:
        meet(members)
        alive = threading.Event()
        alive.set()
        calls = [
            Background(m.exit_barrier, still_alive=alive.is_set if i == witness else None)
            for i, m in enumerate(members[:2])
        ]
        assert not any(done_within(call, 0.3) for call in calls)
        start = time.monotonic()
        alive.clear()
        assert [call.result() for call in calls] == [False, False]
        assert time.monotonic() - start < TIMEOUT / 2


def test_dead_from_the_start_is_not_waited_for():
    with planes(clusters(2)) as members:
        meet(members)
        start = time.monotonic()
        assert members[1].exit_barrier(still_alive=lambda: False) is False
        assert members[0].exit_barrier() is False
        assert time.monotonic() - start < TIMEOUT / 2


def test_rank_0_that_leaves_releases_the_waiting():
    with planes(clusters(3)) as members:
        meet(members)
        calls = [Background(member.exit_barrier) for member in members[1:]]
        assert not any(done_within(call, 0.2) for call in calls)
        start = time.monotonic()
        members[0].close()
        assert [call.result() for call in calls] == [False, False]
        # A call may also come when rank 0 has long left.
        assert members[1].exit_barrier() is False
        assert time.monotonic() - start < TIMEOUT / 2


def test_another_rank_0_in_its_place_is_not_mistaken_for_it():
    members = clusters(2)
    with planes(members) as (zero, one):
        meet([zero, one])
        zero.close()
        with planes(members[:1]):
            start = time.monotonic()
            assert one.exit_barrier() is False
            assert time.monotonic() - start < TIMEOUT / 2


@pytest.mark.parametrize("rank", [0, 1])
def test_timeout_names_those_missing(rank, caplog):
    caplog.set_level(logging.WARNING)
    members = clusters(3)
    with planes(members) as running:
        meet(running)
        assert running[rank].exit_barrier(timeout=0.5) is False
    missing = ", ".join(f"worker {i} at {members[i].address}" for i in range(3) if i != rank)
    assert f"worker {rank} (rank {rank} of 3): leaving after 0.5 s without {missing}" in (
        caplog.messages
    )


def test_without_a_rendezvous_there_is_nobody_to_wait_for():
    with planes(clusters(2)) as members:
        assert [member.exit_barrier() for member in members] == [False, False]


def test_closing_ends_the_wait():
    with planes(clusters(2)) as members:
        meet(members)
        call = Background(members[1].exit_barrier)
        assert not done_within(call, 0.2)
        members[1].close()
        assert call.result() is False


SCRIPT = """
import atexit, sys
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.job.plane import ControlPlane

cluster = Cluster.from_environment()
plane = ControlPlane(cluster, Settings())
atexit.register(plane.close)
atexit.register(lambda: print(plane.exit_barrier(timeout={timeout}), flush=True))
plane.rendezvous("localhost:1", timeout={timeout})
print("met", flush=True)
if cluster.rank == int(sys.argv[1]):
    sys.stdin.readline()
"""


@contextlib.contextmanager
def processes(size: int, late: int):
    """Runs SCRIPT once per rank; rank `late` stays until it is sent a line. Stopped at the end."""
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    started = []
    try:
        for member in clusters(size):
            started.append(
                subprocess.Popen(
                    [sys.executable, "-c", SCRIPT.format(timeout=TIMEOUT), str(late)],
                    env=environment | {"TF_CONFIG": member.tf_config()},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate(timeout=TIMEOUT)


@pytest.mark.parametrize("late", [0, 2])
def test_it_works_while_the_interpreter_shuts_down(late):
    with processes(3, late) as started:
        for process in started:
            assert process.stdout.readline() == "met\n"
        early = [process for process in started if process is not started[late]]
        for process in early:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=0.3)
        outcomes = [started[late].communicate("go\n", timeout=TIMEOUT)]
        outcomes += [process.communicate(timeout=TIMEOUT) for process in early]
        assert outcomes == [("True\n", "")] * 3
        assert [process.returncode for process in started] == [0, 0, 0]


def test_rank_0_killed_releases_the_waiting():
    with processes(3, late=0) as started:
        for process in started:
            assert process.stdout.readline() == "met\n"
        with pytest.raises(subprocess.TimeoutExpired):
            started[1].wait(timeout=0.3)
        started[0].kill()
        start = time.monotonic()
        for process in started[1:]:
            assert process.communicate(timeout=TIMEOUT) == ("False\n", "")
            assert process.returncode == 0
        assert time.monotonic() - start < TIMEOUT / 2
