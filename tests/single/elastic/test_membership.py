"""Members of an elastic job found it, go on without the dead, and take in newcomers."""

from __future__ import annotations

import pytest
from control_tasks import Background
from elastic_members import Process, addresses, check, closing, formed, together

from tfdist.config.elastic import Elastic

pytestmark = pytest.mark.timeout(60)


def founded(processes, count, elastic=None, known=None, **kwargs):
    """Founds a job of `count` processes."""
    known = known or addresses(count)
    limits = elastic or Elastic()
    processes.extend(Process(known, index, limits, **kwargs) for index in range(count))
    worlds = together([process.start for process in processes[:count]])
    assert [world.generation for world in worlds] == [1] * count
    check(processes, worlds)
    return known


@pytest.mark.parametrize("size", [1, 2, 4])
def test_founders_get_their_ranks_in_the_order_of_the_addresses(size):
    with closing() as processes:
        founded(processes, size)


@pytest.mark.parametrize("dead", [[1], [0], [3], [0, 1], [1, 3], [0, 1, 2]])
def test_the_others_go_on_after_a_crash(dead):
    with closing() as processes:
        founded(processes, 4)
        for index in dead:
            processes[index].crash()
        survivors = [p for p in processes if p.index not in dead]
        assert formed(survivors)[0].generation == 2


def test_a_newcomer_waits_at_rank_0_until_it_is_taken_in():
    with closing() as processes:
        known = founded(processes, 2, Elastic(1, 4, 2), known=addresses(3))
        newcomer = Process(known, 2, Elastic(1, 4, 2))
        processes.append(newcomer)
        assert newcomer.membership.begin() is None
        joining = Background(newcomer.form)
        while not processes[0].membership.newcomers_wait():
            assert not joining.done()
        assert not processes[1].membership.newcomers_wait()
        worlds = together([processes[0].form, processes[1].form])
        check(processes, [*worlds, joining.result()], newcomers=[2])
        assert not processes[0].membership.newcomers_wait()
