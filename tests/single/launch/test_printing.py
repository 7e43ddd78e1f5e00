"""Texts from other processes, hosts and files do not control the terminal they are printed on."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import threading
from concurrent import futures

import grpc
import pytest

from single.launch.fake_ssh import make_fake_ssh
from support.launching import Launcher
from tfdist.cli.main import main
from tfdist.config.printing import printable, printable_line, without_colours
from tfdist.control.client import UnreachableError
from tfdist.data.queue import messages
from tfdist.errors import TfdistError
from tfdist.observe.dumps import Dump
from tfdist.observe.live.records import JobActivity, Queue, TaskActivity
from tfdist.observe.live.table import describe
from tfdist.observe.observer import Access, Observer

# Sets the title; C1's CSI; DEL; from right to left; two further ends of a line; half a pair.
HOSTILE = "\x1b]0;owned\x07 \x9b31m \x7f \u202e \u2066 \u2028 \u2029 \ud800 \r\n\tfake: line"
SHOWN = r"\x1b]0;owned\x07 \x9b31m \x7f \u202e \u2066 \u2028 \u2029 \ud800 \r\n\tfake: line"


def is_harmless(text):
    return all(c.isprintable() or c == "\n" for c in text)


def test_escapes():
    assert printable_line(HOSTILE) == SHOWN
    assert printable(HOSTILE) == SHOWN.replace(r"\n", "\n")
    assert printable_line("Zähler 数 😀 é") == "Zähler 数 😀 é"
    assert without_colours("\x1b[1;31mred\x1b[0m\tand \x1b[2J") == r"red     and \x1b[2J"


DUMP = Dump(
    task="worker 0",
    rank=0,
    training=["worker 0", "worker 1"],
    servers=[],
    elastic=False,
    pid=1,
    host="here",
    versions={},
    wall_time=100.0,
    steady_ns=1,
    reasons=["a test asks"],
    has_finished=False,
    exception="ValueError: no",
    communicators=[],
    events=[],
    lost=0,
    threads=[],
)


def write(folder, name, **fields):
    """Writes a file as a task, or another process, may have left it."""
    text = json.dumps({"format": 1, **dataclasses.asdict(DUMP), "pending": [], **fields})
    (folder / f"{name}.json").write_text(text)


def explained(folder, capsys):
    code = main(["debug", "explain", str(folder)])
    out, err = capsys.readouterr()
    assert is_harmless(out + err), ascii(out + err)
    return code, out, err


def test_explain_escapes_a_dump(tmp_path, capsys):
    write(tmp_path, "a", task=HOSTILE, exception=f"ValueError: {HOSTILE}")
    (tmp_path / "worker-1.crash.txt").write_text(f"Fatal {HOSTILE[:20]}")
    code, out, _ = explained(tmp_path, capsys)
    assert code == 0 and f"dumps of: {SHOWN}\n" in out
    assert not any(line.startswith(("fake", "\tfake")) for line in out.splitlines())


@pytest.mark.parametrize(
    "fields",
    [
        {"format": HOSTILE},
        {HOSTILE: 1},
        {"events": 5},
        {"events": [{}]},
        {"training": [1]},
        {"threads": [{HOSTILE: 1}]},
        {"communicators": None, "events": [{"kind": HOSTILE}]},
        {"steady_ns": HOSTILE, "exception": 7},
        {"task": [HOSTILE]},
    ],
    ids=lambda fields: ascii(fields)[:30],
)
def test_explain_names_what_is_no_dump(tmp_path, capsys, fields):
    write(tmp_path, "a", **fields)
    code, out, err = explained(tmp_path, capsys)
    assert code == 2 and "expected " in err and "Traceback" not in out + err


def test_answers_of_tasks_are_escaped(tmp_path, capsys):
    """Another process of this user's listens in the directory of the dumps."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "worker-0.sock"))
        listener.listen()

        def answer():
            for _ in range(2):
                client, _ = listener.accept()
                with client:
                    client.recv(4096)
                    client.send(b"written \x1b]0;owned\x07\nfake: line")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        for command in (["debug", "dump"], ["timeline", "stop"]):
            main([*command, "--dir", str(tmp_path), "--timeout", "20"])
            out, err = capsys.readouterr()
            assert is_harmless(out + err) and r"\x1b]0;owned\x07\nfake: line" in out
        thread.join()


