"""A hundred thousand broken frames at a parameter server's port; a training that loses nothing."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
import time
from pathlib import Path

import keras
import pytest

import tfdist
from parallel.ps.ps_records import serve_and_tell
from support.processes.ranks import start_ranks
from support.ps_job import roles
from support.raw_data_peer import (
    HELLO,
    HELLO_BYTES,
    MAGIC,
    PROOF,
    PROOF_BYTES,
    Door,
    find_door,
    frame,
    hello,
    introduce,
)
from support.tiers import rounds
from support.training.known_gradient import (
    BASE,
    endless,
    sloping_model,
    state_of,
    wait_until,
    weight_after,
)

FRAMES = rounds(5_000, long=100_000)
VISITS_PER_SECOND = 200
SECONDS = rounds(2, long=10)
WARM = 20
OPEN, LAST_REQUEST, OK = 32, 39, 64


class UntilTold(keras.callbacks.Callback):
    """Reports that training is well under way; ends it when the test says so."""

    def __init__(self, ctx) -> None:
        super().__init__()
        self._ctx = ctx
        self._told = threading.Event()
        self.steps = 0

    def on_train_begin(self, logs=None) -> None:
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        self._ctx.wait_for("end", timeout=600)
        self._told.set()

    def on_train_batch_end(self, batch, logs=None) -> None:
        self.steps = batch + 1
        time.sleep(0.002)  # leaves the processor to others, and BASE - 1 steps are enough
        if self.steps == WARM:
            self._ctx.report("warm")
        self.model.stop_training = self._told.is_set()


def train(ctx):
    records = serve_and_tell()
    if records is not None:
        return records.stats
    strategy = tfdist.ParameterServerStrategy(epoch_timeout=0.0)
    with strategy.scope():
        model = sloping_model(BASE**ctx.rank)
    callback = UntilTold(ctx)
    model.fit(endless(), steps_per_epoch=BASE - 1, verbose=0, callbacks=[callback])
    wait_until(lambda: strategy.communication_stats().pushes == callback.steps, "the last answer")
    ctx.report("ended", callback.steps)
    ctx.wait_for("all ended", timeout=120)
    return state_of(model)


def message(kind: int, meta: bytes, payload_bytes: int = 0, magic: int = MAGIC) -> bytes:
    """A message as it comes after the HELLO: 32 bytes of header, then its content."""
    return (
        struct.pack("<IBBHIIQQQQ", magic, kind, 0, 0, len(meta), 0, payload_bytes, 7, 0, 0) + meta
    )


def intrusion(source: random.Random, door: Door) -> bytes:
    """Something that must not be let in, or a part of it."""
    bits, rank = source.getrandbits, source.randrange(2)
    content = [
        lambda: source.randbytes(source.randrange(1, 300)),
        lambda: (
            frame(HELLO, HELLO_BYTES, hello(door.incarnation, rank))
            + frame(PROOF, PROOF_BYTES, source.randbytes(PROOF_BYTES))
        ),
        lambda: frame(HELLO, HELLO_BYTES, hello(bits(64), rank)),
        lambda: frame(HELLO, HELLO_BYTES, hello(door.incarnation, 2 + bits(31))),
        lambda: frame(HELLO, bits(32)) + source.randbytes(60),
        lambda: frame(source.randrange(2, 20), 30) + source.randbytes(30),
        lambda: frame(HELLO, HELLO_BYTES, bytes(32), magic=MAGIC + source.randrange(1, 256)),
        lambda: message(source.randrange(1, 9), source.randbytes(20)),
    ][source.randrange(8)]()
    return content[: source.randrange(len(content))] if source.randrange(2) else content


def madness(source: random.Random, door: Door) -> bytes:
    """Messages that no worker sends."""
    bits = source.getrandbits
    return [
        lambda: b"\xff" + source.randbytes(source.randrange(47, 300)),
        lambda: message(source.randrange(OPEN + 1, LAST_REQUEST + 1), source.randbytes(24)),
        lambda: message(source.randrange(LAST_REQUEST + 1, OK), b""),
        lambda: message(OPEN, source.randbytes(source.randrange(17, 64))),
        lambda: message(OPEN, bytes(16), payload_bytes=1 + bits(63)),
        lambda: message(OPEN, bytes(16), magic=MAGIC + source.randrange(1, 256)),
    ][source.randrange(6)]()


def visit(port: int, content: bytes, door: Door | None = None, rank: int = 0) -> None:
    """Connects, says something, and leaves; or is let in by a door and waits to be thrown out."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        # Closing with a reset leaves nothing behind in the kernel.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Thrown out before it had finished.
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            if door is not None:
                introduce(connection, door.key, hello(door.incarnation, rank))
            connection.sendall(content)
            while door is not None and connection.recv(4096):
                pass


def send_frames(door: Door) -> tuple[int, int]:
    """Sends FRAMES; returns how many of them were not let in, and how many were."""
    source = random.Random(20240607)
    rejected = mad = 0
    for turn in range(FRAMES):
        if turn % 10:
            visit(door.port, intrusion(source, door))
            rejected += 1
        else:
            visit(door.port, madness(source, door), door, source.randrange(2))
            mad += 1
    return rejected, mad


def come_and_go(door: Door) -> int:
    """Connects and disconnects VISITS_PER_SECOND times a second; returns how often in all."""
    visits = int(VISITS_PER_SECOND * SECONDS)
    begin = time.monotonic()
    for turn in range(visits):
        time.sleep(max(0.0, begin + turn / VISITS_PER_SECOND - time.monotonic()))
        visit(door.port, b"")
    return visits


def held_by(pid: int) -> dict[str, int]:
    """Counts a process's descriptors, threads and MB of memory, without pages of files."""
    status = Path(f"/proc/{pid}/status").read_text()
    (resident,) = (line.split()[1] for line in status.splitlines() if line.startswith("RssAnon"))
    return {
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "memory": int(resident) // 1024,
    }


@pytest.mark.timeout(600)
def test_nothing_is_lost_and_nothing_leaks():
    with start_ranks(train, 3, roles=roles(2)) as ranks:
        for rank in range(2):
            ranks.wait_for(rank, "warm", timeout=60)
        door = find_door(ranks)
        server = ranks[2].pid
        before = held_by(server)
        rejected, mad = send_frames(door)
        rejected += come_and_go(door)
        for rank in range(2):
            ranks.send(rank, "end")
        steps = [ranks.wait_for(rank, "ended", timeout=60) for rank in range(2)]
        wait_until(
            lambda: held_by(server)["descriptors"] <= before["descriptors"], "all were thrown out"
        )
        after = held_by(server)
        for rank in range(2):
            ranks.send(rank, "all ended")
        outcomes = ranks.join(timeout=60)
    assert all(outcome.ok for outcome in outcomes), "\n".join(o.describe() for o in outcomes)
    # Both workers' calls wait at the end of the epoch, each in a thread of the pool. Whether one of
    # these threads was there before depends on the calls until then.
    assert after["threads"] - before["threads"] in (0, 1, 2)
    assert after["memory"] <= before["memory"] + 16
    for rank in range(2):
        result = outcomes[rank].result
        assert steps[rank] > WARM
        assert result["weight"] == weight_after(*steps)
        assert result["iterations"] == sum(steps)
        assert (result["stats"].pushes, result["stats"].reconnections) == (steps[rank], 0)
    stats = outcomes[2].result
    assert stats.rejected_connections == rejected
    assert stats.broken_requests == mad
    assert (stats.pushes, stats.repeated_pushes) == (sum(steps), 0)
