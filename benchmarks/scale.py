"""How a job grows: a thousand ranks that meet, and 128 ranks of the collective engine.

    python benchmarks/scale.py [--ranks 1000] [--processes 10] [--core_ranks 128] [--json FILE]

Everything runs on this machine, so that its processors, not a network, limit the times.

Control plane: rank 0 in a process of its own, the other ranks as threads of `--processes` others,
without TensorFlow. They meet, with a secret. Then one of the processes is killed with all its ranks
and started again, and all meet again, as after `tfdist run --restarts`. The table has the seconds
from the signal to the last rank's result, and rank 0's memory.

Core: `--core_ranks` communicators in one process connect with each other and all-reduce. Then a
tenth of them is closed, and the others connect again, as in an elastic job.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags
from baselines import simulated_ranks
from reporting import charts, results

from tfdist.launch.ports import free_ports

RANKS = flags.DEFINE_integer("ranks", 1000, "of the control plane", lower_bound=2)
PROCESSES = flags.DEFINE_integer("processes", 10, "of the ranks but rank 0", lower_bound=1)
CORE_RANKS = flags.DEFINE_integer("core_ranks", 128, "of the collective engine", lower_bound=10)
ROUNDS = flags.DEFINE_integer("rounds", 5, "timed all-reduces of each size", lower_bound=1)
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

SIZES = {"4 KB": 1 << 10, "1 MB": 1 << 18}  # float32
TIMEOUT = 120.0
PROGRAM = Path(__file__).parent / "baselines" / "simulated_ranks.py"


class Ranks:
    """A process with some simulated ranks."""

    def __init__(self, file: Path, first: int, last: int) -> None:
        self.range = first, last
        command = [sys.executable, str(PROGRAM), str(file), str(first), str(last)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def report(self) -> dict[str, Any]:
        """The next line that the process prints."""
        line = self._stdout.readline()
        if not line:
            raise RuntimeError(f"the process of ranks {self.range} has ended")
        return json.loads(line)

    def meet(self) -> None:
        """Lets the ranks begin to meet the others."""
        self._stdin.write("meet\n")
        self._stdin.flush()

    def kill(self) -> None:
        """Ends the process as a crash does."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Lets the process end by itself, and kills it otherwise."""
        with contextlib.suppress(OSError):
            self._stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()


def met(everybody: Sequence[Ranks]) -> tuple[list[dict[str, Any]], float]:
    """Lets all ranks meet; returns the processes' reports, and the seconds that it took."""
    began = time.monotonic()
    for ranks in everybody:
        ranks.meet()
    reports = [ranks.report() for ranks in everybody]
    return reports, time.monotonic() - began


def control_plane() -> dict[str, Any]:
    """Measures the meetings of `--ranks` ranks."""
    count, processes = RANKS.value, PROCESSES.value
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    bounds = [1 + i * (count - 1) // processes for i in range(processes + 1)]
    everybody: list[Ranks] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "job.json")
        file.write_text(json.dumps({"addresses": addresses, "secret": secrets.token_hex(16)}))
        try:
            everybody += [Ranks(file, 0, 1)]
            everybody += [Ranks(file, *bounds[i : i + 2]) for i in range(processes)]
            before = [ranks.report()["memory"] for ranks in everybody][0]
            for ranks in everybody:
                ranks.report()  # all listen
            first, first_seconds = met(everybody)
            began = time.monotonic()
            everybody[-1].kill()
            everybody[-1] = Ranks(file, *everybody[-1].range)
            everybody[-1].report(), everybody[-1].report()
            restarted = time.monotonic() - began
            second, second_seconds = met(everybody)
        finally:
            for ranks in everybody:
                ranks.close()
    generations = {report["generation"] for report in [*first, *second]}
    if generations != {1, 2}:
        raise RuntimeError(f"expected generations 1 and 2, received {generations}")
    return {
        "ranks": count,
        "seconds": first_seconds,
        "killed": bounds[-1] - bounds[-2],
        "restart_seconds": restarted,
        "seconds_after_kill": second_seconds,
        "memory_of_rank_0": second[0]["memory"],
        "memory_of_rank_0_before": before,
    }