def test_the_table_of_top():
    hostile = TaskActivity(HOSTILE, "a:1", waits={HOSTILE: 0.5}, steps=3)
    silent = TaskActivity(HOSTILE, "a:2", problem=HOSTILE)
    queue = Queue(HOSTILE, 1, 2, 3, 4, None)
    table = describe(JobActivity(1.0, [hostile, silent], [queue], {HOSTILE: 0.9}))
    assert is_harmless(table) and table.count("\n") == 5 and table.count(SHOWN) == 6


@pytest.fixture
def launch(tmp_path):
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


def test_the_report_of_a_failure(launch):
    """The task's output is its own business; the launcher's report of it is the launcher's."""
    code, out, err = launch(
        r"""
        say("\x1b[31mred\x1b[0m")
        os.write(2, b"\x1b[31mred\x1b[0m \x1b]0;owned\x07 \xc2\x9b \xe2\x80\xae\n")
        sys.exit(3)
        """
    ).finish()
    assert code == 3 and out == ["[worker 0] \x1b[31mred\x1b[0m"]
    assert "[worker 0] \x1b[31mred\x1b[0m \x1b]0;owned\x07 \x9b \u202e" in err
    assert r"    red \x1b]0;owned\x07 \x9b \u202e" in err
    assert all(is_harmless(line) for line in err if not line.startswith("[worker 0] "))


def test_words_of_a_host(launch, tmp_path):
    ssh = make_fake_ssh(tmp_path)
    text = ssh.read_text().replace("Welcome to node 8", r"\033]0;owned\007 Welcome")
    ssh.write_text(text.replace('echo "', 'echo -e "'))
    options = ("--ssh", str(ssh), "--hosts", "127.0.0.8:1")
    code, _, err = launch("", *options).finish()
    assert code == 1 and all(map(is_harmless, err)), err
    assert any(r"received \x1b]0;owned\x07 Welcome" in line for line in err)


@contextlib.contextmanager
def refusing(answer):
    """A gRPC server that is no task's; yields its address."""

    def handle(body, context):
        return answer(context)

    class Every(grpc.GenericRpcHandler):
        def service(self, details):
            return grpc.unary_unary_rpc_method_handler(handle)

    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Every(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait(20)


# Characters that a JSON text, and the details of a gRPC status, can hold.
SENT = HOSTILE.replace("\ud800", "")


@pytest.mark.parametrize(
    "answer",
    [
        lambda context: json.dumps({"status": "refused", "reason": SENT}).encode(),
        lambda context: context.abort(grpc.StatusCode.PERMISSION_DENIED, SENT),
        lambda context: context.abort(grpc.StatusCode.UNAVAILABLE, SENT),
        lambda context: context.abort(grpc.StatusCode.INTERNAL, SENT),
    ],
    ids=["refused", "denied", "unavailable", "internal"],
)
def test_refusals_of_other_tasks(answer):
    with refusing(answer) as address:
        client = Observer("tfdist tasks").client(Access(), address, "the task")
        try:
            request = messages.TaskStatusRequest(1.0)
            with pytest.raises((TfdistError, UnreachableError)) as error:
                client.call(messages.TASK_STATUS, request, 1.0, patient=False)
        finally:
            client.close()
    text = str(error.value)
    assert r"\x1b]0;owned\x07 \x9b31m" in text and "\x1b" not in text
    assert all(c.isprintable() or c == "\n" for c in text), ascii(text)
