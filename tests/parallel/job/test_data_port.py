"""Ten thousand unauthenticated connections to the workers' ports do not disturb training."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import start_ranks
from support.raw_data_peer import HELLO, HELLO_BYTES, MAGIC, PROOF, PROOF_BYTES, frame, hello
from support.tiers import rounds
from support.training.models import classifier, examples

STEPS = 300
STRANGERS = rounds(2_000, long=10_000)
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Meet(keras.callbacks.Callback):
    """Waits after the tenth step until the test says so."""

    def __init__(self, ctx, found) -> None:
        super().__init__()
        self._ctx = ctx
        self._found = found

    def on_train_batch_end(self, batch, logs=None) -> None:
        if batch == 10:
            self._ctx.barrier("warm")
            self._found["descriptors"] = open_descriptors()
            self._ctx.report("ready")
            self._ctx.wait_for("go", timeout=60)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def train(ctx):
    keras.utils.set_random_seed(ctx.rank)
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = classifier(keras.optimizers.SGD(0.05, momentum=0.9))
    ctx.report("port", strategy.communicator.port)
    batches = tf.data.Dataset.from_tensor_slices(examples(256)).repeat().batch(32)
    found = {}
    model.fit(batches, steps_per_epoch=STEPS, verbose=0, callbacks=[Meet(ctx, found)])
    ctx.report("trained")
    strangers = ctx.wait_for("strangers", timeout=120)
    deadline = time.monotonic() + 20
    # Both follow a little later, from threads without a notification.
    while time.monotonic() < deadline and not (
        strategy.communication_stats().rejected_connections >= strangers
        and open_descriptors() <= found["descriptors"]
    ):
        time.sleep(0.01)
    return {
        "weights": model.get_weights(),
        "rejected": strategy.communication_stats().rejected_connections,
        "new_descriptors": open_descriptors() - found["descriptors"],
    }


def run(disturb):
    """Trains on two workers while `disturb(data_ports, control_ports, trained)` runs.

    Returns:
      The workers' findings, and how many strangers each was visited by.
    """
    trained = threading.Event()
    with start_ranks(train, 2) as ranks, ThreadPoolExecutor(1) as executor:
        data_ports = [ranks.wait_for(rank, "port", timeout=60) for rank in range(2)]
        control_ports = [int(a.rpartition(":")[2]) for a in ranks[0].assignment.addresses]
        for rank in range(2):
            ranks.wait_for(rank, "ready", timeout=60)
        disturbance = executor.submit(disturb, data_ports, control_ports, trained)
        try:
            for rank in range(2):
                ranks.send(rank, "go")
            for rank in range(2):
                ranks.wait_for(rank, "trained", timeout=120)
        finally:
            trained.set()
        counts = disturbance.result(timeout=120)
        for rank in range(2):
            ranks.send(rank, "strangers", counts[rank])
        outcomes = ranks.join(timeout=60)
    assert all(outcome.ok for outcome in outcomes), "\n".join(o.describe() for o in outcomes)
    return [outcome.result for outcome in outcomes], counts


def intrusion(source: random.Random) -> bytes:
    """Something that must not be let in."""
    said = hello(1, source.randrange(3), source.randrange(2))
    kind = source.randrange(7)
    if kind == 0:
        return source.randbytes(source.randrange(1, 500))
    if kind == 1:  # no proof that fits
        return frame(HELLO, HELLO_BYTES, said) + frame(PROOF, PROOF_BYTES, source.randbytes(32))
    if kind == 2:  # and another generation
        return frame(HELLO, HELLO_BYTES, hello(source.getrandbits(64), 1))
    if kind == 3:  # a length that must not be believed
        return frame(HELLO, source.getrandbits(32)) + source.randbytes(100)
    if kind == 4:  # another type of frame first
        return frame(source.randrange(2, 20), 30) + source.randbytes(30)
    if kind == 5:  # another version
        return frame(HELLO, HELLO_BYTES, said, magic=MAGIC + source.randrange(1, 256))
    return b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def visit(port: int, content: bytes, how: str) -> None:
    """Connects and is "silent", or says `content` and is "gone", or "awaits" being thrown out."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        # Closing with a reset leaves nothing behind in the kernel.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how == "silent":
            return
        try:
            connection.sendall(content)
            if how == "awaits":
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
        except OSError as error:
            # Thrown out before it had finished.
            if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                raise


def attack(data_ports, control_ports, trained):
    """Sends unauthenticated connections to data and control ports until training has ended."""
    source = random.Random(20240607)
    counts = [0, 0]
    with contextlib.ExitStack() as waiting:
        while sum(counts) < STRANGERS or not trained.is_set():
            turn = sum(counts)
            which = turn % 2
            content = intrusion(source)
            if source.randrange(2):
                content = content[: source.randrange(len(content))]
            visit(data_ports[which], content, source.choice(["gone", "awaits", "silent"]))
            counts[which] += 1
            if turn % 500 == 0:  # half a HELLO, and then nothing
                address = ("127.0.0.1", data_ports[which])
                guest = waiting.enter_context(socket.create_connection(address, timeout=20))
                guest.sendall(frame(HELLO, 28)[: source.randrange(40)])
                counts[which] += 1
            if turn % 50 == 0:
                content = source.choice([b"", HTTP2]) + source.randbytes(source.randrange(1, 300))
                visit(control_ports[which], content, "gone")
    return counts


def leave_in_peace(data_ports, control_ports, trained):
    """Sends no connections."""
    return [0, 0]


@pytest.mark.long(covered_by="single/control/test_control_strangers.py")
@pytest.mark.timeout(300)
def test_training_does_not_notice_thousands_of_strangers():
    undisturbed, _ = run(leave_in_peace)
    disturbed, counts = run(attack)
    assert sum(counts) >= STRANGERS
    for rank in range(2):
        assert undisturbed[rank]["rejected"] == 0
        assert disturbed[rank]["rejected"] == counts[rank]
        assert disturbed[rank]["new_descriptors"] <= 0
        for mine, theirs in zip(disturbed[rank]["weights"], undisturbed[0]["weights"], strict=True):
            np.testing.assert_array_equal(mine, theirs)
