"""Members of an elastic job in processes of their own, which are killed, stopped and restarted."""

from __future__ import annotations

import random
import time

import pytest
import tensorflow as tf

from support.processes.ranks import start_ranks
from support.tiers import rounds
from tfdist import ops
from tfdist.config.cluster import Cluster
from tfdist.config.elastic import Elastic
from tfdist.config.settings import Settings
from tfdist.elastic.membership import Membership, Timing

pytestmark = pytest.mark.timeout(180)

QUICK = Timing(answer=1.5, grace=2.0, probe=0.2, log=5.0)


def work(ctx, start):
    """Sums over the members, step by step, until the file "stop" exists."""
    cluster = Cluster.from_environment()
    settings = Settings(secret=b"of this job, 16 bytes", rendezvous_timeout=60.0)
    membership = Membership(cluster, settings, Elastic(1, 8, start), {}, timing=QUICK)
    communicator = ops.Communicator(0, 1, resizable=True)
    ctx.report("begun", membership.begin() is not None)
    membership.watch(communicator, stalled=0.5, silence=1.5)
    steps = 0
    while True:
        world = membership.form(communicator)
        indices = [int(member.name.split()[1]) for member in world.members]
        expected = sum(3.0**index for index in indices)
        reported = False
        try:
            while True:
                values = [3.0**ctx.rank, membership.newcomers_wait(), stop(ctx).exists()]
                sums = ops.all_reduce(tf.constant(values, tf.float64), communicator, timeout=60)
                membership.establish()
                assert float(sums[0]) == expected, (sums, world)
                steps += 1
                if not reported:
                    ctx.report("works", (sorted(indices), world.generation, time.monotonic()))
                    reported = True
                if sums[2]:
                    membership.leave()
                    communicator.close()
                    return steps
                if sums[1]:
                    break
        except tf.errors.OpError as error:
            ctx.report("failed", error.message)


def stop(ctx):
    """The file that ends the job."""
    return ctx.tmp_path / "stop"


def wait_for_world(ranks, indices, *, after=0.0, timeout=30.0):
    """Waits until these ranks have worked together since `after`; returns the last one's time."""
    deadline = time.monotonic() + timeout
    while True:
        times = []
        for index in indices:
            found = [
                value[2]
                for key, value in list(ranks[index].reports)
                if key == "works" and value[0] == sorted(indices) and value[2] > after
            ]
            times += found[:1]
        if len(times) == len(indices):
            return max(times)
        assert time.monotonic() < deadline, [ranks[i].reports[-3:] for i in indices]
        time.sleep(0.005)


def end(ranks, indices, tmp_path):
    """Ends the job; these ranks must have worked until then."""
    (tmp_path / "stop").touch()
    for outcome in ranks.join(30.0, only=indices):
        assert outcome.ok, outcome.describe()
        assert outcome.result > 0


@pytest.mark.parametrize("victims", [(3,), (0,), (1, 2), (0, 1, 2)])
def test_kills(victims, tmp_path):
    with start_ranks(work, 4, args=(4,), tmp_path=tmp_path) as ranks:
        wait_for_world(ranks, range(4), timeout=60.0)
        killed = [ranks[victim].kill() for victim in victims]
        survivors = [index for index in range(4) if index not in victims]
        assert wait_for_world(ranks, survivors) - killed[0] < 5.0
        end(ranks, survivors, tmp_path)


def test_a_killed_process_is_restarted_and_joins(tmp_path):
    with start_ranks(work, 3, args=(3,), tmp_path=tmp_path) as ranks:
        wait_for_world(ranks, range(3), timeout=60.0)
        for victim in (0, 1, 0):
            killed = ranks[victim].kill()
            wait_for_world(ranks, [i for i in range(3) if i != victim], after=killed)
            ranks.restart(victim)
            assert ranks.wait_for(victim, "begun") is False
            wait_for_world(ranks, range(3), after=killed)
        end(ranks, range(3), tmp_path)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_stopped_process_is_left_out_and_comes_back(victim, tmp_path):
    with start_ranks(work, 3, args=(3,), tmp_path=tmp_path) as ranks:
        wait_for_world(ranks, range(3), timeout=60.0)
        stopped = ranks[victim].stop()
        others = [index for index in range(3) if index != victim]
        assert wait_for_world(ranks, others, after=stopped) - stopped < 15.0
        resumed = ranks[victim].resume()
        wait_for_world(ranks, range(3), after=resumed)
        end(ranks, range(3), tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_kills_while_the_others_recover(seed, tmp_path):
    generator = random.Random(seed)
    with start_ranks(work, 5, args=(5,), tmp_path=tmp_path) as ranks:
        wait_for_world(ranks, range(5), timeout=60.0)
        victims = generator.sample(range(5), 3)
        if seed == 0:
            victims = [0, 1, 2]
        for victim in victims:
            killed = ranks[victim].kill()
            time.sleep(generator.uniform(0.0, 0.05))
        survivors = [index for index in range(5) if index not in victims]
        wait_for_world(ranks, survivors, after=killed)
        end(ranks, survivors, tmp_path)


@pytest.mark.long(covered_by="test_a_stopped_process_is_left_out_and_comes_back")
def test_a_soak_of_kills_stops_and_restarts(tmp_path):
    generator = random.Random(4711)
    with start_ranks(work, 4, args=(4,), tmp_path=tmp_path) as ranks:
        wait_for_world(ranks, range(4), timeout=60.0)
        for _ in range(rounds(6, long=60)):
            victims = generator.sample(range(4), generator.choice((1, 1, 2)))
            stops = generator.random() < 0.25 and len(victims) == 1
            for victim in victims:
                began = ranks[victim].stop() if stops else ranks[victim].kill()
            if generator.random() < 0.7:
                others = [index for index in range(4) if index not in victims]
                wait_for_world(ranks, others, after=began)
            for victim in victims:
                if stops:
                    ranks[victim].resume()
                else:
                    ranks.restart(victim)
            if not stops:
                wait_for_world(ranks, range(4), after=began)
        end(ranks, range(4), tmp_path)
