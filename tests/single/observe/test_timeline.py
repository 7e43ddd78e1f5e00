"""Parts of a timeline, their clocks, and the file that they are merged to."""

from __future__ import annotations

import json
import struct
import zlib
from base64 import b64encode

import pytest

from support.trace_format import Timeline, end_of, problems
from tfdist.observe.clock import Offset
from tfdist.observe.timeline import parts
from tfdist.observe.timeline.alignment import align
from tfdist.observe.timeline.merge import merge, merge_after_last
from tfdist.observe.timeline.parts import Header, PartWriter

# Some of the fields of a record, and the padding.
LAYOUT = [
    *((name, "Q") for name in ("sequence", "communicator", "key", "number", "bytes")),
    *((name, "Q") for name in ("submitted", "started", "ended")),
    *((name, "i") for name in ("rank", "size", "peer")),
    *(("kind", "B"), ("state", "B"), ("unused", "2x")),
    *((name, "16s") for name in ("operation", "dtype", "name", "detail", "error")),
]
RECORD = struct.Struct("=" + "".join(form for _, form in LAYOUT))
COLLECTIVE, REQUEST, SPAN = 1, 2, 3
SUBMITTED, DONE, FAILED = 1, 3, 4
MS = 10**6
WALL = 1_700_000_000 * 10**9


def record(sequence, kind, begin, started, end, name="", operation="", state=DONE, **fields):
    """An event; times in ms."""
    values = dict.fromkeys((field for field, form in LAYOUT if form in "Qi"), 0)
    values |= dict.fromkeys(("dtype", "detail", "error"), b"") | {"peer": -1} | fields
    values |= {"sequence": sequence, "kind": kind, "state": state}
    times = (("submitted", begin), ("started", started), ("ended", end))
    values |= {field: int(time * MS) for field, time in times}
    values |= {"name": name.encode(), "operation": operation.encode()}
    return RECORD.pack(*(values[field] for field, form in LAYOUT if form != "2x"))


def writer(path, task="worker 0", domain="here", tasks=("worker 0",), began=0, wall=0):
    """A part that begins at these times, in ms."""
    rank = int(task.split()[1]) if task.startswith("worker") else None
    steady, day = int(began * MS), WALL + int(wall * MS)
    header = Header(task, rank, list(tasks), 7, "host", "1.0", domain, steady, day)
    made = PartWriter(path, header)
    made.layout(LAYOUT)
    return made


def merged(path, *contents):
    """Writes one part of these records, and merges it."""
    made = writer(path)
    for content in contents:
        made.records(content)
    made.close()
    merge(path)
    return Timeline(path)


def test_buckets_that_overlap_have_tracks_of_their_own(tmp_path):
    timeline = merged(
        tmp_path / "out.json",
        record(1, COLLECTIVE, 1, 3, 9, "first", "all_reduce", bytes=4096, size=3),
        record(2, COLLECTIVE, 2, 2, 5, "second", "all_reduce"),
        record(3, COLLECTIVE, 5, 6, 8, "third", "all_reduce"),
    )
    first, second, third = timeline.slices("worker 0", "collective")
    assert first["tid"] != second["tid"] == third["tid"]
    assert (first["args"]["bytes"], first["args"]["ranks"]) == (4096, 3)
    (waiting,), (travelling,) = (
        timeline.inside(first, category) for category in ("waiting", "travelling")
    )
    assert (waiting["ts"], waiting["dur"]) == (1000, 2000)
    assert (travelling["ts"], travelling["dur"]) == (3000, 6000)
    assert timeline.inside(second, "waiting") == []


def test_phases_of_a_step(tmp_path):
    timeline = merged(
        tmp_path / "out.json",
        record(1, SPAN, 10, 10, 30, "step", "span", detail=b"epoch 0, batch 2"),
        record(2, COLLECTIVE, 14, 15, 20, "late layer", "all_reduce"),
        record(3, COLLECTIVE, 18, 19, 26, "early layer", "all_reduce"),
        record(4, SPAN, 30, 30, 40, "step", "span"),
    )
    step, alone = timeline.slices("worker 0", "step")
    phases = [(p["name"], p["ts"], p["dur"]) for p in timeline.inside(step, "phase")]
    assert phases == [
        ("forward and backward", 10_000, 8000),
        ("wait for gradients", 18_000, 8000),
        ("update", 26_000, 4000),
    ]
    assert step["args"]["detail"] == "epoch 0, batch 2" and timeline.inside(alone, "phase") == []


def test_phases_of_a_step_with_servers(tmp_path):
    timeline = merged(
        tmp_path / "out.json",
        record(1, SPAN, 10, 10, 30, "step", "span"),
        record(2, REQUEST, 11, 11, 14, "variables", "pull", peer=1),
        record(3, REQUEST, 22, 23, 28, "gradients", "push"),
    )
    (step,) = timeline.slices("worker 0", "step")
    assert [(p["name"], p["dur"]) for p in timeline.inside(step, "phase")] == [
        ("wait for variables", 4000),
        ("forward and backward", 8000),
        ("push", 6000),
        ("end of step", 2000),
    ]
    pull, _ = timeline.slices("worker 0", "request")
    assert (pull["name"], pull["args"]["of"]) == ("pull", "variables")
    assert pull["args"]["server"] == "ps 1"


