"""Which cluster each launcher's variables describe, what wins, and what contradicts."""

from __future__ import annotations

import logging

import pytest

from tfdist.config import cluster as cluster_module
from tfdist.config import environments
from tfdist.config.cluster import Cluster
from tfdist.config.environments import ports
from tfdist.config.environments.launched import HostExchange
from tfdist.errors import ClusterConfigError

pytestmark = pytest.mark.timeout(30)

TF_CONFIG = Cluster(workers=("a:1", "b:2", "c:3"), task_index=2).tf_config()
# As srun sets them: three tasks on two nodes.
STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_JOB_NODELIST": "n[1-9]",
    "SLURM_TASKS_PER_NODE": "2(x9)",
    "SLURM_NODEID": "0",
    "SLURM_LOCALID": "1",
}
PORT = ports.port_of(7 * 17, 0)
# As Open MPI, MPICH's mpiexec and torchrun set them.
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "1",
    "PMIX_NAMESPACE": "651427841",
}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1"}
TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "host0",
    "MASTER_PORT": "4000",
    "TORCHELASTIC_RUN_ID": "none",
}
INDEXED_JOB = {"JOB_COMPLETION_INDEX": "1", "TFDIST_WORKERS": "2", "HOSTNAME": "train-1"}
JOBSET = {**INDEXED_JOB, "JOBSET_NAME": "set", "REPLICATED_JOB_NAME": "worker"}
del JOBSET["HOSTNAME"]


def roles_of(environ):
    detected = environments.detect(environ)
    assert detected.exchange is None and not detected.warnings
    cluster = Cluster.from_detected(detected)
    return detected.source, cluster.as_dict(), cluster.task_name


def local(first: int, count: int) -> list[str]:
    return [f"127.0.0.1:{first + index}" for index in range(count)]


SLURM_TASKS = {"worker": [f"n1:{PORT}", f"n1:{PORT + 1}", f"n2:{PORT}"]}
MPI_PORT = ports.port_of(ports.block_of("651427841"), 0)


@pytest.mark.parametrize(
    ("environ", "source", "tasks", "name"),
    [
        ({"TF_CONFIG": TF_CONFIG}, "TF_CONFIG", {"worker": ["a:1", "b:2", "c:3"]}, "worker 2"),
        (STEP, "Slurm", SLURM_TASKS, "worker 1"),
        (
            {**STEP, "SLURM_DISTRIBUTION": "cyclic", "SLURM_NODEID": "1", "SLURM_LOCALID": "0"},
            "Slurm",
            {"worker": [f"n1:{PORT}", f"n2:{PORT}", f"n1:{PORT + 1}"]},
            "worker 1",
        ),
        (
            {**STEP, "SLURM_DISTRIBUTION": "plane", "SLURM_DIST_PLANESIZE": "2"},
            "Slurm",
            SLURM_TASKS,
            "worker 1",
        ),
        (
            {**STEP, "SLURM_STEP_RESV_PORTS": "12000-12001"},
            "Slurm",
            {"worker": ["n1:12000", "n1:12001", "n2:12000"]},
            "worker 1",
        ),
        (
            {**STEP, "SLURM_STEP_ID": "3", "TFDIST_PS": "1"},
            "Slurm",
            {
                "chief": [f"n1:{PORT + 3 * 32}"],
                "worker": [f"n1:{PORT + 3 * 32 + 1}"],
                "ps": [f"n2:{PORT + 3 * 32}"],
            },
            "worker 0",
        ),
        (
            {**STEP, "TFDIST_PS": "1", "TFDIST_ELASTIC": "1:2"},
            "Slurm",
            {"worker": SLURM_TASKS["worker"][:2], "ps": SLURM_TASKS["worker"][2:]},
            "worker 1",
        ),
        # One node: no other host needs to reach them.
        (
            {**STEP, "SLURM_STEP_NODELIST": "n4", "SLURM_STEP_TASKS_PER_NODE": "3"},
            "Slurm",
            {"worker": local(PORT, 3)},
            "worker 1",
        ),
        (OPEN_MPI, "Open MPI", {"worker": local(MPI_PORT, 2)}, "worker 1"),
        (
            {**PMI, "MASTER_PORT": "5000"},
            "MPI (PMI)",
            {"worker": ["127.0.0.1:5001", "127.0.0.1:5002"]},
            "worker 1",
        ),
        (
            {"PMIX_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "5000"},
            "MPI (PMIx)",
            {"worker": ["127.0.0.1:5001", "127.0.0.1:5002"]},
            "worker 0",
        ),
        (
            INDEXED_JOB,
            "Kubernetes",
            {"worker": ["train-0.train:2222", "train-1.train:2222"]},
            "worker 1",
        ),
        (
            {**INDEXED_JOB, "TFDIST_PS": "1", "TFDIST_SERVICE": "svc", "HOSTNAME": "train-1.svc.x"},
            "Kubernetes",
            {
                "chief": ["train-0.svc:2222"],
                "worker": ["train-1.svc:2222"],
                "ps": ["train-2.svc:2222"],
            },
            "worker 0",
        ),
        (
            JOBSET,
            "Kubernetes",
            {"worker": ["set-worker-0-0.set:2222", "set-worker-0-1.set:2222"]},
            "worker 1",
        ),
        (
            {
                **JOBSET,
                "REPLICATED_JOB_NAME": "ps",
                "TFDIST_PS": "1",
                "JOB_COMPLETION_INDEX": "0",
            },
            "Kubernetes",
            {
                "chief": ["set-worker-0-0.set:2222"],
                "worker": ["set-worker-0-1.set:2222"],
                "ps": ["set-ps-0-0.set:2222"],
            },
            "ps 0",
        ),
        (
            {**JOBSET, "JOB_GLOBAL_INDEX": "1", "JOB_COMPLETION_INDEX": "0"},
            "Kubernetes",
            {"worker": ["set-worker-0-0.set:2222", "set-worker-1-0.set:2222"]},
            "worker 1",
        ),
        (TORCHRUN, "torchrun", {"worker": local(4001, 2)}, "worker 1"),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"},
            "torchrun",
            {"worker": local(29501, 2)},
            "worker 1",
        ),
    ],
)
def test_found(environ, source, tasks, name):
    assert roles_of(environ) == (source, tasks, name)


