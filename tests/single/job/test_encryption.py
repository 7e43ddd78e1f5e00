"""The data plane gets the certificate before the first connection, and each renewed one."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import types

import pytest

from support.authority import Authority
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.config.tls import FIXED_NAME, Tls
from tfdist.control.tls import credentials
from tfdist.errors import CertificateError, ClusterConfigError
from tfdist.job import encryption, process
from tfdist.job.start import serve
from tfdist.serving.tables.server import TableServer
from tfdist.serving.tables.server_group import ServerGroup

SECRET = b"a8f5f167f44f4964e6c998dee827110c"


@pytest.fixture
def configured(monkeypatch):
    """The arguments of each call that configures the data plane."""
    calls = []
    module = types.SimpleNamespace(configure=lambda *given: calls.append(given))
    monkeypatch.setitem(sys.modules, "tfdist.ops.tls", module)
    import tfdist.ops

    monkeypatch.setattr(tfdist.ops, "tls", module, raising=False)
    encryption._encrypt.cache_clear()
    yield calls
    encryption._encrypt.cache_clear()


def test_the_certificate_of_the_secret(configured):
    settings = Settings(secret=SECRET, tls=Tls(secret=SECRET))
    for _ in range(2):
        encryption.encrypt(settings, "worker 0")
    material = credentials.credentials_of(settings.tls).material
    assert configured == [(material.certificate, material.key, material.authority, FIXED_NAME)]


def test_renewed_files(configured, tmp_path, monkeypatch):
    monkeypatch.setattr(credentials, "_LOOK_INTERVAL", 0.0)
    lab = Authority(tmp_path)
    tls = lab.issue()
    encryption.encrypt(Settings(tls=tls), "worker 0")
    lab.issue()
    material = credentials.credentials_of(tls).material
    (first, second) = configured
    assert first[3] is second[3] is None and first[0] != second[0] == material.certificate


def test_a_foreign_certificate_is_named_with_its_task(tmp_path):
    lab = Authority(tmp_path)
    tls = dataclasses.replace(Authority(tmp_path, "office").issue(), authority=str(lab.file))
    with pytest.raises(CertificateError) as caught:
        encryption.encrypt(Settings(tls=tls), "worker 3 at node3:2222")
    assert re.fullmatch(
        "worker 3 at node3:2222: TLS: peers would refuse this process as a client: the certificate "
        "of 'CN = task' was not issued by this job's authority; expected a certificate that its "
        f"peers accept, received TFDIST_TLS_CERT={tls.certificate}, TFDIST_TLS_KEY={tls.key}, "
        f"TFDIST_TLS_CA={lab.file}",
        str(caught.value),
    )


def test_without_tls_nothing_is_configured(configured):
    encryption.encrypt(Settings(secret=SECRET), "worker 0")
    assert configured == []


def test_data_workers_are_refused(monkeypatch):
    cluster = Cluster(
        workers=("a:1", "b:1"), data_dispatcher=("a:2",), data_workers=("a:3",), task_index=0
    )
    monkeypatch.setattr(process.current, "_settings", Settings(tls=Tls(secret=SECRET)))
    for role, index in (("worker", 0), ("data_worker", 0)):
        task = dataclasses.replace(cluster, task_type=role, task_index=index)
        with pytest.raises(ClusterConfigError, match="0: expected no data workers .* received 1"):
            serve(task)


PORT = 2222
TASKS = (f"node1:{PORT}", f"10.0.0.7:{PORT}", f"127.0.0.1:{PORT}")


@pytest.mark.parametrize(
    ("index", "names", "interface", "missing"),
    [
        (0, ("node7", "10.0.0.1"), None, "node1"),
        (0, (), None, "node1"),
        (0, ("*.lab",), None, "node1"),
        (1, ("node1", "10.0.0.1"), None, "10.0.0.7"),
        (0, ("node1",), "127.0.0.0/8", "127.0.0.1"),
        (0, ("NODE1",), None, None),
        (1, ("10.0.0.7",), None, None),
        (0, ("node1", "127.0.0.1"), "127.0.0.0/8", None),
        (2, ("127.0.0.1",), None, None),
    ],
)
def test_a_certificate_has_the_name_of_its_task(tmp_path, index, names, interface, missing):
    tls = Authority(tmp_path).issue(names=names)
    task = Cluster(workers=TASKS, task_index=index)
    settings = Settings(secret=SECRET, tls=tls, interface=interface)
    if missing is None:
        encryption.check_names(task, settings)
        return
    with pytest.raises(ClusterConfigError) as caught:
        encryption.check_names(task, settings)
    received = ", ".join(names) or "none (no subjectAltName)"
    assert str(caught.value) == (
        f"worker {index} at {TASKS[index]}: TFDIST_TLS_CERT: expected a certificate with {missing} "
        "in its subjectAltName, since other tasks call this one there, received "
        f"{tls.certificate} with {received}"
    )


@pytest.mark.parametrize("kind", ["ps", "worker"])
def test_every_task_checks_its_name_at_the_start(tmp_path, monkeypatch, kind):
    settings = Settings(tls=Authority(tmp_path).issue(names=("node7",)))
    monkeypatch.setattr(process.current, "_settings", settings)
    task = Cluster(workers=("node1:1",), ps=("node1:2",), task_type=kind)
    with pytest.raises(ClusterConfigError, match=f"{kind} 0 at node1:.: TFDIST_TLS_CERT: expected"):
        serve(task)


def test_a_server_of_tables_checks_its_name(tmp_path):
    settings = Settings(tls=Authority(tmp_path).issue(names=("node7",)))
    with pytest.raises(ClusterConfigError, match="at node1:1: TFDIST_TLS_CERT: expected .* node1"):
        TableServer("/nowhere", ServerGroup.of(["node1:1"]), 1, settings)


def test_names_that_no_certificate_needs(tmp_path):
    local, evaluator = Cluster.local(), Cluster(workers=("node1:1",), task_type="evaluator")
    foreign = Authority(tmp_path).issue(names=("node7",))
    by_secret = (Cluster(workers=TASKS), Tls(secret=SECRET))
    for task, tls in ((local, foreign), (evaluator, foreign), by_secret):
        encryption.check_names(task, Settings(secret=SECRET, tls=tls))


def test_a_missing_package_is_named():
    """Only where TLS is asked for: every other process does without it."""
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from tfdist.config.tls import Tls\n"
        "from tfdist.control.client import ControlClient\n"
        "from tfdist.observe.observer import Observer\n"
        "ControlClient(Observer('x'), None, 'localhost:1', 'y').close()\n"
        "ControlClient(Observer('x'), None, 'localhost:1', 'y', Tls(secret=b'x')).close()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "tfdist.errors.ClusterConfigError: encrypted connections (TFDIST_TLS) need the package "
        "cryptography of the extra tfdist[tls], received: "
    )
    assert done.stderr.rstrip().endswith("pip install 'cryptography>=42'")
