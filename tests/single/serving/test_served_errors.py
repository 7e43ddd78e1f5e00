"""Each wrong input of served tables has one clear error."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfdist
from support.served_tables import Training, addresses, serving, write_model
from support.table_job import KEY, start_server
from tfdist.config.settings import Settings
from tfdist.errors import AuthenticationError, CheckpointError, ClusterConfigError
from tfdist.ops.ps.client import ParameterClient
from tfdist.ops.ps.server import ParameterServer
from tfdist.ops.ps.table_config import TableConfig
from tfdist.ops.ps.tables import EditKind
from tfdist.ps.config import PsConfig
from tfdist.serving.tables import command, publication
from tfdist.serving.tables.server import TableServer
from tfdist.serving.tables.server_group import ServerGroup

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def root(tmp_path):
    training = Training(tmp_path / "snapshots")
    training.set({1: 1.0, 2: 2.0})
    training.save()
    return tmp_path / "snapshots"


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(ValueError, match="expected the folder of a SavedModel, received"):
        tfdist.serving.load(str(tmp_path), "127.0.0.1:7000")


def test_a_model_without_served_tables(tmp_path):
    module = tf.Module()
    module.serve = tf.function(lambda x: x, input_signature=[tf.TensorSpec([], tf.float32)])
    tf.saved_model.save(module, str(tmp_path))
    with pytest.raises(ValueError, match="looks up no served tables: expected one of tfdist.exp"):
        tfdist.serving.load(str(tmp_path), "127.0.0.1:7000")


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({}, "either servers or tables"),
        ({"servers": "a:1", "tables": "snapshots"}, "either servers or tables"),
        ({"servers": ""}, "expected addresses of servers of tables"),
        ({"servers": "a"}, 'expected "host:port"'),
        ({"servers": "a:1", "cache_rows": -1}, "cache_rows of 0 or more"),
        ({"servers": "a:1", "cache_seconds": 0.01}, "at least 1/16"),
        ({"servers": "a:1", "timeout": 0}, "more than 0 s"),
        ({"servers": "a:1", "wait": -1}, "a wait of 0 s or more"),
    ],
)
def test_wrong_arguments(tmp_path, arguments, expected):
    with pytest.raises(ValueError, match=expected):
        tfdist.serving.load(write_model(tmp_path), **arguments)


def test_a_damaged_description(tmp_path):
    folder = write_model(tmp_path)
    (tmp_path / "assets.extra" / "tfdist.json").write_text('{"format": 1, "tables": 7}')
    with pytest.raises(ValueError, match=r"tfdist\.json is damaged"):
        tfdist.serving.load(folder, "127.0.0.1:7000")


def test_a_model_that_is_not_bound(tmp_path):
    model = tf.saved_model.load(write_model(tmp_path))
    with pytest.raises(tf.errors.FailedPreconditionError, match="tfdist.serving.load has loaded"):
        model.serve(tf.constant([1], tf.int64))


def test_servers_that_lack_the_table(root, tmp_path):
    group = addresses(1)
    with serving(root, group, 0):
        folder = write_model(tmp_path / "model", table="items")
        with pytest.raises(
            ClusterConfigError, match=r"table 'items': .*no such table.*'users' \(4"
        ):
            tfdist.serving.load(folder, group)


def test_rows_of_another_width(root, tmp_path):
    group = addresses(1)
    with serving(root, group, 0):
        folder = write_model(tmp_path / "model", width=8)
        with pytest.raises(ClusterConfigError, match="rows of 8 numbers.*received rows of 4"):
            tfdist.serving.load(folder, group)


def test_servers_that_do_not_answer(tmp_path):
    (address,) = addresses(1)
    with pytest.raises(tf.errors.UnavailableError, match=f"no server of tables.*{address}"):
        tfdist.serving.load(write_model(tmp_path), address, timeout=0.5)


def test_servers_in_another_order(root, tmp_path):
    group = addresses(2)
    with serving(root, group, 0), serving(root, group, 1):
        with pytest.raises(ClusterConfigError, match="addresses of all 2 servers, in their order"):
            tfdist.serving.load(write_model(tmp_path / "model"), group[::-1])


def test_another_secret(root, tmp_path, monkeypatch):
    group = addresses(1)
    with serving(root, group, 0, settings=Settings(secret=b"a secret of the servers")):
        folder = write_model(tmp_path / "model")
        with pytest.raises(AuthenticationError, match="TFDIST_SECRET"):
            tfdist.serving.load(folder, group)
        monkeypatch.setenv("TFDIST_SECRET", "another secret of the client")
        with pytest.raises(AuthenticationError, match="TFDIST_SECRET"):
            tfdist.serving.load(folder, group)
        monkeypatch.setenv("TFDIST_SECRET", "a secret of the servers")
        tfdist.serving.load(folder, group).table_connection.close()


def test_a_folder_without_a_snapshot(tmp_path):
    with pytest.raises(CheckpointError, match="expected the folder of a complete snapshot"):
        publication.latest(str(tmp_path))


def test_a_snapshot_that_was_altered(root):
    (file,) = (root / "ps-0-of-2").glob("*.rows")
    content = bytearray(file.read_bytes())
    content[-60] ^= 1
    file.write_bytes(content)
    server = TableServer(str(root), ServerGroup.of(addresses(1)), 1, Settings())
    with pytest.raises(CheckpointError, match="is damaged: expected checksum"):
        server.serve()


def test_more_replicas_than_servers(root):
    with pytest.raises(ClusterConfigError, match="expected 1 to 2 replicas"):
        TableServer(str(root), ServerGroup.of(addresses(2)), 3, Settings())


@pytest.mark.parametrize(
    "servers, index, expected",
    [
        ("a:1,b:2", None, "expected --index"),
        ("a:1,b:2", 2, "expected an index from 0 to 1, received 2"),
        ("a:1,b", 0, 'expected "host:port"'),
        (None, 0, "expected --servers"),
    ],
)
def test_wrong_command_lines(servers, index, expected, monkeypatch, capsys):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert command.serve("folder", servers, index, 1, None) == 2
    assert expected in capsys.readouterr().err


@pytest.fixture
def reader():
    """A client of a read-only server, which has no table."""
    server = ParameterServer(0, PsConfig.make(2), read_only=True)
    server.start(KEY)
    client = ParameterClient(0, 1, 7, 1, timeout=10.0)
    client.connect(0, f"127.0.0.1:{server.port}", KEY, server.incarnation, 10.0)
    yield server, client
    client.close()
    server.close()


def test_a_reader_makes_no_table(reader):
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected one of the tables"):
        reader[1].tables.create("own", TableConfig(width=2))


def test_a_reader_changes_nothing(root):
    group = addresses(1)
    with serving(root, group, 0) as server:
        connection = _connection(group)
        connection.client.tables.create("users", TableConfig(width=4))
        table = _Handle()
        none = tf.zeros([0], tf.float32)
        client = connection.client
        for kind in (EditKind.CLEAR, EditKind.REMOVE, EditKind.UPSERT):
            ids = tf.constant([] if kind == EditKind.CLEAR else [1], tf.int64)
            rows = tf.ones([1, 4]) if kind == EditKind.UPSERT else none
            with pytest.raises(tf.errors.FailedPreconditionError, match="only reads"):
                client.tables.edit(table, kind, ids, rows)
        with pytest.raises(tf.errors.FailedPreconditionError, match="only reads"):
            client.tables.lookup([table], [tf.constant([5], tf.int64)], training=True)
        found = client.tables.find(table, tf.constant([1, 5], tf.int64), values=True)
        assert found[0].numpy().tolist() == [True, False]
        assert found[1][0].numpy().tolist() == [1] * 4
        connection.close()
        assert server.number == 1


def test_as_many_readers_as_there_are_seats(reader):
    server, client = reader
    others = [ParameterClient(0, 1, 8 + i, 1, timeout=10.0) for i in range(2)]
    address = f"127.0.0.1:{server.port}"
    others[0].connect(0, address, KEY, server.incarnation, 10.0)
    with pytest.raises(tf.errors.OpError):
        others[1].connect(0, address, KEY, server.incarnation, 10.0)
    client.close()  # its seat is free again
    _until_connected(others[1], address, server)
    for other in others:
        other.close()


def test_a_server_of_workers_takes_no_updates():
    server = start_server()
    server.start(KEY)
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected a read-only server"):
        server.retain_rows("users", 1)


class _Handle:
    """A table of a client for its lookups."""

    def __init__(self) -> None:
        self.table, self.width = 0, 4
        self.variable = tf.Variable(tf.zeros([0, 4]))
        self.handle = self.variable.handle


def _connection(group):
    from tfdist.serving.tables.connection import TableConnection

    return TableConnection(group, Settings())


def _until_connected(client, address, server):
    from support.patience import wait_until

    def connects() -> bool:
        try:
            client.connect(0, address, KEY, server.incarnation, 10.0)
        except tf.errors.OpError:
            return False
        return True

    wait_until(connects, "a free seat")