def test_the_later_record_of_an_event_counts(tmp_path):
    timeline = merged(
        tmp_path / "out.json",
        record(1, COLLECTIVE, 1, 0, 0, "a", "all_reduce", state=SUBMITTED)
        + record(2, COLLECTIVE, 2, 0, 0, "b", "all_reduce", state=SUBMITTED),
        record(1, COLLECTIVE, 1, 2, 7, "a", "all_reduce", state=FAILED, error=b"a peer was lost"),
    )
    ended, hangs = timeline.slices("worker 0", "collective")
    assert (ended["dur"], ended["args"]["error"]) == (6000, "a peer was lost")
    # Until the last instant that is known.
    assert hangs["args"]["unfinished"] and end_of(hangs) == 7000
    (about,) = timeline.about["tasks"]
    assert (about["events"], about["unfinished"]) == (2, 1)


def test_what_is_missing_is_said(tmp_path):
    path = tmp_path / "out.json"
    lossy = writer(path)
    lossy.lost(3)
    lossy.lost(4)
    lossy.close()
    killed = writer(path, "worker 1")
    killed.records(record(1, SPAN, 1, 1, 2, "step", "span"))
    killed.close(whole=False)
    with open(killed.path, "ab") as file:
        file.write(b'{"records": "eJ')
    (parts.directory_of(path) / "empty.part").touch()
    found = merge(path)
    assert found.tasks == 2 and found.events == 1
    assert found.notes[0].endswith(
        "empty.part: expected a part of a timeline, format 1, received: no format 1"
    )
    assert found.notes[1:] == [
        "worker 0: 7 events are missing, which came faster than they could be written",
        "worker 1 has not ended its recording, and its last line is torn; it was killed, or "
        "continues",
    ]
    timeline = Timeline(path)
    assert timeline.about["notes"] == found.notes
    assert [task["lost"] for task in timeline.about["tasks"]] == [7, 0]
    assert len(timeline.slices("worker 1", "step")) == 1
    assert path.stat().st_mode & 0o777 == 0o600 and not parts.directory_of(path).exists()


def test_a_measured_clock_that_drifts(tmp_path):
    path = tmp_path / "out.json"
    writer(path, domain="here", began=100, wall=0).close()
    away = writer(path, "worker 1", "there", began=5000, wall=7)
    # Behind by 4,900 ms, and 2 ms more 100 ms later.
    away.clock(Offset("here", 5000 * MS, -4900 * MS, 45_000))
    away.clock(Offset("here", 5100 * MS, -4902 * MS, 50_000))
    for sequence, begin in enumerate((4990, 5050, 5200), 1):
        away.records(record(sequence, SPAN, begin, begin, begin + 1, "step", "span"))
    away.close()
    merge(path)
    timeline = Timeline(path)
    zero = 90  # the first step, on the clock of worker 0
    steps = timeline.slices("worker 1", "step")
    assert [s["ts"] / 1000 + zero for s in steps] == [90, 149, 298]
    assert timeline.clocks["worker 0"]["method"] == "same clock"
    assert timeline.clocks["worker 1"] == {
        "method": "measured",
        "error_us": 50.0,
        "measurements": 2,
        "offset_us": [-4_900_000.0, -4_902_000.0],
    }


