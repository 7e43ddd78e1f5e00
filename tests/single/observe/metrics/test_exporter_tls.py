"""Metrics, state and page of a job with encrypted connections."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import socket
import ssl
import time
import urllib.request

import pytest

from support.authority import Authority
from support.patience import PATIENCE
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.config.tls import FIXED_NAME, Tls
from tfdist.control.signing import metrics_token
from tfdist.control.tls.authority import certificate_of
from tfdist.control.tls.verifier import Verifier
from tfdist.errors import ClusterConfigError
from tfdist.observe.live.dashboard import Dashboard
from tfdist.observe.live.sampler import Sampler
from tfdist.observe.live.targets import Targets
from tfdist.observe.metrics import http_server
from tfdist.observe.metrics.exporter import serve

SECRET = secrets.token_hex(32).encode()
BY_SECRET = Tls(secret=SECRET)


@contextlib.contextmanager
def serving(tls):
    cluster = Cluster(workers=("127.0.0.1:2222", "127.0.0.1:2223"), task_index=0)
    server = serve(cluster, Settings(metrics_port=0, secret=SECRET, tls=tls))
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        server.close()


def sample(address, tls):
    sampler = Sampler(Targets({"worker 0": address}, SECRET, tls), timeout=10.0)
    try:
        (answer,) = sampler.sample()
    finally:
        sampler.close()
    return answer


@pytest.mark.parametrize("kind", ["secret", "files"])
def test_a_task_tells_its_state(tmp_path, kind):
    lab = Authority(tmp_path)
    tls = BY_SECRET if kind == "secret" else lab.issue()
    with serving(tls) as address:
        answer = sample(address, tls)
        assert not answer.problem and answer.state.task == "worker 0"
        assert sample(address, None).problem.endswith(
            "received: status 400: this command does not encrypt as the task does (TFDIST_TLS)"
        )
        other = Authority(tmp_path, "office").issue()
        assert sample(address, other).problem.startswith("the certificate of the task is refused")
    with serving(None) as address:
        # Its reason is another for each state of the connection.
        assert sample(address, tls).problem.startswith("no encrypted connection (TFDIST_TLS): ")


def test_a_reader_needs_no_certificate_of_its_own(tmp_path):
    lab = Authority(tmp_path)
    task, reader = lab.issue("task"), lab.issue("reader", days=-1)
    with serving(task) as address:
        for tls in (reader, dataclasses.replace(reader, certificate="/no/such", key="/no/such")):
            assert not sample(address, tls).problem
    with pytest.raises(ClusterConfigError, match="TFDIST_TLS_CA: .* '/no/such'"):
        sample(address, dataclasses.replace(reader, authority="/no/such"))


def test_a_watched_job_may_renew_its_authority(tmp_path):
    lab, office = Authority(tmp_path), Authority(tmp_path, "office")
    authority = tmp_path / "trusted.pem"
    authority.write_bytes(lab.file.read_bytes())
    first, second = lab.issue(), office.issue()
    verifier = Verifier(dataclasses.replace(first, authority=str(authority)))
    authority.write_bytes(b"")
    assert len(verifier.context().get_ca_certs()) == 1
    authority.write_bytes(lab.file.read_bytes() + office.file.read_bytes())
    assert len(verifier.context().get_ca_certs()) == 2
    for tls in (first, second):
        with serving(tls) as address:
            both = dataclasses.replace(tls, authority=str(authority))
            assert not sample(address, both).problem


def test_prometheus_needs_the_authority_and_the_token():
    context = ssl.create_default_context(cadata=certificate_of(SECRET).decode())
    with serving(BY_SECRET) as address:
        host, _, port = address.rpartition(":")
        with (
            socket.create_connection((host, int(port)), 20) as plain,
            context.wrap_socket(plain, server_hostname=FIXED_NAME) as encrypted,
        ):
            token = metrics_token(SECRET)
            request = f"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
            encrypted.sendall(request.encode())
            answer = b""
            while part := encrypted.recv(4096):
                answer += part
        assert b"200 OK" in answer and b"tfdist_world_size" in answer


def test_plain_requests_are_told():
    with serving(BY_SECRET) as address:
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://{address}/metrics", timeout=20)
        with caught.value as answer:
            assert answer.code == 400
            assert answer.read() == (
                b"This task encrypts its connections (TFDIST_TLS): expected https, received plain "
                b"http.\n"
            )


def test_an_old_version_is_refused():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with serving(BY_SECRET) as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), 20) as plain:
            with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
                context.wrap_socket(plain)
        assert not sample(address, BY_SECRET).problem


def test_a_half_handshake_has_a_deadline(monkeypatch):
    monkeypatch.setattr(http_server, "_TIMEOUT", 0.5)
    with serving(BY_SECRET) as address:
        host, _, port = address.rpartition(":")
        began = time.monotonic()
        with socket.create_connection((host, int(port)), 20) as half:
            half.sendall(b"\x16\x03\x01\x02\x00\x01")
            # A byte now and then does not extend it.
            half.settimeout(0.1)
            ended = False
            while not ended and time.monotonic() < began + 20 * PATIENCE:
                try:
                    half.send(b"\x00")
                    ended = not half.recv(1)
                except TimeoutError:
                    continue
                except ConnectionError:
                    ended = True
        assert ended


def test_the_page_is_encrypted_beyond_loopback():
    def address(host):
        with Dashboard(None, "token", host, 0, BY_SECRET) as server:
            return server.url

    assert address("127.0.0.1").startswith("http://127.0.0.1:")
    assert address("0.0.0.0").startswith("https://0.0.0.0:")
