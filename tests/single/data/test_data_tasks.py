"""The tasks of TensorFlow's data service, and the errors of `tfdist.data.distribute`."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import tensorflow as tf

import tfdist
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.data import server
from tfdist.data.server import DataTask
from tfdist.errors import (
    AddressInUseError,
    ClusterConfigError,
    NotInitializedError,
    RendezvousTimeoutError,
)
from tfdist.job import process
from tfdist.launch.ports import free_ports

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def job() -> Iterator[None]:
    process.current.leave()  # strategies of other files' tests may have begun one
    yield
    process.current.leave()


def cluster(task_type: str = "data_dispatcher", host: str = "127.0.0.1") -> Cluster:
    """Worker 0 and two data tasks, none of which runs."""
    addresses = [f"{host}:{port}" for port in free_ports(3)]
    return Cluster(
        workers=addresses[:1],
        data_dispatcher=addresses[1:2],
        data_workers=addresses[2:],
        task_type=task_type,
    )


def test_a_process_without_a_cluster_reads_the_dataset_itself() -> None:
    dataset = tf.data.Dataset.range(3)
    with pytest.raises(NotInitializedError, match=r"tfdist.data.distribute\(\): .* tfdist.init"):
        tfdist.data.distribute(dataset)
    tfdist.init(Cluster.local())
    assert tfdist.data.distribute(dataset) is dataset


def test_a_cluster_without_data_workers_is_an_error() -> None:
    tfdist.init(Cluster(workers=("127.0.0.1:1", "127.0.0.1:2")))
    expected = r"received one of worker: start the job with 'tfdist run --data-workers N', or add"
    with pytest.raises(ClusterConfigError, match=expected):
        tfdist.data.distribute(tf.data.Dataset.range(3))


@pytest.mark.parametrize("mode", ["epoch", tf.data.experimental.service.ShardingPolicy.FILE])
def test_modes_that_need_other_workers_are_refused(mode: object) -> None:
    tfdist.init(Cluster.local())
    expected = "expected processing_mode to be one of 'distributed_epoch', 'parallel_epochs'"
    with pytest.raises(ValueError, match=expected):
        tfdist.data.distribute(tf.data.Dataset.range(3), mode)


def test_in_a_graph_it_is_an_error() -> None:
    tfdist.init(Cluster(workers=("127.0.0.1:1", "127.0.0.1:2")))
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match="expected eager execution"):
        tfdist.data.distribute(tf.data.Dataset.range(3))


@pytest.mark.parametrize("name", ["zip", "enumerate", "take", "skip", "shard", "interleave"])
def test_what_goes_wrong_in_shares_is_refused(name: str) -> None:
    rows = tf.data.Dataset.range(30)
    pipeline = {
        "zip": lambda: tf.data.Dataset.zip(rows, rows),
        "enumerate": rows.enumerate,
        "take": lambda: rows.take(3),
        "skip": lambda: rows.skip(3),
        "shard": lambda: rows.shard(2, 0),
        "interleave": lambda: rows.interleave(tf.data.Dataset.range),
    }[name]().batch(2)
    addresses = [f"127.0.0.1:{number}" for number in (1, 2, 3, 4)]
    tfdist.init(
        Cluster(workers=addresses[:1], data_dispatcher=addresses[1:2], data_workers=addresses[2:])
    )
    with pytest.raises(ValueError, match=rf"expected a pipeline without .*\b{name}\b.*, received"):
        tfdist.data.distribute(pipeline)


def test_a_dispatcher_that_does_not_come_is_named() -> None:
    absent = cluster("worker")
    expected = f"worker 0: expected data_dispatcher at {absent.data_dispatcher[0]} to listen within"
    with pytest.raises(RendezvousTimeoutError, match=expected):
        server.wait_for("data_dispatcher", absent, 0.2)
    with pytest.raises(RendezvousTimeoutError, match="worker 0: expected data_worker 0 at"):
        server.wait_for("data_worker", absent, 0.2)
    with pytest.raises(RendezvousTimeoutError, match="data_worker 0: expected data_dispatcher at"):
        DataTask(cluster("data_worker"), Settings(rendezvous_timeout=0.2))


def test_only_data_tasks_serve_data() -> None:
    with pytest.raises(ClusterConfigError, match="data_dispatcher or data_worker, .* worker 0"):
        DataTask(cluster("worker"), Settings())


def test_a_taken_port_is_an_error() -> None:
    taken = cluster()
    with socket.socket() as other:
        other.bind(("", int(taken.data_dispatcher[0].rpartition(":")[2])))
        other.listen()
        with pytest.raises(AddressInUseError, match="data_dispatcher: cannot listen on port"):
            DataTask(taken, Settings())


def test_on_loopback_other_machines_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    own = cluster()
    task = DataTask(own, Settings())
    try:
        port = int(own.data_dispatcher[0].rpartition(":")[2])
        descriptors = list(server._listeners(port))
        assert descriptors
        for descriptor in descriptors:
            with socket.socket(fileno=os.dup(descriptor)) as listener:
                device = listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
                assert device.rstrip(b"\0") == b"lo"
        assert not caplog.messages
    finally:
        task._server.stop()


@pytest.mark.parametrize("obstacle", ["another host", "an old kernel"])
def test_a_port_that_others_reach_is_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, obstacle: str
) -> None:
    if obstacle == "an old kernel":
        monkeypatch.setattr(server, "_confine_to_loopback", lambda port: False)
    own = cluster(host="192.0.2.1" if obstacle == "another host" else "127.0.0.1")
    DataTask(own, Settings())._server.stop()
    (warning,) = caplog.messages
    assert "data_dispatcher: TensorFlow's data service listens on port" in warning
    assert "docs/operate/security.md" in warning


def test_it_ends_with_the_job() -> None:
    own = cluster()
    task = DataTask(own, Settings(rendezvous_timeout=2.0))
    rank_0 = socket.create_server(("127.0.0.1", int(own.workers[0].rpartition(":")[2])))

    def train() -> None:
        rank_0.accept()[0].close()
        rank_0.close()

    thread = threading.Thread(target=train)
    thread.start()
    assert task.serve() == 0
    thread.join()


def test_it_fails_if_the_job_never_begins(caplog: pytest.LogCaptureFixture) -> None:
    own = cluster()
    assert DataTask(own, Settings(rendezvous_timeout=0.5)).serve() == 1
    assert caplog.messages == [
        f"data_dispatcher: worker 0 at {own.workers[0]} never came: expected it within 0.5 s"
    ]


def test_after_a_signal_it_serves_until_training_has_ended() -> None:
    own = cluster()
    task = DataTask(own, Settings())
    rank_0 = socket.create_server(("127.0.0.1", int(own.workers[0].rpartition(":")[2])))
    ended = []

    def train() -> None:
        rank_0.accept()[0].close()
        os.kill(os.getpid(), signal.SIGTERM)
        # It looks again after the signal.
        rank_0.accept()[0].close()
        ended.append(time.monotonic())
        rank_0.close()

    thread = threading.Thread(target=train)
    thread.start()
    assert task.serve() == 128 + signal.SIGTERM
    thread.join()
    assert time.monotonic() - ended[0] < 60


def test_it_serves_in_another_thread() -> None:
    """Python lets only the main thread handle signals."""
    own = cluster()
    task = DataTask(own, Settings(rendezvous_timeout=0.5))
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(task.serve()))
    thread.start()
    thread.join(30)
    assert codes == [1]