@pytest.mark.parametrize(
    ("environ", "source"),
    [
        # An explicit cluster, or explicitly none, needs no other variable.
        ({"TF_CONFIG": TF_CONFIG, **STEP, **TORCHRUN}, "TF_CONFIG"),
        ({"TF_CONFIG": "{}", **STEP}, "TF_CONFIG"),
        ({"TF_CONFIG": " ", **STEP}, "Slurm"),
        # A launcher inside of a step, and one around another that says the same.
        ({**STEP, **OPEN_MPI}, "Open MPI"),
        ({**STEP, **PMI}, "MPI (PMI)"),
        ({**STEP, **TORCHRUN}, "torchrun"),
        ({**OPEN_MPI, **TORCHRUN}, "torchrun"),
        ({**STEP, "PMI_RANK": "1", "PMI_SIZE": "3"}, "Slurm"),
        ({**STEP, "PMIX_RANK": "1"}, "Slurm"),
        ({**STEP, "RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "elsewhere"}, "Slurm"),
        ({**OPEN_MPI, "RANK": "1", "WORLD_SIZE": "2"}, "Open MPI"),
        ({**INDEXED_JOB, "RANK": "1", "WORLD_SIZE": "2"}, "Kubernetes"),
        # A job of one process says nothing of the processes it starts.
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", **TORCHRUN}, "torchrun"),
        (
            {**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "RANK": "1"}
            | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
            "torchrun",
        ),
    ],
)
def test_what_wins(environ, source):
    assert environments.detect(environ).source == source


@pytest.mark.parametrize(
    ("environ", "source", "warned"),
    [
        ({}, "nothing", ""),
        ({"RANK": "3"}, "nothing", ""),
        ({"WORLD_SIZE": "3", "MASTER_ADDR": "a"}, "nothing", ""),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "torchrun", ""),
        (
            {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1"}
            | dict.fromkeys(("OMPI_COMM_WORLD_RANK", "PMIX_RANK"), "0"),
            "Open MPI",
            "",
        ),
        # Pods that have nothing to do with each other.
        ({"JOB_COMPLETION_INDEX": "3", "HOSTNAME": "sweep-3"}, "nothing", ""),
        ({"JOB_COMPLETION_INDEX": "3", "JOBSET_NAME": "set"}, "nothing", "TFDIST_WORKERS"),
        # `srun --pty bash`; a batch script; a shell of salloc, and in its interactive step.
        ({**STEP, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, "Slurm", ""),
        (
            {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"},
            "nothing",
            "SLURM_STEP_ID is not set",
        ),
        (
            {"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "1(x2)"},
            "nothing",
            "SLURM_PROCID is not set",
        ),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, "nothing", ""),
        (
            {**STEP, "SLURM_STEP_ID": str(0xFFFFFFFA), "SLURM_PROCID": "0"},
            "nothing",
            "is the step of a batch script or a shell",
        ),
        ({"TFDIST_PS": "1"}, "nothing", "TFDIST_PS=1 ignored"),
    ],
)
def test_trains_alone(environ, source, warned, caplog):
    detected = environments.detect(environ)
    assert Cluster.from_detected(detected) == Cluster.local() and detected.source == source
    assert [warned in text for text in detected.warnings] == [True] * bool(warned)
    cluster_module._log_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert Cluster.from_environment(environ).is_local
        assert Cluster.from_environment(environ).is_local
    assert [warned in text for text in caplog.messages] == [True] * bool(warned)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {**STEP, "WORLD_SIZE": "2", "RANK": "1"},
            "Slurm and torchrun contradict each other: SLURM_STEP_NUM_TASKS=3, but WORLD_SIZE=2",
        ),
        (
            {**STEP, "SLURM_STEP_NUM_TASKS": "", "WORLD_SIZE": "1", "RANK": "0"},
            "SLURM_NTASKS=3, but WORLD_SIZE=1",
        ),
        ({**STEP, "WORLD_SIZE": "3", "RANK": "2"}, "SLURM_PROCID=1, but RANK=2"),
        ({**STEP, "PMI_SIZE": "2", "PMI_RANK": "1"}, "SLURM_STEP_NUM_TASKS=3, but PMI_SIZE=2"),
        (
            {**OPEN_MPI, "WORLD_SIZE": "4", "RANK": "1"},
            "OMPI_COMM_WORLD_SIZE=2, but WORLD_SIZE=4",
        ),
        ({**OPEN_MPI, "PMIX_RANK": "0"}, "OMPI_COMM_WORLD_RANK=1, but PMIX_RANK=0"),
        ({**INDEXED_JOB, "WORLD_SIZE": "8", "RANK": "1"}, "TFDIST_WORKERS=2, but WORLD_SIZE=8"),
        ({**STEP, "TFDIST_WORKERS": "3", "TFDIST_PS": "1"}, "=3, but TFDIST_WORKERS=3 and"),
        ({**STEP, "TFDIST_PS": "3"}, "TFDIST_PS: expected fewer parameter servers .*3 of 3"),
        ({**STEP, "TFDIST_PS": "-1"}, "TFDIST_PS: expected a whole number, .* received '-1'"),
        ({**STEP, "SLURM_PROCID": "3"}, r"expected SLURM_PROCID in 0..2.*received SLURM_PROCID=3"),
        ({**STEP, "SLURM_STEP_NODELIST": "n1"}, "received 1 nodes and 2 counts"),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, "SLURM_STEP_NUM_TASKS=3 .*received 4"),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": ""}, "expected SLURM_STEP_TASKS_PER_NODE beside"),
        ({**STEP, "SLURM_NODEID": "1"}, "task 1 to be number 1 on node 0.*SLURM_NODEID=1"),
        ({**STEP, "SLURM_DISTRIBUTION": "arbitrary"}, "SLURM_DISTRIBUTION to be block, cyclic or"),
        ({**STEP, "SLURM_STEP_RESV_PORTS": "12000"}, "received 1 .* for 2 tasks on n1"),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "99999999"}, "1 to 65536 processes"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "expected 1 to 65536 processes, received WORLD_SIZE=0"),
        ({**JOBSET, "REPLICATED_JOB_NAME": "ps"}, "expected TFDIST_PS above 0"),
        ({"PMIX_RANK": "1"}, "MPI .PMIx.: PMIX_RANK=1 is set, but no variable says how many"),
        (
            {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
            "Open MPI: expected MASTER_ADDR, .*OMPI_COMM_WORLD_SIZE=2, "
            "OMPI_COMM_WORLD_LOCAL_SIZE=1.*received none",
        ),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "expected MASTER_ADDR.*no MPI_LOCALNRANKS"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "torchrun: expected MASTER_ADDR"),
        ({**TORCHRUN, "MASTER_PORT": "65533"}, "expected MASTER_PORT in 1..65532"),
        ({**TORCHRUN, "MASTER_PORT": "0"}, "expected MASTER_PORT in 1"),
        ({**TORCHRUN, "MASTER_PORT": "x"}, "MASTER_PORT: expected a whole number"),
        ({**TORCHRUN, "RANK": "one"}, "RANK: expected a whole number, 0 or more, received 'one'"),
        (
            {**TORCHRUN, "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "a b"},
            "MASTER_ADDR: expected the host of rank 0, received 'a b'",
        ),
        ({**INDEXED_JOB, "HOSTNAME": "train-2"}, "HOSTNAME to be the pod's name JOB-1.*train-2"),
        ({**INDEXED_JOB, "JOB_COMPLETION_INDEX": "2"}, "JOB_COMPLETION_INDEX in 0..1"),
        ({**INDEXED_JOB, "TFDIST_SERVICE": "a/b"}, "TFDIST_SERVICE: expected the name"),
        ({**JOBSET, "REPLICATED_JOB_NAME": "node"}, "REPLICATED_JOB_NAME to be worker or ps"),
        ({**JOBSET, "HOSTNAME": "set-worker-0-0"}, "pod's name to be set-worker-0-1"),
        (
            {**JOBSET, "REPLICATED_JOB_NAME": "ps", "TFDIST_PS": "1", "JOB_GLOBAL_INDEX": "0"},
            r"JOB_GLOBAL_INDEX in 2..2 for REPLICATED_JOB_NAME=ps, received 0",
        ),
    ],
)
def test_contradictions_and_errors(environ, message):
    with pytest.raises(ClusterConfigError, match=message):
        Cluster.from_environment(environ)


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "worker 1"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "MASTER_ADDR": "host0"}, "worker 1"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "worker 0"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "1"}, "worker 1"),
    ],
)
def test_a_process_that_needs_no_other_one_asks_none(environ, name):
    cluster = Cluster.from_environment(environ, needs_others=False)
    assert cluster.task_name == name and len(cluster.workers) == 2
    assert {address.partition(":")[0] for address in cluster.workers} == {"127.0.0.1"}


