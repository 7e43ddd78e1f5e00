"""Servers of tables: a model looks rows up, also when a server dies."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
import tensorflow as tf

import tfdist
from support.patience import PATIENCE, wait_until
from support.served_tables import Training, addresses, serving, values_of, write_model

pytestmark = pytest.mark.timeout(60)
IDS = list(range(-5, 300, 3))


@pytest.fixture
def root(tmp_path):
    """The folder of a snapshot, in which the row of an id has the id's number."""
    training = Training(tmp_path / "snapshots")
    training.set({i: float(i) for i in IDS})
    training.save()
    return tmp_path / "snapshots"


def test_a_model_looks_rows_up(root, tmp_path):
    group = addresses(1)
    with serving(root, group, 0):
        model = tfdist.serving.load(write_model(tmp_path / "model"), group)
        assert values_of(model, IDS) == IDS
        # An id without a row has its initial value, as in training.
        assert all(-1 <= value <= 1 for value in values_of(model, [10**12, 10**13]))
        model.table_connection.close()


@pytest.mark.parametrize("dead", [0, 1, 2])
def test_no_lookup_fails_when_a_server_dies(root, tmp_path, dead):
    group = addresses(3)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serving(root, group, i, replicas=2)) for i in range(3)]
        model = tfdist.serving.load(write_model(tmp_path / "model"), ",".join(group))
        stack.callback(model.table_connection.close)
        answered, problems, stop = [0], [], threading.Event()

        def ask() -> None:
            while not stop.is_set():
                try:
                    assert values_of(model, IDS) == IDS
                    answered[0] += 1
                except Exception as error:
                    problems.append(error)
                    return

        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: answered[0] > 20 or problems, "lookups")
        servers[dead].close()
        after = answered[0]
        wait_until(lambda: answered[0] > after + 20 or problems, "lookups without a server")
        stop.set()
        thread.join()
        assert not problems


def test_lookups_fail_while_no_copy_answers_and_go_on_afterwards(root, tmp_path):
    group = addresses(1)
    folder = write_model(tmp_path / "model")
    with serving(root, group, 0):
        model = tfdist.serving.load(folder, group, timeout=0.5)
        assert values_of(model, [1]) == [1]
    with pytest.raises(tf.errors.UnavailableError, match="none of its servers answers"):
        values_of(model, [1])
    with serving(root, group, 0):

        def answers() -> bool:
            with contextlib.suppress(tf.errors.UnavailableError):
                return values_of(model, [1]) == [1]
            return False

        wait_until(answers, "a lookup after the server's restart")
    model.table_connection.close()


def test_rows_come_from_the_cache_until_they_are_too_old(tmp_path):
    training = Training(tmp_path / "snapshots")
    training.set({1: 1.0, 2: 2.0})
    training.save()
    group = addresses(1)
    with serving(tmp_path / "snapshots", group, 0, follow=0.02) as server:
        model = tfdist.serving.load(
            write_model(tmp_path / "model"), group, cache_rows=10, cache_seconds=1.0
        )
        stats = model.table_connection.client.stats
        assert values_of(model, [1, 2, 1]) == [1, 2, 1]
        assert values_of(model, [2, 1]) == [2, 1]
        assert (stats().cache_hits, stats().lookup_rows) == (2, 2)
        training.set({1: 7.0})
        number = training.save()
        wait_until(lambda: server.number == number, "the second snapshot")
        began = time.monotonic()
        wait_until(lambda: values_of(model, [1]) == [7], "a new row")
        # The row was requested before, so that it is replaced within its age.
        assert time.monotonic() - began < 1.0 + 0.5 * PATIENCE
        model.table_connection.close()
