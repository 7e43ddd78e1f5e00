"""A Cluster as a tf.distribute resolver, and tf.distribute's resolvers as a Cluster."""

from __future__ import annotations

import json

import pytest
import tensorflow as tf

from tfdist.config.cluster import Cluster
from tfdist.config.resolver import ClusterResolver
from tfdist.errors import ClusterConfigError

pytestmark = pytest.mark.timeout(60)

resolvers = tf.distribute.cluster_resolver
TASKS = {"chief": ["c:1"], "worker": ["a:1", "b:2"], "ps": ["p:3"]}


def cluster_of(kind: str, index: int) -> Cluster:
    config = {"cluster": TASKS, "task": {"type": kind, "index": index}}
    return Cluster.from_tf_config(json.dumps(config))


@pytest.mark.parametrize(("kind", "index"), [("chief", 0), ("worker", 1), ("ps", 0)])
def test_presents_a_cluster(kind, index):
    resolver = ClusterResolver(cluster_of(kind, index))
    assert isinstance(resolver, resolvers.ClusterResolver)
    assert resolver.cluster_spec().as_dict() == TASKS
    assert (resolver.task_type, resolver.task_id) == (kind, index)
    assert resolver.master() == ""
    assert resolver.master("worker", 1) == "b:2"
    assert resolver.master("ps", 0, rpc_layer="grpc") == "grpc://p:3"
    assert (resolver.rpc_layer, resolver.environment) == ("", "")
    assert Cluster.from_resolver(resolver) == cluster_of(kind, index)


