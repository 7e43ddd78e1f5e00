"""Workers and servers are killed and stall, again and again; each record counts once an epoch.

The weights are a ledger of how often each record was trained. They are spread over two servers: on
ps 0, which deals out the tasks, they are exact. On the other one a batch may count once more or
less for each push that a death has cut off, and once more for each task that a worker has lost.
"""

from __future__ import annotations

import random
import time

import pytest

from support.processes.ranks import start_ranks
from support.ps_job import roles
from support.task_job import BATCH, LEDGER_RECORDS, end, keep_ledger
from support.tiers import rounds

WORKERS, SERVERS = 3, 2
LEASE = 1.0
# Killed servers take the longest to come back.
KINDS = ["kill a worker"] * 4 + ["stall a worker"] * 2 + ["kill ps 0", "kill ps 1", "kill both"]


# More can go wrong without synchronization.
@pytest.mark.long("sync", covered_by="the other cases, parallel/data/test_tasks_async.py")
@pytest.mark.timeout(rounds(240, 3600))
@pytest.mark.parametrize(
    ("mode", "faults"), [("async", rounds(5, 100)), ("sync", rounds(3, 30))], ids=["async", "sync"]
)
def test_each_record_counts_once(mode, faults, tmp_path):
    choose = random.Random(faults)
    epochs = 8 + 3 * faults
    options = {"epochs": epochs, "lease": LEASE, "folder": str(tmp_path / "snapshots")}
    options["mode"] = mode
    cut, done = 0, []
    with start_ranks(
        keep_ledger,
        WORKERS + SERVERS,
        kwargs=options,
        tmp_path=tmp_path,  # where the workers look for "no more faults"
        roles=roles(WORKERS, SERVERS),
    ) as ranks:
        for worker in range(WORKERS):
            ranks.wait_for(worker, "begun", timeout=60)
        # In a long run each kind at least once.
        kinds = choose.sample(KINDS, len(KINDS)) + choose.choices(KINDS, k=faults)
        for kind in kinds[:faults]:
            time.sleep(choose.uniform(0.1, 1.0))
            worker = choose.randrange(WORKERS)
            if kind == "stall a worker":
                ranks[worker].stop()
                time.sleep(1.5 * LEASE)
                ranks[worker].resume()
                cut += 1
            else:
                server = 0 if kind == "kill both" else int(kind[-1]) if "ps" in kind else None
                killed = [worker] if kind in ("kill a worker", "kill both") else []
                killed += [] if server is None else [WORKERS + server]
                for rank in killed:
                    ranks[rank].kill()
                time.sleep(choose.uniform(0.0, 0.5))
                for rank in killed:
                    ranks.restart(rank)
                for rank in killed:
                    ranks.wait_for(rank, "begun" if rank < WORKERS else "serving", timeout=120)
                cut += WORKERS if server == 0 else 1
            done.append(kind)
        (tmp_path / "no more faults").touch()
        outcomes = end(ranks, WORKERS, tmp_path)
    assert outcomes[0].ok, outcomes[0].describe()
    result = outcomes[0].result
    print(f"ledger, {mode}: {faults} faults, {epochs} epochs, {result['differences']}")
    assert len(done) == faults
    assert sum(result["is_home"]) > LEDGER_RECORDS // 4 < LEDGER_RECORDS - sum(result["is_home"])
    home = [count for count, own in zip(result["counts"], result["is_home"], strict=True) if own]
    assert home == [epochs] * len(home)
    assert result["differences"] <= cut * BATCH
