"""The last lines of a task in a report: the program's own, if it has printed any."""

from __future__ import annotations

from tfdist.launch.tail import Tail

LOGGED = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "E0000 00:00:1795963583.830135    2468 cuda_platform.cc:52] failed call to cuInit: INTERNAL",
    "2026-11-29 14:43:00.123456: W tensorflow/core/kernels/data/op.cc:9] the cache is not full",
    "W0000 00:00:1795963585.631902    2776 local_rendezvous.cc:412] is aborting: UNAVAILABLE",
    "\t [[{{node TfdistAllReduce}}]]",
]
OWN = [
    "epoch 1",
    "F0000 00:00:1795963585.631902    2776 tensor.cc:1] Check failed: dtype() == 1",
    "\tan indented line",
    "E0000 is no line of a log",
]


def tail_of(lines):
    tail = Tail()
    for line in lines:
        tail.append(line)
    return tail.lines


def test_lines_of_tensorflow_s_log_do_not_push_the_program_s_out():
    assert tail_of([*OWN, *100 * LOGGED]) == OWN
    assert tail_of([LOGGED[0], *OWN, *LOGGED, ""]) == [*OWN, ""]


def test_without_others_the_log_is_shown():
    assert tail_of([*LOGGED, "  "]) == LOGGED
    assert tail_of([]) == []


def test_only_the_last_lines_are_kept():
    lines = [f"step {number}" for number in range(50)]
    assert tail_of(lines) == lines[-20:]
