"""Placement: the same everywhere, complete, balanced, and nearly unmoved when a server is added."""

from __future__ import annotations

import collections
import math
import os
import pathlib
import random
import subprocess
import sys

import pytest

from tfdist.strategies._variables import placement as placement_module
from tfdist.strategies._variables.placement import Placement, Shard, balance, renamed

Variables = dict[str, tuple[tuple[int, ...], int]]  # name -> (shape, bytes of an element)

MB = 2**20
# An MLP on a large embedding.
MLP: Variables = {
    "embedding/embeddings": ((1_000_000, 64), 4),
    "dense/kernel": ((640, 512), 4),
    "dense/bias": ((512,), 4),
    "dense_1/kernel": ((512, 256), 4),
    "dense_1/bias": ((256,), 4),
    "dense_2/kernel": ((256, 1), 4),
    "dense_2/bias": ((1,), 4),
}


@pytest.fixture(scope="module")
def resnet50() -> Variables:
    import keras

    model = keras.applications.ResNet50(weights=None)
    variables = {
        variable.path: (tuple(variable.shape), variable.numpy().itemsize)
        for variable in model.variables
    }
    assert len(variables) == len(model.variables) == 320
    return variables


def max_over_mean(held: list[int]) -> float:
    return max(held) * len(held) / sum(held)


def small_variables(count: int) -> Variables:
    """Makes variables of 4 bytes to 2 MB."""
    source = random.Random(3)
    return {
        f"layer_{number}/kernel": ((source.randrange(1, 1024), source.randrange(1, 512)), 4)
        for number in range(count)
    }


def large_tables(count: int) -> Variables:
    """Makes variables of 40 to 400 MB."""
    source = random.Random(4)
    return {
        f"table_{number}/embeddings": ((source.randrange(160_000, 1_600_000), 64), 4)
        for number in range(count)
    }


def holders(placement: Placement, variables: Variables) -> list[tuple[str, int, int]]:
    """Lists (name, server, bytes) of all shards."""
    return [
        (shard.name, shard.server, shard.count * itemsize)
        for name, (shape, itemsize) in variables.items()
        for shard in placement.shards(name, shape, itemsize)
    ]


def test_placement_never_changes():
    names = ["dense/kernel", "dense/bias", "dense_1/kernel", "embedding/embeddings", "größe", ""]
    found = {
        servers: [Placement(servers).shards(name, (2, 3), 4)[0].server for name in names]
        for servers in (1, 2, 3, 8)
    }
    assert found == {
        1: [0, 0, 0, 0, 0, 0],
        2: [1, 0, 1, 1, 1, 1],
        3: [2, 2, 1, 1, 1, 1],
        8: [2, 5, 5, 4, 1, 1],
    }


def test_parts_never_change():
    name = "embedding/embeddings"
    assert Placement(2, 40).shards(name, (5, 10), 4) == (
        Shard(1, f"{name}/rows_0_of_5", 0, 10),
        Shard(1, f"{name}/rows_1_of_5", 10, 10),
        Shard(0, f"{name}/rows_2_of_5", 20, 10),
        Shard(1, f"{name}/rows_3_of_5", 30, 10),
        Shard(0, f"{name}/rows_4_of_5", 40, 10),
    )
    three = Placement(3, 40).shards(name, (5, 10), 4)
    assert [shard.server for shard in three] == [2, 1, 2, 1, 0]


@pytest.mark.parametrize("seed", ["0", "1"])
def test_another_process_places_alike_without_tensorflow(seed):
    folder = pathlib.Path(placement_module.__file__).parent
    program = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); import placement\n"
        "ring = placement.Placement(5, 1024)\n"
        "print([s.server for i in range(40) for s in ring.shards(f'v{i}', (99, 8), 4)])\n"
        "assert 'tensorflow' not in sys.modules and 'numpy' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    ring = Placement(5, 1024)
    here = [shard.server for i in range(40) for shard in ring.shards(f"v{i}", (99, 8), 4)]
    assert len(here) == 160
    assert done.stdout.strip() == str(here)


def test_the_order_of_creation_does_not_matter():
    variables = small_variables(200)
    backwards = dict(reversed(variables.items()))
    placement = Placement(4, MB)
    assert sorted(holders(placement, variables)) == sorted(holders(Placement(4, MB), backwards))