@pytest.mark.parametrize("index", ["1", "2", "11"])
@pytest.mark.parametrize("environ", [INDEXED_JOB, {**JOBSET, "TFDIST_PS": "0"}])
def test_a_job_of_pods_that_need_no_other_one_may_grow(environ, index):
    environ = {**environ, "JOB_COMPLETION_INDEX": index}
    if "HOSTNAME" in environ:
        environ["HOSTNAME"] = f"train-{index}"
    cluster = Cluster.from_environment(environ, needs_others=False)
    assert cluster.task_name == f"worker {index}"
    assert len(cluster.workers) == max(2, int(index) + 1)


@pytest.mark.parametrize(
    ("environ", "exchange"),
    [
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "1"}, HostExchange(1, 2, 0, "host0", 4001)),
        (
            {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "MASTER_ADDR": "host0"},
            HostExchange(1, 2, 0, "host0", MPI_PORT),
        ),
        (
            {"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "fd00::1", "TFDIST_PS": "1"},
            HostExchange(2, 3, 1, "[fd00::1]", 29501),
        ),
    ],
)
def test_several_hosts_meet_at_rank_0(environ, exchange):
    detected = environments.detect(environ)
    assert (detected.tasks, detected.tf_config, detected.exchange) == (None, None, exchange)
    assert exchange.address == f"{exchange.host}:{exchange.first_port + exchange.size}"


