"""TLS between a control server and its clients: good certificates, and the refusal of others."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import logging
import re
import secrets
import socket
import threading
import time
from pathlib import Path

import grpc
import pytest

import tfdist
from support.authority import Authority
from support.elastic.control_tasks import Background, clusters
from support.patience import PATIENCE
from tfdist.config.tls import Tls
from tfdist.control.client import ControlClient, SilentError, UnreachableError
from tfdist.control.server import ControlServer
from tfdist.control.service import Service
from tfdist.control.tls import credentials
from tfdist.errors import AuthenticationError, ClusterConfigError

SECRET = secrets.token_hex(32).encode()


@dataclasses.dataclass(frozen=True)
class TellRequest:
    text: str
    wait: float


TELL = Service("Telling", 1, "a task that is told").method(TellRequest)


@contextlib.contextmanager
def told(tls, secret=None):
    """Yields a cluster whose first task answers TELL, and the event for which "wait" waits."""
    cluster, go_on = clusters(2)[0], threading.Event()

    def handle(request, context):
        if request.text == "wait":
            go_on.wait(30)
        return {"status": "told", "text": request.text}

    with contextlib.closing(ControlServer(cluster, secret, {TELL: handle}, tls=tls)):
        yield cluster, go_on


@contextlib.contextmanager
def calling(cluster, tls, secret=None):
    client = ControlClient(cluster, secret, cluster.address, "worker 0", tls)
    with contextlib.closing(client):
        yield client


def tell(client, text="hello", patient=True):
    answer = client.call(TELL, TellRequest(text, 0.0), 0.0, patient=patient)
    return answer["text"]


def refusal(cluster, tls, secret=None):
    """The one sentence that a caller is told, without who has called whom."""
    with calling(cluster, tls, secret) as client:
        began = time.monotonic()
        # gRPC needs more than one attempt on a busy machine: the first may only time out.
        with pytest.raises(AuthenticationError) as caught:
            while time.monotonic() < began + 20 * PATIENCE:
                with contextlib.suppress(UnreachableError):
                    tell(client)
    head = f"worker 0 at {cluster.address} called worker 0: "
    assert str(caught.value).startswith(head)
    return str(caught.value).removeprefix(head)


@pytest.fixture
def lab(tmp_path):
    return Authority(tmp_path)


def test_a_secret_makes_certificates():
    tls = Tls(secret=SECRET)
    # Another process has the same authority, but its certificate has other bytes.
    credentials.credentials_of.cache_clear()
    with told(tls, SECRET) as (cluster, _):
        credentials.credentials_of.cache_clear()
        with calling(cluster, tls, SECRET) as client:
            assert tell(client) == "hello"


def test_files(lab):
    with told(lab.issue("server")) as (cluster, _):
        with calling(cluster, lab.issue("client", names=("elsewhere",))) as client:
            assert tell(client) == "hello"


def test_another_secret():
    with told(Tls(secret=SECRET), SECRET) as (cluster, _):
        other = secrets.token_hex(32).encode()
        assert refusal(cluster, Tls(secret=other), other) == (
            "the certificate of the other task was not made with this task's secret; expected the "
            "same TFDIST_SECRET (or content of TFDIST_SECRET_FILE), and TFDIST_TLS, on every task"
        )


@pytest.mark.parametrize("kind", ["secret", "files"])
def test_a_plain_client(lab, kind):
    tls = Tls(secret=SECRET) if kind == "secret" else lab.issue()
    with told(tls, SECRET) as (cluster, _):
        assert refusal(cluster, None, SECRET) == (
            "the other task encrypts its connections (TFDIST_TLS), this one does not; expected the "
            "same TFDIST_TLS variables on every task"
        )


@pytest.mark.parametrize("kind", ["plain", "another authority"])
def test_a_refused_client_of_a_name_with_two_addresses(lab, tmp_path, monkeypatch, kind):
    """The task listens at the first; gRPC tells only that the second, as an unused ::1, refuses."""
    tls = None if kind == "plain" else Authority(tmp_path, "office").issue()
    make = "insecure_channel" if tls is None else "secure_channel"
    original = getattr(grpc, make)

    def channel(target, *arguments, **options):
        port = target.rpartition(":")[2]
        return original(f"ipv4:127.0.0.1:{port},127.0.0.2:{port}", *arguments, **options)

    expected = "encrypts its connections" if tls is None else "is of another authority"
    with told(lab.issue()) as (cluster, _):
        monkeypatch.setattr(grpc, make, channel)
        with calling(cluster, tls) as client, pytest.raises(AuthenticationError, match=expected):
            deadline = time.monotonic() + 20 * PATIENCE
            while time.monotonic() < deadline:
                with contextlib.suppress(SilentError):
                    tell(client, patient=False)


def test_a_plain_server(lab):
    with told(None) as (cluster, _):
        assert refusal(cluster, lab.issue()) == (
            "this task encrypts its connections (TFDIST_TLS), the other one does not; expected the "
            "same TFDIST_TLS variables on every task"
        )


def test_a_server_of_another_authority(lab, tmp_path):
    with told(Authority(tmp_path, "office").issue()) as (cluster, _):
        assert re.fullmatch(
            "the certificate of the other task is of another authority: issued by CN=office, "
            rf"expected one in {lab.file} \(TFDIST_TLS_CA; .*\)",
            refusal(cluster, lab.issue()),
        )


def test_a_client_of_another_authority(lab, tmp_path):
    stranger = Authority(tmp_path, "office").issue()
    # It trusts the server, which does not trust it.
    stranger = dataclasses.replace(stranger, authority=str(lab.file))
    with told(lab.issue()) as (cluster, _):
        assert re.fullmatch(
            r"the other task refuses this task's certificate: .*/office-task.pem, issued by "
            "CN=office; expected one of an authority in its TFDIST_TLS_CA",
            refusal(cluster, stranger),
        )


def test_a_server_with_another_name(lab):
    with told(lab.issue("server", names=("node7", "10.0.0.7"))) as (cluster, _):
        assert refusal(cluster, lab.issue("client")) == (
            "the certificate of the other task is for another name: expected 127.0.0.1 in its "
            "subjectAltName, received node7, 10.0.0.7"
        )


def test_expired_certificates(lab, monkeypatch):
    # A task does not begin with one: it has expired while the task runs.
    monkeypatch.setattr(credentials, "expired", lambda certificate: "")
    ended, good = lab.issue("ended", days=-1), lab.issue()
    with told(ended) as (cluster, _):
        assert re.fullmatch(
            r"the certificate of the other task has expired on \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC",
            refusal(cluster, good),
        )
    with told(good) as (cluster, _):
        assert re.fullmatch(
            rf"this task's certificate {ended.certificate} \(TFDIST_TLS_CERT\) has expired on "
            r"\d{4}-\d\d-\d\d .* UTC",
            refusal(cluster, ended),
        )


def test_a_caller_without_a_certificate(lab):
    tls = lab.issue()
    with told(tls) as (cluster, _):
        trusting = grpc.ssl_channel_credentials(lab.file.read_bytes())
        with grpc.secure_channel(cluster.address, trusting) as channel:
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(TELL.path)(b"{}", timeout=20)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def logged(caplog, reason):
    """Waits until the server has logged a refusal, and returns how often it has."""
    deadline = time.monotonic() + 20 * PATIENCE
    while not (found := [text for text in caplog.messages if reason in text]):
        assert time.monotonic() < deadline, caplog.messages
        time.sleep(0.01)
    return len(found)


PLAIN_CALLER = "this task encrypts its connections (TFDIST_TLS), the caller does not"
PLAIN_REQUEST = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NO_CALL = "it has left without a call, in or after the TLS handshake"


@pytest.mark.parametrize("kind", ["plain", "another authority"])
def test_the_server_logs_its_refusal(lab, tmp_path, caplog, kind):
    caplog.set_level(logging.INFO, "tfdist.control")
    stranger = None if kind == "plain" else Authority(tmp_path, "office").issue()
    with told(tls := lab.issue()) as (cluster, _):
        with calling(cluster, tls) as client:
            assert tell(client) == "hello"
        refusal(cluster, stranger)
        head = f"worker 0 at {cluster.address}: refused a message from 127.0.0.1: "
        logged(caplog, head)
        expected = (NO_CALL,) if stranger else (NO_CALL, PLAIN_CALLER)
        assert all(text.startswith(head) for text in caplog.messages)
        assert all(text.removeprefix(head).startswith(expected) for text in caplog.messages)


def send_until_logged(caplog, cluster, content, reason):
    """Sends bytes, on new connections, until the server has logged why it refuses them."""
    host, _, port = cluster.address.rpartition(":")
    deadline = time.monotonic() + 20 * PATIENCE
    # gRPC may have read them before they are looked at.
    while not any(reason in text for text in caplog.messages):
        assert time.monotonic() < deadline, caplog.messages
        with socket.create_connection((host, int(port)), 20) as plain:
            with contextlib.suppress(ConnectionError):
                plain.sendall(content)
                while plain.recv(4096):
                    pass


def test_a_raw_plain_request_is_logged_as_one(lab, caplog):
    with told(lab.issue()) as (cluster, _):
        send_until_logged(caplog, cluster, PLAIN_REQUEST, PLAIN_CALLER)


def test_the_last_refusal_is_the_most_exact_one(lab, caplog):
    caplog.set_level(logging.INFO, "tfdist.control")
    cluster = clusters(2)[0]
    with contextlib.closing(ControlServer(cluster, None, {}, tls=lab.issue())) as server:
        send_until_logged(caplog, cluster, PLAIN_REQUEST, PLAIN_CALLER)
        send_until_logged(caplog, cluster, b"\x16\x03\x01" + bytes(200), NO_CALL)
        assert PLAIN_CALLER in server.last_refusal


@pytest.mark.timeout(100)
def test_garbage_handshakes_disturb_no_caller(lab, caplog):
    """A flood of them is refused while a task of the job is answered; the log stays short."""
    caplog.set_level(logging.INFO, "tfdist.control")
    tls = lab.issue()
    with told(tls) as (cluster, _), calling(cluster, tls) as client:
        host, _, port = cluster.address.rpartition(":")
        for number in range(500):
            with socket.create_connection((host, int(port)), 20) as stranger:
                with contextlib.suppress(ConnectionError):
                    stranger.sendall(b"\x16\x03\x01" + bytes([number % 256]) * 200)
            if number % 50 == 0:
                assert tell(client) == "hello"
        assert tell(client) == "hello"
        assert logged(caplog, NO_CALL) == 1


def test_an_unreachable_task_is_no_problem_of_tls(lab):
    cluster = clusters(2)[0]
    for tls in (lab.issue(), None):
        with calling(cluster, tls) as client, pytest.raises(UnreachableError):
            tell(client, patient=False)


def test_renewed_files_serve_new_connections(lab, monkeypatch):
    monkeypatch.setattr(credentials, "_LOOK_INTERVAL", 0.0)
    server, client = lab.issue("server"), lab.issue("client")
    with told(server) as (cluster, go_on), calling(cluster, client) as control:
        assert tell(control) == "hello"
        held = Background(tell, control, "wait")
        before = control._channel._channel
        lab.issue("client")
        assert tell(control) == "hello"
        assert control._channel._channel is not before
        go_on.set()
        assert held.result() == "wait"
        # The server's own: one with another name is refused, so it is the new one.
        lab.issue("server", names=("node7",))
        assert "received node7" in refusal(cluster, lab.issue("late"))
        lab.issue("server")
        with calling(cluster, client) as another:
            assert tell(another) == "hello"


def test_half_renewed_files(lab, monkeypatch, caplog):
    monkeypatch.setattr(credentials, "_LOOK_INTERVAL", 0.0)
    tls = lab.issue()
    mine = credentials.Credentials(tls)
    first = mine.material
    followed = []
    mine.follow(followed.append)
    other = lab.issue("other")
    with open(other.certificate, "rb") as new, open(tls.certificate, "wb") as certificate:
        certificate.write(new.read())
    for _ in range(3):
        assert mine.material is first
    (message,) = caplog.messages
    assert "the key belongs to another certificate" in message
    with open(other.key, "rb") as new, open(tls.key, "wb") as key:
        key.write(new.read())
    assert mine.material != first and followed == [first, mine.material]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("missing", "TFDIST_TLS_CERT: expected a readable file, received '.*': No such file"),
        ("expired", "expected a certificate that is valid now, received .* has expired on 20"),
        ("other key", "the key belongs to another certificate"),
        ("a key", "CERT: expected a certificate in PEM, received .*lab-task.key, which has no com"),
        ("a damaged certificate", "lab-task.key and .*: the certificate or its key is damaged$"),
        ("a damaged authority", "lab-ca.pem: the authority's file is damaged: "),
        ("half a key", "KEY: expected a private key .*half, which has no complete private key$"),
        ("no certificate", "CERT: expected a certificate in PEM, .*empty, which is empty$"),
        ("no key", "TFDIST_TLS_KEY: expected a private key in PEM, .*empty, which is empty$"),
        ("no authority", "TFDIST_TLS_CA: expected a certificate in PEM, .*empty, which is empty$"),
    ],
)
def test_unusable_files(lab, tmp_path, broken, message):
    tls = lab.issue(days=-1 if broken == "expired" else 1)
    if broken == "missing":
        tls = dataclasses.replace(tls, certificate=str(tmp_path / "nowhere.pem"))
    elif broken == "other key":
        tls = dataclasses.replace(tls, key=lab.issue("other").key)
    elif broken == "a key":
        tls = dataclasses.replace(tls, certificate=tls.key)
    elif broken.startswith("a damaged "):
        file = Path(getattr(tls, broken.removeprefix("a damaged ")))
        shown = file.read_text().splitlines()
        file.write_text("\n".join([shown[0], "AAAA", *shown[2:]]))
    elif broken == "half a key":
        (tmp_path / "half").write_text(Path(tls.key).read_text()[:100])
        tls = dataclasses.replace(tls, key=str(tmp_path / "half"))
    elif broken.startswith("no "):
        (tmp_path / "empty").touch()
        tls = dataclasses.replace(tls, **{broken.removeprefix("no "): str(tmp_path / "empty")})
    with pytest.raises(ClusterConfigError, match=message):
        credentials.Credentials(tls)


def test_no_server_or_client_of_tfdist_forgets_to_encrypt():
    """Each is made with the settings' `tls`, which they would do without."""
    folder = Path(tfdist.__file__).parent
    made = []
    for file in (*folder.rglob("*.py"), *(folder / "strategies").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            position = {"ControlClient": 5, "ControlServer": None}.get(node.func.id, 0)
            if position == 0:
                continue
            given = any(keyword.arg == "tls" for keyword in node.keywords)
            made.append((file.name, node.func.id, given or len(node.args) == position))
    assert len(made) >= 13
    assert [one for one in made if not one[2]] == []