def test_shards_cover_every_element_once_and_in_order():
    source = random.Random(5)
    split = 0
    for case in range(2000):
        shape = tuple(source.randrange(0, 40) for _ in range(source.randrange(0, 4)))
        itemsize = source.choice([1, 2, 4, 8])
        limit = source.choice([1, 7, 64, 1000, 100_000])
        placement = Placement(source.randrange(1, 6), limit, virtual_nodes=8)
        shards = placement.shards(f"v{case}", shape, itemsize)
        elements, row = math.prod(shape), math.prod(shape[1:])
        assert [shard.first for shard in shards[1:]] == [s.first + s.count for s in shards[:-1]]
        assert shards[0].first == 0
        assert shards[-1].first + shards[-1].count == elements
        assert all(0 <= shard.server < placement.servers for shard in shards)
        if elements * itemsize <= limit or len(shards) == 1:
            assert [shard.name for shard in shards] == [f"v{case}"]
            continue
        split += 1
        assert [shard.name for shard in shards] == [
            f"v{case}/rows_{part}_of_{len(shards)}" for part in range(len(shards))
        ]
        assert all(shard.first % row == shard.count % row == 0 for shard in shards)
        rows = [shard.count // row for shard in shards]
        assert max(rows) - min(rows) <= 1
        assert max(rows) == 1 or max(rows) * row * itemsize <= limit
        # One part less, and some part would be too large.
        assert -(-shape[0] // (len(shards) - 1)) * row * itemsize > limit
    assert split > 500


@pytest.mark.parametrize(
    ("shape", "count"), [((), 1), ((0,), 0), ((0, 8), 0), ((8, 0), 0), ((1, 50), 50)]
)
def test_what_cannot_be_split_is_one_shard_of_its_own_name(shape, count):
    (shard,) = Placement(3, max_shard_bytes=1).shards("v", shape, 8)
    assert (shard.name, shard.first, shard.count) == ("v", 0, count)


def test_a_variable_is_split_only_above_the_limit():
    placement = Placement(2, max_shard_bytes=400)
    assert len(placement.shards("v", (100,), 4)) == 1
    assert [shard.count for shard in placement.shards("v", (101,), 4)] == [50, 51]


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 8, 21])
def test_parts_spread_evenly_and_move_only_to_the_added_server(parts):
    for name in map("table_{}".format, range(20)):
        before = [0] * parts
        for servers in range(1, 12):
            shards = Placement(servers, 4, virtual_nodes=64).shards(name, (parts,), 4)
            now = [shard.server for shard in shards]
            held = collections.Counter(now)
            assert max(held.values()) == -(-parts // servers)
            assert min(held[server] for server in range(servers)) == parts // servers
            assert all(new in (old, servers - 1) for old, new in zip(before, now, strict=True))
            before = now


@pytest.mark.parametrize("variables", [small_variables(10_000), large_tables(100)], ids=len)
@pytest.mark.parametrize("servers", range(1, 9))
def test_an_added_server_takes_its_share_and_nothing_else_moves(servers, variables):
    before = holders(Placement(servers), variables)
    after = holders(Placement(servers + 1), variables)
    moved = 0
    for (name, old, size), (same_name, new, _) in zip(before, after, strict=True):
        assert name == same_name
        if new != old:
            assert new == servers, name
            moved += size
    share = moved / sum(size for _, _, size in before)
    # 0.925 to 1.050 was measured: a server's part of the ring, and its shards, are random.
    assert 0.9 < share * (servers + 1) < 1.1


def test_slots_lie_where_their_variable_lies():
    placement = Placement(4, 40)
    whole = placement.shards("w", (9,), 4)
    assert renamed(whole, "w/momentum") == (Shard(whole[0].server, "w/momentum", 0, 9),)
    parts = placement.shards("w", (12, 3), 4)
    slots = renamed(parts, "w/momentum")
    assert [slot.name for slot in slots] == [f"w/momentum/rows_{i}_of_4" for i in range(4)]
    assert [(s.server, s.first, s.count) for s in slots] == [
        (s.server, s.first, s.count) for s in parts
    ]


def test_resnet50_balance(resnet50):
    # Bytes on the fullest server over the mean, for 2, 4 and 8 servers. A few kernels hold most
    # of the bytes, and at the default limit none of them is split.
    found = {
        limit: [
            round(max_over_mean(balance(Placement(servers, limit), resnet50)), 2)
            for servers in (2, 4, 8)
        ]
        for limit in (32 * MB, MB)
    }
    assert found == {32 * MB: [1.33, 1.25, 1.99], MB: [1.19, 1.16, 1.34]}


@pytest.mark.parametrize(("servers", "bound"), [(2, 1.2), (4, 1.55), (8, 2.1)])
def test_resnet50_balance_under_other_names(resnet50, servers, bound):
    # One set of names may be lucky: the mean over 40 sets was 1.16, 1.48 and 2.01.
    placement = Placement(servers)
    ratios = []
    for run in range(40):
        named = {f"run_{run}/{name}": variable for name, variable in resnet50.items()}
        held = balance(placement, named)
        assert sum(held) == sum(math.prod(shape) * size for shape, size in resnet50.values())
        ratios.append(max_over_mean(held))
    assert 1 <= sum(ratios) / len(ratios) < bound


@pytest.mark.parametrize("servers", [2, 4, 8])
def test_a_large_embedding_is_spread_evenly(servers):
    placement = Placement(servers)
    parts = placement.shards("embedding/embeddings", *MLP["embedding/embeddings"])
    assert len(parts) == 8
    assert set(collections.Counter(part.server for part in parts).values()) == {8 // servers}
    assert max_over_mean(balance(placement, MLP)) < 1.05


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "Placement: expected servers of at least 1, received 0"),
        ((2, 0), "Placement: expected max_shard_bytes of at least 1, received 0"),
        ((2, 1, -3), "Placement: expected virtual_nodes of at least 1, received -3"),
    ],
)
def test_bad_placements(arguments, message):
    with pytest.raises(ValueError, match=message):
        Placement(*arguments)


@pytest.mark.parametrize("shape", [(-1,), (3, -2), (None, 4)])
def test_bad_shapes(shape):
    with pytest.raises(ValueError, match="placement of 'v': expected a shape .* received") as error:
        Placement(2).shards("v", shape, 4)
    assert str(shape) in str(error.value)


def test_bad_itemsize():
    with pytest.raises(ValueError, match="'v': expected itemsize of at least 1, received 0"):
        Placement(2).shards("v", (2,), 0)
