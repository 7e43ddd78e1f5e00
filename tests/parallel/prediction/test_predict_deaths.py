"""Workers of `tfdist.predict` are killed, stop, and meet records that kill them."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from support.patience import wait_until
from support.processes.ranks import on_ranks, start_ranks
from support.tiers import rounds

pytestmark = pytest.mark.timeout(170)
RECORDS, TASK, BATCH = 120, 20, 8


def predict(ctx, folder, poison=(), slow=0.0, errors="park", lease=30.0, records=RECORDS):
    """Predicts, in `slow` seconds for each record; a record of `poison` kills the process."""
    import time

    import tensorflow as tf

    import tfdist

    def model(batch):
        for x in batch["x"].numpy():
            if x in poison:
                os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(slow * len(batch["x"]))
        return tf.sqrt(batch["x"]) / 3.0

    data = tfdist.data.from_arrays(
        {"id": np.arange(records), "x": np.arange(records, dtype=np.float32)},
        task_size=TASK,
        lease=lease,
        name="predict",
    )
    ctx.report("begun")
    result = tfdist.predict(
        model,
        data,
        folder,
        batch_size=BATCH,
        keep=["id"],
        format="jsonl",
        errors=errors,
        verbose=0,
    )
    return {"rows": result.rows, "rejected": result.rejected}


def contents(folder):
    return {p.name: p.read_bytes() for p in Path(folder).glob("part-*")}


def ids(folder):
    lines = [
        line for p in sorted(Path(folder).glob("part-*")) for line in p.read_text().splitlines()
    ]
    return [json.loads(line)["id"] for line in lines]


def rejected(folder):
    paths = sorted((Path(folder) / "_rejected").glob("*"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def parts_of(folder):
    return len(os.listdir(Path(folder) / "_job/records"))


def workers_of(folder):
    try:
        return len(os.listdir(Path(folder) / "_job/claims"))
    except FileNotFoundError:
        return 0


@on_ranks(2)
def test_two_workers_share_the_parts(ctx):
    result = predict(ctx, ctx.tmp_path / "out", slow=0.002)
    assert result == {"rows": RECORDS, "rejected": 0}
    assert ids(ctx.tmp_path / "out") == list(range(RECORDS))


@pytest.mark.long(covered_by="test_kills_at_any_moment")
def test_a_killed_worker_leaves_no_trace(tmp_path):
    with start_ranks(predict, 1, kwargs={"folder": str(tmp_path / "whole")}) as ranks:
        assert ranks.join(timeout=60)[0].ok
    out = tmp_path / "out"
    with start_ranks(predict, 2, kwargs={"folder": str(out), "slow": 0.005}) as ranks:
        for rank in (0, 1, 1, 0):  # either may be the last one
            wait_until(lambda: workers_of(out) > 0, "a claim", 60)
            ranks[rank].kill()
            ranks.restart(rank)
        outcomes = ranks.join(timeout=120)
    assert all(outcome.ok for outcome in outcomes), "\n".join(o.describe() for o in outcomes)
    assert contents(out) == contents(tmp_path / "whole")
    assert ids(out) == list(range(RECORDS))


def test_a_record_that_kills_its_worker_three_times_is_parked(tmp_path):
    out = tmp_path / "out"
    deaths = 0
    with start_ranks(predict, 1, kwargs={"folder": str(out), "poison": (33.0,)}) as ranks:
        while True:
            outcome = ranks.join(timeout=120)[0]
            if outcome.ok:
                break
            deaths += 1
            assert deaths <= 4, outcome.describe()
            ranks.restart(0)
    # After the first death it is one of several.
    assert deaths == 4 and outcome.result == {"rows": RECORDS - 1, "rejected": 1}
    assert ids(out) == [i for i in range(RECORDS) if i != 33]
    (bad,) = rejected(out)
    assert bad == {"file": "", "record": 33, "message": "has killed its worker 3 times"}


@pytest.mark.timeout(rounds(170, 3600))
def test_kills_at_any_moment(tmp_path):
    parts, kills = rounds(40, 400), rounds(16, 200)
    many = {"records": parts * TASK}
    with start_ranks(predict, 1, kwargs={"folder": str(tmp_path / "whole"), **many}) as ranks:
        assert ranks.join(timeout=120)[0].ok
    out = tmp_path / "out"
    choose = random.Random(kills)
    options = {"folder": str(out), "slow": 0.005, **many}
    with start_ranks(predict, 3, kwargs=options) as ranks:
        for kill in range(kills):
            # They come evenly over the parts.
            due = parts * kill // kills - 2
            wait_until(lambda due=due: workers_of(out) > 0 and parts_of(out) >= due, "parts", 120)
            time.sleep(choose.uniform(0.0, 0.2))
            # All at once, as when their launcher is killed, or one of them.
            killed = range(3) if choose.random() < 0.1 else [choose.randrange(3)]
            killed = [rank for rank in killed if ranks[rank].alive]
            for rank in killed:
                ranks[rank].kill()
            for rank in killed:
                ranks.restart(rank)
        print(f"{parts_of(out)} of {parts} parts at the last of {kills} kills")
        outcomes = ranks.join(timeout=rounds(120, 1200))
    assert all(outcome.ok for outcome in outcomes), "\n".join(o.describe() for o in outcomes)
    assert ids(out) == list(range(parts * TASK))
    assert contents(out) == contents(tmp_path / "whole")
    assert not rejected(out)
