"""Ranks of a job that only meet: control planes as threads of one process, without TensorFlow.

    python simulated_ranks.py FILE FIRST LAST

FILE is JSON with the addresses of all ranks and their secret. For each line on the standard input
the ranks FIRST to LAST - 1 meet the others; a line of JSON tells the memory of this process, and
the generation that its ranks have agreed on.
"""

from __future__ import annotations

import concurrent.futures
import json
import re
import sys
from pathlib import Path

from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.control.plane import ControlPlane, RendezvousResult

TIMEOUT = 300.0  # s


def memory() -> int:
    """The resident bytes of this process."""
    (kilobytes,) = re.findall(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(kilobytes) * 1024


def main(file: str, first: str, last: str) -> None:
    described = json.loads(Path(file).read_text())
    addresses = tuple(described["addresses"])
    settings = Settings(secret=described["secret"].encode(), rendezvous_timeout=TIMEOUT)
    print(json.dumps({"memory": memory()}), flush=True)
    ranks = range(int(first), int(last))
    planes = {
        rank: ControlPlane(Cluster(workers=addresses, task_index=rank), settings) for rank in ranks
    }
    print(json.dumps({"memory": memory()}), flush=True)

    def meet(rank: int) -> RendezvousResult:
        return planes[rank].rendezvous(f"127.0.0.1:{10000 + rank}")

    with concurrent.futures.ThreadPoolExecutor(len(ranks)) as threads:
        for _ in sys.stdin:
            results = list(threads.map(meet, ranks))
            if len(set(results)) != 1 or len(results[0].addresses) != len(addresses):
                sys.exit("the ranks have not agreed")
            found = {"memory": memory(), "generation": results[0].generation}
            print(json.dumps(found), flush=True)
    for plane in planes.values():
        plane.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