def test_all_tasks_of_a_step_find_the_same_cluster():
    layout = [(0, 0), (0, 1), (1, 0)]
    found = []
    for rank, (node, number) in enumerate(layout):
        own = {"SLURM_PROCID": rank, "SLURM_NODEID": node, "SLURM_LOCALID": number}
        cluster = Cluster.from_environment(STEP | {name: str(v) for name, v in own.items()})
        assert cluster.rank == rank
        found.append(cluster.training_addresses)
    assert found == [tuple(SLURM_TASKS["worker"])] * 3


def test_ports_stay_in_their_range():
    for block in (0, 1, 511, 512, 10**12):
        for offset in (0, 31, 32, 40_000):
            assert ports.FIRST <= ports.port_of(block, offset) <= ports.LAST
    # Steps of one job, and of the next one, do not share a port.
    steps = {ports.port_of(17 * job + step, 0) for job in (41, 42) for step in range(17)}
    assert len(steps) == 34


def test_notes_say_what_was_read_and_ignored():
    notes = "\n".join(environments.detect({**STEP, **OPEN_MPI}).notes)
    assert "OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=2" in notes
    assert "SLURM_JOB_ID=7 ignored: mpirun has started this process" in notes
    notes = "\n".join(environments.detect({"TF_CONFIG": TF_CONFIG, **STEP, "PMIX_RANK": "x"}).notes)
    assert "SLURM_PROCID=1, SLURM_STEP_NUM_TASKS=3: ignored, since TF_CONFIG is set" in notes
    assert "PMIX_RANK" in notes
