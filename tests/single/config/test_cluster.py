"""`Cluster`: valid TF_CONFIGs, and the errors of invalid ones."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from tfdist import errors
from tfdist.config.cluster import Cluster
from tfdist.errors import ClusterConfigError

pytestmark = pytest.mark.timeout(30)

WORKERS = {"worker": ["a:1", "b:2", "c:3"]}
ALL_ROLES = {"chief": ["z:9"], "worker": ["a:1", "b:2"], "ps": ["p:4"], "evaluator": ["e:5"]}
DATA_TASKS = {**WORKERS, "data_dispatcher": ["d:6"], "data_worker": ["e:7", "f:8"]}


def tf_config(cluster, kind, index, **more) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}, **more})


@pytest.mark.parametrize(
    ("cluster", "kind", "index", "rank", "size", "name", "address"),
    [
        (WORKERS, "worker", 0, 0, 3, "worker 0", "a:1"),
        (WORKERS, "worker", 2, 2, 3, "worker 2", "c:3"),
        (ALL_ROLES, "chief", 0, 0, 3, "chief", "z:9"),
        (ALL_ROLES, "worker", 0, 1, 3, "worker 0", "a:1"),
        (ALL_ROLES, "worker", 1, 2, 3, "worker 1", "b:2"),
        (ALL_ROLES, "ps", 0, None, 3, "ps 0", "p:4"),
        (ALL_ROLES, "evaluator", 0, None, 3, "evaluator 0", "e:5"),
        (WORKERS, "evaluator", 0, None, 3, "evaluator 0", None),
        (DATA_TASKS, "worker", 1, 1, 3, "worker 1", "b:2"),
        (DATA_TASKS, "data_dispatcher", 0, None, 3, "data_dispatcher", "d:6"),
        (DATA_TASKS, "data_worker", 1, None, 3, "data_worker 1", "f:8"),
        ({"master": ["m:1"], "worker": ["a:1"]}, "master", 0, 0, 2, "chief", "m:1"),
        ({"master": ["m:1"], "worker": ["a:1"]}, "worker", 0, 1, 2, "worker 0", "a:1"),
        ({"worker": ["[::1]:7"], "ps": []}, "worker", 0, 0, 1, "worker 0", "[::1]:7"),
        ({"chief": ["only:1"]}, "chief", 0, 0, 1, "chief", "only:1"),
    ],
)
def test_place(cluster, kind, index, rank, size, name, address):
    parsed = Cluster.from_tf_config(tf_config(cluster, kind, index))
    assert (parsed.rank, parsed.world_size, parsed.task_name) == (rank, size, name)
    assert parsed.address == address
    assert parsed.is_chief == (rank == 0)
    assert parsed.is_data_task == kind.startswith("data_")
    assert not parsed.is_local


def test_ranks_are_chief_first_then_workers():
    cluster = Cluster.from_tf_config(tf_config(ALL_ROLES, "ps", "0"))
    assert cluster.training_addresses == ("z:9", "a:1", "b:2")
    assert [cluster.name_of_rank(r) for r in range(3)] == ["chief", "worker 0", "worker 1"]
    assert [cluster.address_of_rank(r) for r in range(3)] == ["z:9", "a:1", "b:2"]
    assert cluster.describe_rank(2) == "worker 1 at b:2"
    for rank in (-1, 3):
        with pytest.raises(IndexError, match=rf"rank {rank} is outside \[0, 3\)"):
            cluster.name_of_rank(rank)


def test_descriptions_of_many_ranks_are_short():
    cluster = Cluster(workers=tuple(f"h:{port}" for port in range(1, 1001)), task_index=0)
    assert cluster.describe_ranks([1, 5]) == "worker 1 at h:2, worker 5 at h:6"
    assert cluster.describe_ranks([]) == ""
    assert cluster.describe_ranks(range(8)).endswith("worker 6 at h:7, worker 7 at h:8")
    assert cluster.describe_ranks(range(1000)).endswith("worker 7 at h:8, and 992 more")


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        " \n",
        "{}",
        '{"task": {}}',
        '{"cluster": {}}',
        '{"task": {"index": 0}}',
        '{"environment": "cloud", "rpc_layer": "grpc"}',
        '{"cluster": {}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {}, "task": {"type": "master", "index": "0"}}',
    ],
)
def test_local(text):
    cluster = Cluster.from_tf_config(text)
    assert cluster == Cluster.local()
    assert cluster.is_local and cluster.is_chief
    assert (cluster.rank, cluster.world_size, cluster.address) == (0, 1, None)
    assert (cluster.task_type, cluster.task_index) == ("worker", 0)
    assert cluster.training_addresses == () and cluster.as_dict() == {}
    assert cluster.describe_rank(0) == "worker 0"
    assert cluster.tf_config() == "{}"


def test_other_keys_and_numeric_strings_are_allowed():
    text = tf_config(WORKERS, "worker", " 1 ", environment="cloud", rpc_layer="grpc", job={})
    assert Cluster.from_tf_config(text).rank == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{'cluster'", "TF_CONFIG: expected JSON such as .* received \"{'cluster'\" .*line 1"),
        ("[1, 2]", r"TF_CONFIG: expected the whole text to be a JSON object, received \[1, 2\]"),
        ("null", "TF_CONFIG: expected the whole text to be a JSON object, received null"),
        ('{"cluster": []}', r"TF_CONFIG: expected cluster to be a JSON object, received \[\]"),
        ('{"cluster": {}, "task": 3}', "TF_CONFIG: expected task to be a JSON object, received 3"),
        (
            '{"task": {"type": "worker", "index": 1}}',
            'TF_CONFIG: "cluster" is missing or empty; .* received only "task": .*"index": 1',
        ),
        (
            '{"task": {"type": "worker", "index": 0}}',
            'TF_CONFIG: "cluster" is missing or empty',
        ),
        (
            '{"cluster": {}, "task": {"type": "ps", "index": 0}}',
            'TF_CONFIG: "cluster" is missing or empty',
        ),
        (
            json.dumps({"cluster": WORKERS}),
            'TF_CONFIG: "task" is missing; .* one of chief, worker, ps, evaluator.*"task": null',
        ),
        (
            json.dumps({"cluster": WORKERS, "task": {"index": 0}}),
            'TF_CONFIG: "task.type" is missing; .*received "task": {"index": 0}',
        ),
        (
            json.dumps({"cluster": WORKERS, "task": {"type": "worker"}}),
            'TF_CONFIG: "task.index" is missing',
        ),
        (
            tf_config({"wroker": ["a:1"]}, "worker", 0),
            "TF_CONFIG: unknown role 'wroker' in cluster; expected one of chief, worker, ps",
        ),
        (
            tf_config(WORKERS, "trainer", 0),
            "TF_CONFIG: unknown role 'trainer' in task.type; expected one of chief",
        ),
        (tf_config(WORKERS, ["worker"], 0), r'TF_CONFIG: unknown role \["worker"\] in task.type'),
        (
            tf_config(WORKERS, "worker", 3),
            "TF_CONFIG: task index out of range: .* is worker 3, but the cluster has worker 0..2",
        ),
        (tf_config(WORKERS, "worker", -1), "this task is worker -1, but the cluster has worker"),
        (tf_config(WORKERS, "chief", 0), "this task is chief 0, but the cluster has no chief"),
        (tf_config(WORKERS, "evaluator", -1), "index out of range: this task is evaluator -1"),
        (tf_config(ALL_ROLES, "evaluator", 1), "but the cluster has evaluator 0..0"),
        (
            tf_config(WORKERS, "worker", "one"),
            "TF_CONFIG: expected task index to be a whole number, received 'one'",
        ),
        (tf_config(WORKERS, "worker", 1.0), "to be a whole number, received 1.0"),
        (tf_config(WORKERS, "worker", True), "to be a whole number, received true"),
        (
            tf_config({"worker": "a:1"}, "worker", 0),
            'TF_CONFIG: expected cluster "worker" to be a list of "host:port", received \'a:1\'',
        ),
        (
            tf_config({"worker": {"0": "a:1"}}, "worker", 0),
            'expected cluster "worker" to be a list of "host:port", received {"0": "a:1"}',
        ),
        (
            tf_config({"worker": ["a:1", "b"]}, "worker", 0),
            "the address of worker 1 to be \"host:port\", received 'b': it has no port",
        ),
        (tf_config({"worker": ["[::1]"]}, "worker", 0), "received '\\[::1\\]': it has no port"),
        (tf_config({"worker": ["a:x"]}, "worker", 0), "'a:x': the port is not a number"),
        (tf_config({"worker": ["a:"]}, "worker", 0), "'a:': the port is not a number"),
        (tf_config({"worker": ["a:0"]}, "worker", 0), "'a:0': the port is outside 1..65535"),
        (tf_config({"worker": ["a:65536"]}, "worker", 0), "the port is outside 1..65535"),
        (tf_config({"worker": [":2222"]}, "worker", 0), "':2222': the host is not a name"),
        (tf_config({"worker": ["grpc://a:1"]}, "worker", 0), "the host is not a name"),
        (tf_config({"worker": ["::1:2222"]}, "worker", 0), "IPv6 address in brackets"),
        (tf_config({"worker": [17]}, "worker", 0), "received 17: it is not a string"),
        (
            tf_config({"worker": ["a:1", "b:2"], "ps": ["A:1"]}, "worker", 0),
            "TF_CONFIG: duplicate address A:1: .* received it for worker 0 and for ps 0",
        ),
        (
            tf_config({"chief": ["a:1", "b:2"]}, "chief", 0),
            "TF_CONFIG: expected at most one chief .* received 2: a:1, b:2",
        ),
        (
            tf_config({"chief": ["a:1"], "master": ["b:2"]}, "chief", 0),
            "TF_CONFIG: expected at most one chief",
        ),
        (
            tf_config({**WORKERS, "data_dispatcher": ["d:1", "e:2"]}, "worker", 0),
            "TF_CONFIG: expected at most one data_dispatcher, received 2: d:1, e:2",
        ),
        (
            tf_config({**WORKERS, "data_dispatcher": ["d:1"]}, "worker", 0),
            "at least one data_worker, or neither, received 1 data_dispatcher and 0 data_worker",
        ),
        (
            tf_config({**WORKERS, "data_worker": ["d:1", "e:2"]}, "worker", 0),
            "expected one data_dispatcher .* received 0 data_dispatcher and 2 data_worker",
        ),
        (
            tf_config({"ps": ["a:1"]}, "ps", 0),
            "TF_CONFIG: expected a chief or at least one worker, received only ps",
        ),
        ("[" * 100_000, "TF_CONFIG: expected JSON such as"),
        ('{"task": {"index": ' + 5000 * "1" + "}}", "TF_CONFIG: expected JSON such as"),
        (
            tf_config({"worker": ["a:1"]}, "worker", 5000 * "1"),
            "TF_CONFIG: expected task index to be a whole number",
        ),
        (tf_config({"worker": ["a:" + 5000 * "1"]}, "worker", 0), "the port is outside 1..65535"),
    ],
)
def test_bad_tf_config(text, message):
    with pytest.raises(ClusterConfigError, match=message) as caught:
        Cluster.from_tf_config(text)
    assert str(caught.value).startswith("TF_CONFIG: ")


def test_a_huge_value_is_cut_in_messages():
    with pytest.raises(ClusterConfigError) as caught:
        Cluster.from_tf_config("x" * 100_000)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("cluster", [WORKERS, ALL_ROLES, DATA_TASKS, {"chief": ["c:1"]}])
def test_tf_config_round_trip(cluster):
    for role, addresses in cluster.items():
        for index in range(len(addresses)):
            parsed = Cluster.from_tf_config(tf_config(cluster, role, index))
            assert parsed.as_dict() == cluster
            assert Cluster.from_tf_config(parsed.tf_config()) == parsed


def test_cluster_is_frozen_hashable_and_checked_when_made_directly():
    cluster = Cluster(workers=["a:1", "b:2"], task_index=1)
    assert cluster.workers == ("a:1", "b:2") and cluster in {cluster}
    with pytest.raises(dataclasses.FrozenInstanceError):
        cluster.task_index = 0
    with pytest.raises(ClusterConfigError, match="Cluster: duplicate address a:1"):
        Cluster(workers=("a:1", "a:1"))
    with pytest.raises(ClusterConfigError, match="Cluster: .* this task is worker 2"):
        Cluster(workers=("a:1", "b:2"), task_index=2)
    with pytest.raises(ClusterConfigError, match="unknown role 'boss'"):
        Cluster(workers=("a:1",), task_type="boss")
    with pytest.raises(ClusterConfigError, match="the only task is worker 0, received ps 0"):
        Cluster(task_type="ps")


def test_environment_is_read_once_and_only_when_asked(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", tf_config(WORKERS, "worker", 1))
    assert Cluster.from_environment().rank == 1
    assert Cluster.from_environment({}).is_local
    assert Cluster.from_environment({"TF_CONFIG": tf_config(WORKERS, "worker", 2)}).rank == 2


def test_errors_derive_from_the_root_and_a_builtin():
    builtin = {
        "ClusterConfigError": ValueError,
        "NotInitializedError": RuntimeError,
        "RendezvousTimeoutError": TimeoutError,
        "AuthenticationError": PermissionError,
        "CertificateError": ValueError,
        "TlsLibraryError": OSError,
        "AddressInUseError": OSError,
        "CheckpointError": ValueError,
        "ModelDirError": OSError,
        "PredictionError": ValueError,
        "RayJobError": RuntimeError,
        "OpLibraryError": ImportError,
        "UnsupportedKerasError": ImportError,
        "UnsupportedTensorFlowError": ImportError,
    }
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.TfdistError)
    }
    assert defined == {"TfdistError", *builtin}
    for name, base in builtin.items():
        assert issubclass(getattr(errors, name), base)
        assert name in errors.__doc__ and f"({base.__name__})" in errors.__doc__


def test_cluster_and_control_plane_need_no_tensorflow():
    code = (
        "import sys, tfdist.config.cluster, tfdist.control; "
        "assert 'tensorflow' not in sys.modules, 'tensorflow was imported'"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=25,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