def core() -> dict[str, Any]:
    """Measures `--core_ranks` communicators in this process."""
    import tensorflow as tf

    from tfdist import ops

    size = CORE_RANKS.value
    before = simulated_ranks.memory()
    ranks = [ops.Communicator(rank, size, resizable=True) for rank in range(size)]
    figures: dict[str, Any] = {"ranks": size}
    with concurrent.futures.ThreadPoolExecutor(size) as threads:

        def on_all(call: Callable[[Any], Any]) -> tuple[list[Any], float]:
            began = time.monotonic()
            found = list(threads.map(call, ranks))
            return found, time.monotonic() - began

        def connect(generation: int) -> float:
            key, addresses = secrets.token_bytes(32), [f"127.0.0.1:{rank.port}" for rank in ranks]
            return on_all(lambda rank: rank.connect(key, generation, addresses, TIMEOUT))[1]

        figures["connect_seconds"] = connect(1)
        for name, elements in SIZES.items():
            value = {rank: tf.fill([elements], float(rank.rank)) for rank in ranks}

            def reduce(rank: Any, value: dict[Any, Any] = value) -> float:
                return float(ops.all_reduce(value[rank], rank, timeout=TIMEOUT)[-1])

            timed = [on_all(reduce) for _ in range(ROUNDS.value + 1)][1:]
            sums = {total for found, _ in timed for total in found}
            if sums != {size * (size - 1) / 2}:
                raise RuntimeError(f"all_reduce of {name} returned {sums}")
            figures[name] = statistics.median(seconds for _, seconds in timed)
        figures["memory_per_rank"] = (simulated_ranks.memory() - before) / size
        for rank in ranks[::10]:
            rank.close()
        ranks = [rank for rank in ranks if not rank.closed]
        _, reconfigured = on_all(lambda r: r.reconfigure(ranks.index(r), len(ranks)))
        figures |= {"left": len(ranks), "reconnect_seconds": reconfigured + connect(2)}
    for rank in ranks:
        rank.close()
    return figures


def show(control: dict[str, Any], engine: dict[str, Any]) -> None:
    megabyte = 2**20
    print(f"\n{control['ranks']} ranks of the control plane")
    print(f"  meet                              {control['seconds']:8.2f} s")
    print(
        f"  {control['killed']} are killed, and started again  {control['restart_seconds']:8.2f} s"
    )
    print(f"  meet again                        {control['seconds_after_kill']:8.2f} s")
    added = control["memory_of_rank_0"] - control["memory_of_rank_0_before"]
    print(f"  rank 0 takes                      {control['memory_of_rank_0'] / megabyte:8.1f} MB,")
    print(f"    more than without the others    {added / megabyte:8.1f} MB")
    print(f"\n{engine['ranks']} ranks of the core in one process")
    print(f"  connect                           {engine['connect_seconds']:8.2f} s")
    for name in SIZES:
        print(f"  all-reduce of {name:>4}                {1e3 * engine[name]:8.1f} ms")
    print(f"  memory of a rank                  {engine['memory_per_rank'] / megabyte:8.1f} MB")
    print(f"  {engine['left']} connect again                 {engine['reconnect_seconds']:8.2f} s")


def draw(file: Path, control: dict[str, Any], engine: dict[str, Any]) -> None:
    groups = {
        f"{control['ranks']} ranks meet": {
            "at first": control["seconds"],
            "after a kill": control["seconds_after_kill"],
        },
        f"{engine['ranks']} ranks of the core connect": {
            "at first": engine["connect_seconds"],
            "after a kill": engine["reconnect_seconds"],
        },
    }
    charts.bars(file, "Large jobs on one machine", "seconds", groups)


def main(argv: list[str]) -> None:
    del argv
    control, engine = control_plane(), core()
    show(control, engine)
    figures = {"control": control, "core": engine}
    results.save(JSON.value, figures, lambda file: draw(file, control, engine))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