def test_agrees_with_tensorflows_own(monkeypatch):
    for kind, index in (("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0)):
        cluster = cluster_of(kind, index)
        monkeypatch.setenv("TF_CONFIG", cluster.tf_config())
        theirs, ours = resolvers.TFConfigClusterResolver(), ClusterResolver(cluster)
        assert ours.cluster_spec() == theirs.cluster_spec()
        assert (ours.task_type, ours.task_id) == (theirs.task_type, theirs.task_id)
        assert ours.environment == (theirs.environment or "")


def test_presents_a_local_cluster_as_tensorflow_does(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    theirs, ours = resolvers.TFConfigClusterResolver(), ClusterResolver(Cluster.local())
    assert ours.cluster_spec() == theirs.cluster_spec()
    assert (ours.task_type, ours.task_id, ours.master()) == (None, None, "")
    assert (theirs.task_type, theirs.task_id, theirs.master()) == (None, None, "")


def test_tensorflow_accepts_it():
    resolver = ClusterResolver(Cluster.local())
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    assert strategy.cluster_resolver is resolver
    assert strategy.num_replicas_in_sync == 1
    union = resolvers.UnionResolver(ClusterResolver(cluster_of("worker", 1)))
    assert (union.task_type, union.task_id) == ("worker", 1)
    assert union.cluster_spec().as_dict() == TASKS


def test_task_can_be_set_as_on_any_resolver():
    resolver = ClusterResolver(cluster_of("worker", 0))
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 1, "grpc"
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    assert resolver.master("worker", 1) == "grpc://b:2"


def test_accelerators():
    gpus = len(tf.config.list_logical_devices("GPU"))
    resolver = ClusterResolver(cluster_of("worker", 1))
    assert resolver.num_accelerators().get("GPU", 0) == gpus
    assert resolver.num_accelerators("worker", 1).get("GPU", 0) == gpus
    given = ClusterResolver(cluster_of("worker", 1), num_accelerators={"GPU": 4})
    assert given.num_accelerators("worker", 1) == {"GPU": 4}


def test_from_tf_config_resolver(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", cluster_of("worker", 1).tf_config())
    assert Cluster.from_resolver(resolvers.TFConfigClusterResolver()) == cluster_of("worker", 1)
    other = resolvers.TFConfigClusterResolver(task_type="ps", task_id="0")
    assert Cluster.from_resolver(other) == cluster_of("ps", 0)
    monkeypatch.delenv("TF_CONFIG")
    assert Cluster.from_resolver(resolvers.TFConfigClusterResolver()).is_local


def test_from_simple_resolver():
    spec = tf.train.ClusterSpec(TASKS)
    simple = resolvers.SimpleClusterResolver(spec, task_type="worker", task_id=0, rpc_layer="grpc")
    assert Cluster.from_resolver(simple) == cluster_of("worker", 0)
    legacy = tf.train.ClusterSpec({"master": ["m:1"], "worker": ["a:1"]})
    simple = resolvers.SimpleClusterResolver(legacy, task_type="master", task_id=0)
    assert Cluster.from_resolver(simple).chief == ("m:1",)
    assert Cluster.from_resolver(resolvers.SimpleClusterResolver(tf.train.ClusterSpec({}))).is_local


@pytest.mark.parametrize(
    ("tasks", "kind", "index", "message"),
    [
        (
            TASKS,
            None,
            None,
            "SimpleClusterResolver: expected task_type and task_id of this process",
        ),
        (
            TASKS,
            "worker",
            2,
            "SimpleClusterResolver: task index out of range: this task is worker 2",
        ),
        (TASKS, "boss", 0, "SimpleClusterResolver: unknown role 'boss'"),
        ({"worker": {1: "a:1"}}, "worker", 1, 'expected cluster "worker" to be a list'),
        ({"worker": ["a"]}, "worker", 0, "SimpleClusterResolver: .* received 'a': it has no port"),
    ],
)
def test_from_bad_simple_resolver(tasks, kind, index, message):
    spec = tf.train.ClusterSpec(tasks)
    simple = resolvers.SimpleClusterResolver(spec, task_type=kind, task_id=index)
    with pytest.raises(ClusterConfigError, match=message):
        Cluster.from_resolver(simple)


@pytest.fixture(name="slurm_step")
def _slurm_step(monkeypatch):
    """A Slurm step of 4 tasks on nodes n1, n2 and n5; set SLURM_PROCID for the task."""
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n[1-2,5]")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "2,1(x2)")
    monkeypatch.delenv("TF_CONFIG", raising=False)
    return lambda procid: monkeypatch.setenv("SLURM_PROCID", str(procid))


@pytest.mark.parametrize(
    ("procid", "name", "rank", "address"),
    [
        (0, "chief", 0, "n1:7000"),
        (1, "ps 0", None, "n1:7001"),
        (2, "worker 0", 1, "n2:7000"),
        (3, "worker 1", 2, "n5:7000"),
    ],
)
def test_from_slurm_resolver(slurm_step, procid, name, rank, address):
    slurm_step(procid)
    slurm = resolvers.SlurmClusterResolver(
        jobs={"chief": 1, "ps": 1, "worker": 2},
        port_base=7000,
        gpus_per_node=2,
        gpus_per_task=1,
        auto_set_gpu=False,
    )
    cluster = Cluster.from_resolver(slurm)
    assert (cluster.task_name, cluster.rank, cluster.address) == (name, rank, address)
    assert cluster.training_addresses == ("n1:7000", "n2:7000", "n5:7000")
    assert cluster.ps == ("n1:7001",)


def test_a_resolver_that_fails(slurm_step):
    # TensorFlow's Slurm resolver steps through the GPUs of a node, also when there are none.
    slurm_step(0)
    slurm = resolvers.SlurmClusterResolver(gpus_per_node=0, auto_set_gpu=False)
    with pytest.raises(ClusterConfigError, match="SlurmClusterResolver: cannot describe .*range"):
        Cluster.from_resolver(slurm)


def test_without_a_cluster_it_is_that_of_the_environment(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", cluster_of("worker", 1).tf_config())
    assert ClusterResolver().cluster == cluster_of("worker", 1)
    monkeypatch.delenv("TF_CONFIG")
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost")):
        monkeypatch.setenv(name, value)
    assert ClusterResolver().cluster_spec().as_dict() == {
        "worker": ["127.0.0.1:29501", "127.0.0.1:29502"]
    }
