"""Pairs of ranks are measured once, and no two at a time share a host."""

from __future__ import annotations

import itertools

import pytest

from tfdist.check.rounds import rounds


@pytest.mark.parametrize(
    "hosts", ["a", "ab", "abc", "abcd", "abcdefg", "aaa", "aabb", "abab", "aaabbc", "abcabcab"]
)
def test_every_pair_once_and_hosts_alone(hosts):
    found = rounds(hosts)
    pairs = [pair for of_round in found for pair in of_round]
    assert sorted(pairs) == list(itertools.combinations(range(len(hosts)), 2))
    for of_round in found:
        assert of_round
        busy = [host for a, b in of_round for host in {hosts[a], hosts[b]}]
        assert len(busy) == len(set(busy))


@pytest.mark.parametrize(("hosts", "number"), [(2, 1), (3, 3), (4, 3), (7, 7), (8, 7), (16, 15)])
def test_hosts_are_busy(hosts, number):
    assert len(rounds([str(host) for host in range(hosts)])) == number
