"""The formulas of `tfdist plan`, against closed forms and published numbers."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from tfdist.ops.collectives.fused import DEFAULT_BYTES_PER_PACK
from tfdist.plan import costs, traffic
from tfdist.plan.costs import GradientBucket, PlannedTraining, Table
from tfdist.plan.traffic import Links, TrafficPhase

ROOT = Path(__file__).parents[3]
MB = 1e6
VGG = PlannedTraining(138_360_000, 0.55, Links(125 * MB))


def carried(phases) -> float:
    return sum(phase.network for phase in phases)


def messages(phases) -> int:
    return sum(phase.messages for phase in phases)


def test_the_published_example():
    estimate = costs.all_reduce(VGG, 4, target=0.9)
    assert (
        estimate.method == traffic.HALVING_DOUBLING and estimate.chosen and not estimate.overlapped
    )
    # 2 x 3/4 x 553.44 MB at 125 MB/s.
    assert estimate.communication == pytest.approx(6.64128, rel=1e-12)
    assert estimate.step == pytest.approx(7.19128, rel=1e-12)
    assert round(estimate.efficiency, 4) == 0.0765
    assert round(estimate.bandwidth_needed / MB) == 13_584
    assert estimate.speedup == pytest.approx(4 * 0.55 / 7.19128, rel=1e-12)
    # The published 13,582 MB/s is for 553.36 MB.
    rounded = PlannedTraining(553_360_000 // 4, 0.55, Links(125 * MB))
    assert round(costs.all_reduce(rounded, 4, target=0.9).bandwidth_needed / MB) == 13_582


# docs/reference/algorithms.md has the same numbers, which a test of the C++ core holds to the byte.
@pytest.mark.parametrize("workers", range(2, 9))
def test_bytes_and_messages_are_those_of_the_algorithms(workers):
    size = 840 * 1024
    power = 1 << (workers.bit_length() - 1)
    ring = traffic.ring(workers, size)
    assert messages(ring) == 2 * (workers - 1)
    assert carried(ring) == pytest.approx(2 * (workers - 1) / workers * size)
    doubling = traffic.recursive_doubling(workers, size)
    steps = power.bit_length() - 1 + (2 if power < workers else 0)
    assert messages(doubling) == steps and carried(doubling) == steps * size
    tree = traffic.tree(workers, size)
    assert messages(tree) == 2 * (workers - 1).bit_length()
    assert carried(tree) == 2 * (workers - 1).bit_length() * size
    halving = traffic.halving_doubling(workers, size)
    extra = 2 if power < workers else 0
    assert messages(halving) == 2 * (power.bit_length() - 1) + extra
    assert carried(halving) == pytest.approx((2 * (power - 1) / power + extra) * size)
    double_tree = traffic.double_tree(workers, size)
    assert messages(double_tree) == 2 * (workers.bit_length() - 1)
    # A node with two children in one tree, and a leaf of the other one, sends four halves.
    assert carried(double_tree) == {2: 1, 3: 1.5}.get(workers, 2) * size


def test_workers_of_a_host_share_its_link():
    # Two hosts of two: in the second exchange both workers of a host send through its link.
    assert traffic.recursive_doubling(4, 10, 2) == [TrafficPhase(0, 0, 10), TrafficPhase(1, 20, 0)]
    assert traffic.tree(4, 10, 2) == [
        TrafficPhase(0, 0, 10),
        TrafficPhase(1, 10, 0),
        TrafficPhase(1, 10, 0),
        TrafficPhase(0, 0, 10),
    ]
    assert traffic.halving_doubling(4, 10, 2) == [
        TrafficPhase(1, 10, 0),
        TrafficPhase(0, 0, 2.5),
        TrafficPhase(0, 0, 2.5),
        TrafficPhase(1, 10, 0),
    ]
    assert traffic.ring(4, 10, 2) == (TrafficPhase(6, 15, 15),)
    assert traffic.two_level(4, 10, 2) == (TrafficPhase(2, 10, 10),)
    assert traffic.ring(4, 10, 4) == (TrafficPhase(0, 0, 15),)
    assert traffic.two_level(4, 10, 4) == (TrafficPhase(0, 0, 10),)
    # The slower of network and host decides.
    links = Links(bandwidth=5, latency=1, local_bandwidth=2)
    assert traffic.seconds([TrafficPhase(2, 10, 10), TrafficPhase(1, 20, 0)], links) == (2 + 5) + (
        1 + 4
    )


def test_one_worker_exchanges_nothing():
    for algorithm in (
        traffic.RING,
        traffic.TWO_LEVEL,
        traffic.RECURSIVE_DOUBLING,
        traffic.HALVING_DOUBLING,
        traffic.DOUBLE_TREE,
        traffic.TREE,
    ):
        phases = traffic.all_reduce(algorithm, 1, 1000)
        assert traffic.seconds(phases, Links(1.0, 1.0)) == 0
    estimate = costs.all_reduce(VGG, 1, target=0.9)
    assert (estimate.efficiency, estimate.speedup, estimate.bandwidth_needed) == (1, 1, 0)


def test_an_unknown_algorithm_is_named():
    with pytest.raises(ValueError, match="expected one of ring, .*received 'star'"):
        traffic.all_reduce("star", 2, 10)


def test_selection_is_that_of_the_core():
    KB, MB = 1 << 10, 1 << 20
    assert traffic.selected(3, 32 * KB) == traffic.RECURSIVE_DOUBLING
    assert traffic.selected(3, 32 * KB + 1) == traffic.RING
    for workers in (4, 8):
        assert traffic.selected(workers, 32 * KB + 1) == traffic.HALVING_DOUBLING
        assert traffic.selected(workers, 8 * MB) == traffic.HALVING_DOUBLING
        assert traffic.selected(workers, 8 * MB + 1) == traffic.RING
    assert traffic.selected(15, MB) == traffic.RING
    assert traffic.selected(16, MB) == traffic.DOUBLE_TREE
    assert traffic.selected(16, MB + 1) == traffic.RING
    assert traffic.selected(4, MB, per_host=2) == traffic.TWO_LEVEL
    assert traffic.selected(4, MB, per_host=4) == traffic.HALVING_DOUBLING
    source = (ROOT / "ops/core/collectives/selector.cc").read_text()
    assert "kRecursiveDoublingBytes = 32 * 1024;" in source
    assert "kHalvingDoublingBytes = 8 * 1024 * 1024;" in source
    assert "kDoubleTreeBytes = 1024 * 1024;" in source
    assert "kDoubleTreeRanks = 16;" in source
    assert traffic.BUCKET_BYTES == DEFAULT_BYTES_PER_PACK
    # A model of fewer bytes travels in one bucket, which may be a small one.
    assert costs.algorithm_of(PlannedTraining(8192, 1, Links(1)), 4) == traffic.RECURSIVE_DOUBLING
    assert costs.algorithm_of(PlannedTraining(8193, 1, Links(1)), 3) == traffic.RING


def test_needed_bandwidth_inverts_the_step_time():
    profile = (
        GradientBucket(100_000, 0.2),
        GradientBucket(700_000, 0.5),
        GradientBucket(200_000, 0.9),
    )
    for per_host, local in ((1, 1e12), (2, 1e9)):
        training = PlannedTraining(
            1_000_000, 0.1, Links(1.0, 1e-4, local), per_host=per_host, servers=2, profile=profile
        )
        for estimate in costs.methods(training, 6, target=0.8):
            assert estimate.bandwidth_needed > 0, estimate
            links = Links(estimate.bandwidth_needed, 1e-4, local)
            again = PlannedTraining(
                1_000_000, 0.1, links, per_host=per_host, servers=2, profile=profile
            )
            (same,) = (
                each
                for each in costs.methods(again, 6)
                if (each.method, each.overlapped) == (estimate.method, estimate.overlapped)
            )
            assert same.efficiency == pytest.approx(0.8, rel=1e-9), estimate


def test_no_bandwidth_helps_against_latency_or_within_a_host():
    slow = PlannedTraining(1_000_000, 0.001, Links(1e9, 1.0))
    assert costs.all_reduce(slow, 4, target=0.9).bandwidth_needed is None
    within = PlannedTraining(1_000_000, 0.001, Links(1e9, 0.0, 1e6), per_host=2)
    assert costs.all_reduce(within, 4, target=0.9).bandwidth_needed is None
    # All workers on one host that is fast enough need no network.
    host = PlannedTraining(1_000_000, 1.0, Links(1e9, 0.0, 1e9), per_host=4)
    assert costs.all_reduce(host, 4, target=0.9).bandwidth_needed == 0


def test_overlap_is_a_schedule_of_buckets():
    profile = (GradientBucket(1, 0.25), GradientBucket(2, 0.5), GradientBucket(1, 0.75))
    training = PlannedTraining(4, 8.0, Links(1), profile=profile)
    for communication in (0.1, 1.0, 4.0, 8.0, 40.0):
        done = 0.0
        for bucket in profile:
            begin = max(done, bucket.ready * 8)
            done = begin + communication * bucket.parameters / 4
        # After the last bucket comes what remains of the computing.
        assert costs.step_time(training, communication, True) == pytest.approx(done + 2)
    assert costs.step_time(training, 4.0, False) == 12


def test_bytes_are_complete_evenly_unless_that_was_measured():
    third = (4 << 20) // 4
    buckets = costs.evenly(2 * third + third // 2, 4, 0.5)
    assert [bucket.parameters for bucket in buckets] == [third, third, third // 2]
    assert [bucket.ready for bucket in buckets] == pytest.approx([0.7, 0.9, 1.0])
    assert costs.evenly(10, 4, 0.5) == [GradientBucket(10, 1.0)]
    assert costs.evenly(0, 4, 0.5) == [GradientBucket(0, 1.0)]


def test_buckets_are_filled_as_tfdist_fills_them():
    mega = 1 << 20
    gradients = [
        GradientBucket(n * mega, r) for n, r in ((0.5, 0.1), (3, 0.3), (0.25, 0.4), (0.25, 0.6))
    ]
    filled = costs.bucketed(gradients)
    assert filled == [GradientBucket(3.5 * mega, 0.3), GradientBucket(0.5 * mega, 0.6)]


def test_parameter_servers():
    sync = costs.synchronous_servers(VGG, 4)
    # C N / servers in, and the same out.
    assert sync.communication == pytest.approx(2 * 4 * 553.44 / 125)
    assert sync.step == pytest.approx(0.55 + sync.communication)
    by_server = PlannedTraining(138_360_000, 0.55, Links(125 * MB), servers=2)
    assert costs.synchronous_servers(by_server, 4).communication == sync.communication / 2
    # With many servers the worker's own link decides.
    many = PlannedTraining(138_360_000, 0.55, Links(125 * MB), servers=16)
    assert costs.synchronous_servers(many, 4).communication == pytest.approx(2 * 553.44 / 125)
    # Without waiting: the server is busy all the time with four workers, and idle with one.
    busy = costs.asynchronous_servers(VGG, 4)
    assert busy.step == pytest.approx(4 * 553.44 / 125)
    alone = costs.asynchronous_servers(VGG, 1)
    assert alone.step == pytest.approx(0.55 + 2 * 553.44 / 125)


def test_rows_travel_until_they_are_more_than_the_table():
    # 3 others' 10 rows of 4 floats and an id.
    phases = traffic.rows(4, 10, 16, 1000)
    assert phases == (TrafficPhase(3, 3 * 10 * (16 + 8), 0),)
    # 4 x 10 rows exceed twice 19: the table travels, by recursive doubling since it is small.
    assert carried(traffic.rows(4, 10, 16, 19)) == 2 * 19 * 16
    table = Table("ids", 1000, 4, 10)
    training = PlannedTraining(0, 1.0, Links(1000), tables=(table,))
    assert costs.all_reduce(training, 4).communication == pytest.approx(720 / 1000)
    assert costs.synchronous_servers(training, 4).communication == pytest.approx(2 * 4 * 240 / 1000)


def test_efficiency_of_the_ring_hardly_falls_with_the_number_of_workers():
    efficiencies = [costs.all_reduce(VGG, n).efficiency for n in (2, 4, 8, 1024)]
    exact = [
        Fraction(55, 100) / (Fraction(55, 100) + Fraction(2 * (n - 1), n) * Fraction(55344, 12500))
        for n in (2, 4, 8, 1024)
    ]
    assert efficiencies == pytest.approx([float(each) for each in exact])
    assert efficiencies == sorted(efficiencies, reverse=True)