def test_a_delayed_measurement_of_a_clock_is_left_out(tmp_path):
    path = tmp_path / "out.json"
    made = writer(path, domain="there")
    # 100 us of drift in a second are possible; the second one may be wrong by more.
    for at, offset, error in ((0, 50, 0.2), (1000, 57, 8), (2000, 51, 0.3), (3000, 50.5, 0.35)):
        made.clock(Offset("here", at * MS, int(offset * MS), int(error * MS)))
    made.close()
    (path,) = parts.paths(path)
    (found,) = align([parts.read_part(path)]).alignments
    assert [at // MS for at in found.at] == [0, 2000, 3000] and found.error == 350_000
    assert found.convert(1000 * MS) == 1050.5 * MS


def test_a_clock_that_was_never_measured_is_compared_by_the_time_of_day(tmp_path):
    path = tmp_path / "out.json"
    writer(path, domain="here", began=100, wall=0).close()
    writer(path, "worker 1", "there", began=5000, wall=20).close()
    clocks = align([parts.read_part(each) for each in parts.paths(path)])
    assert clocks.reference == "here"
    assert clocks.alignments[1].convert(5000 * MS) == 120 * MS
    merge(path)
    clock = Timeline(path).clocks["worker 1"]
    assert (clock["method"], clock["error_us"]) == ("wall clock", None)


def test_a_reference_without_a_part(tmp_path):
    path = tmp_path / "out.json"
    for number, offset in ((0, 50), (1, -50)):
        made = writer(path, f"worker {number}", f"host {number}", began=1000, wall=0)
        made.clock(Offset("the server's", 1000 * MS, offset * MS, 1))
        made.close()
    clocks = align([parts.read_part(each) for each in parts.paths(path)])
    assert [each.convert(1000 * MS) // MS for each in clocks.alignments] == [1050, 950]


def test_a_clock_that_was_compared_with_another_one_than_the_reference(tmp_path):
    path = tmp_path / "out.json"
    asked = {1: ("host 0", 10), 2: ("host 0", 20), 3: ("host 2", 5), 4: (None, 0)}
    writer(path, "worker 0", "host 0", began=1000).close()
    for number, (reference, offset) in asked.items():
        # Workers 3 and 4 are on one machine.
        made = writer(path, f"worker {number}", f"host {min(number, 3)}", began=1000)
        if reference is not None:
            made.clock(Offset(reference, 1000 * MS, offset * MS, 100))
        made.close()
    clocks = align(sorted(map(parts.read_part, parts.paths(path)), key=lambda p: p.header.task))
    assert [a.convert(1000 * MS) // MS for a in clocks.alignments] == [1000, 1010, 1020, 1025, 1025]
    assert [a.error for a in clocks.alignments] == [0, 100, 100, 200, 200]


def test_a_collective_waits_for_the_last_rank(tmp_path):
    path = tmp_path / "out.json"
    for rank, begin in enumerate((1, 6, 2)):
        made = writer(path, f"worker {rank}")
        made.records(record(1, COLLECTIVE, begin, begin, 9, "a", "all_reduce", size=3))
        times = (begin + 10, begin + 10, 19)
        made.records(record(2, COLLECTIVE, *times, "b", "broadcast", size=3, key=7, peer=0))
        made.close()
    merge(path)
    timeline = Timeline(path)
    (early,), (late,) = (timeline.slices(f"worker {rank}", "collective", "a") for rank in (0, 1))
    assert early["args"]["last rank"] == "worker 1" and "last rank" not in late["args"]
    (waiting,) = timeline.inside(early, "waiting")
    assert (waiting["ts"], waiting["dur"]) == (1000, 5000)
    assert timeline.inside(late, "waiting") == []
    # The ranks of a broadcast do not wait for each other.
    (broadcast,) = timeline.slices("worker 0", "collective", "b")
    assert timeline.inside(broadcast, "waiting") == []


def test_the_last_task_merges(tmp_path):
    path = tmp_path / "out.json"
    tasks = ("worker 0", "worker 1")
    first = writer(path, "worker 0", tasks=tasks)
    first.close()
    assert merge_after_last(path) is None  # worker 1 has not begun
    second = writer(path, "worker 1", tasks=tasks)
    assert merge_after_last(path) is None  # it records
    second.close()
    with parts.claimed(path):
        assert merge_after_last(path) is None  # the launcher will merge
    assert merge_after_last(path).tasks == 2
    assert merge_after_last(path) is None  # there is nothing left
    assert sorted(Timeline(path).processes) == ["worker 0", "worker 1"]


def test_parts_of_a_task_that_still_records_stay(tmp_path):
    path = tmp_path / "out.json"
    writer(path).close()
    living = writer(path, "worker 1")
    found = merge(path)
    assert "worker-1 still recorded when this was written" in found.notes
    assert len(parts.paths(path)) == 2
    living.close()
    assert merge(path).notes == []


def test_a_task_that_was_started_again_is_a_process_of_its_own(tmp_path):
    path = tmp_path / "out.json"
    for began in (1, 2):
        writer(path, wall=began).close()
    merge(path)
    assert list(Timeline(path).processes) == ["worker 0", "worker 0, process 2"]


def test_the_rules_of_the_format_find_mistakes():
    def event(ts, dur):
        return {
            "ph": "X",
            "pid": 0,
            "tid": 0,
            "name": "a",
            "cat": "b",
            "args": {},
            "ts": ts,
            "dur": dur,
        }

    names = [
        {"ph": "M", "pid": 0, "tid": 0, "name": name, "args": {"name": "a"}}
        for name in ("process_name", "thread_name")
    ]
    assert problems({"traceEvents": [*names, event(0, 5), event(1, 2), event(5, 1)]}) == []
    for wrong in (
        [event(0, 5)],
        [*names, event(0, 5), event(3, 5)],
        [*names, event(0, -1)],
        [*names, {**event(0, 1), "pid": "0"}],
        [{"ph": "M", "pid": 0, "tid": 0, "name": "process_name", "args": {}}],
    ):
        assert len(problems({"traceEvents": wrong})) == 1
    assert problems(json.loads("[]"))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"[" * 3000, "recursion"),
        (b'{"records": "%s"}' % b64encode(zlib.compress(bytes(1001))), "more than 1000 bytes"),
        (b'{"records": "%s"}' % b64encode(zlib.compress(bytes(64))[:-2]), "cut"),
    ],
)
def test_a_part_that_no_task_writes(tmp_path, monkeypatch, line, problem):
    monkeypatch.setattr(parts, "_MAX_RECORDS", 1000)
    writer(tmp_path / "job.json").close()
    (path,) = (tmp_path / "job.json.parts").glob("*.part")
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(ValueError, match=rf"{path}.*{problem}"):
        parts.read_part(path)
