"""Draws courses of faults for scripts from a seed."""

from __future__ import annotations

import random
from collections import Counter

from support.script_faults.script_course import Course, Fault

# Each with its weight.
KINDS = {
    "kill at a place": 6,
    "kill at any moment": 4,
    "kill two": 2,
    "kill a newcomer": 3,
    "stop": 3,
    "leave": 2,
    "join": 2,
}
# Each with its weight; places of files are reached by rank 0 alone, which worker 0 is at first.
PLACES = {
    "fit": 3,
    "after fit": 3,
    "predict": 3,
    "after predict": 1,
    "step of predict": 2,
    "evaluate": 2,
    "step of evaluate": 2,
    "after evaluate": 1,
    "trace": 2,
    "step": 2,
    "epoch end": 1,
    "after epoch": 1,
    "train end": 1,
    "after train end": 2,
    "save": 1,
    "file": 2,
    "rename": 2,
    "after rename": 1,
    "end": 1,
}
OF_RANK_0 = ("save", "file", "rename", "after rename")
OF_NEWCOMERS = ("fit", "trace", "after fit", "predict", "evaluate", "step")


def drawn(seed: str, reached: Counter[str], pause: float) -> Course:
    """Draws a course of two or three faults.

    Args:
      seed: of the course; the same one draws the same course.
      reached: how often a script that nothing happens to reaches each place.
      pause: seconds after each step.
    """
    choose = random.Random(seed)
    workers = choose.choice(["1:4:2", "2:4:2", "2:4:3"])
    _, _, start = map(int, workers.split(":"))
    # Without enough workers all stop, and a stopped worker that continues waits for a long time.
    may_leave = workers.startswith("1:")
    faults: list[Fault] = []
    steps = sorted(choose.randrange(1, reached["step"]) for _ in range(6))
    # A worker that suffers twice may be left out by the launcher.
    whole = list(range(start))
    while len(faults) < 2:
        kind = choose.choices(list(KINDS), weights=list(KINDS.values()))[0]
        worker = choose.choice(whole) if whole else 0
        outside = {"step": steps[len(faults)], "delay": choose.uniform(0.0, 2.0 * pause)}
        if kind == "join":
            faults.append(Fault("join", **outside))
            continue
        if not whole or (kind == "leave" and (not may_leave or len(whole) < 2)):
            continue
        if kind == "kill two" and start < 3:
            continue
        if kind == "kill at a place":
            place = _place(choose, reached, PLACES, worker)
            faults.append(Fault("kill", worker, *place))
        elif kind == "kill two":
            other = choose.choice([slot for slot in range(start) if slot != worker])
            if other not in whole:
                continue
            faults.append(Fault("kill", worker, **outside))
            between = {"step": outside["step"], "delay": choose.choice([0.0, 0.05, 0.2])}
            faults.append(Fault("kill", other, **between))
            whole.remove(other)
        elif kind == "kill a newcomer":
            faults.append(Fault("kill", worker, **outside))
            place = choose.choice([place for place in OF_NEWCOMERS if reached[place]])
            count = choose.randint(1, min(4, reached[place]))
            faults.append(Fault("kill", worker, place, count, life=1))
        else:
            of_kind = "kill" if kind == "kill at any moment" else kind
            seconds = choose.choice([choose.uniform(0.5, 2.0), choose.uniform(5.0, 9.0)])
            if choose.random() < 0.5 and kind != "kill at any moment":
                place = _place(choose, reached, PLACES, worker)
                faults.append(Fault(of_kind, worker, *place, seconds=seconds))
            else:
                faults.append(Fault(of_kind, worker, **outside, seconds=seconds))
        whole.remove(worker)
    faults.sort(key=lambda fault: (bool(fault.place), fault.step))
    is_quick = any(fault.kind == "stop" for fault in faults)
    return Course(workers, tuple(faults), pause, is_quick)


def _place(
    choose: random.Random, reached: Counter[str], places: dict[str, int], worker: int
) -> tuple[str, int]:
    """Draws a place that the script reaches, and one of the times that it does."""
    possible = {
        place: weight
        for place, weight in places.items()
        if reached[place] and (place not in OF_RANK_0 or worker == 0)
    }
    place = choose.choices(list(possible), weights=list(possible.values()))[0]
    return place, choose.randint(1, reached[place])
