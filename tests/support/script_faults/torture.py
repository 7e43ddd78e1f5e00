"""Runs courses of faults by hand:

    python tests/support/script_faults/torture.py two_stage --seeds 1 2 3
    python tests/support/script_faults/torture.py two_stage --workers 1:4:2 --fault kill 1 predict 2

It prints the faults of each run, and which promises were broken.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[3]), str(HERE.parents[2])]

from support.script_faults.script_course import NAMES, Course, Fault, Found, run, run_alone  # noqa: E402
from support.script_faults.script_drawing import drawn  # noqa: E402
from support.script_faults.script_results import differences  # noqa: E402


def alone(name: str, folder: Path) -> Found:
    """Returns a script's run in one process, made once for a folder."""
    found = Found(folder / name / "alone")
    return found if (found.folder / "state-0-0").exists() else run_alone(name, found.folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"all, or: {', '.join(NAMES)}")
    parser.add_argument("--seeds", nargs="*", type=int, default=[])
    parser.add_argument("--workers", default="1:4:2")
    parser.add_argument(
        "--fault", nargs="+", action="append", metavar="KIND WORKER PLACE COUNT", default=[]
    )
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--folder", type=Path, help="where the runs' files stay")
    parser.add_argument("--show", action="store_true", help="show the ends of logs")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="scripts-"))
    broken = 0
    for name in NAMES if arguments.names == ["all"] else arguments.names:
        of_one = alone(name, folder)
        reached = of_one.reached(of_one.folder / "places-0-0")
        courses = {
            f"seed {s}": drawn(f"{name} {s}", reached, arguments.pause) for s in arguments.seeds
        }
        if not courses:
            faults = tuple(
                Fault(kind, int(worker), place, int(count), *map(int, life))
                for kind, worker, place, count, *life in arguments.fault
            )
            is_quick = any(fault.kind == "stop" for fault in faults)
            courses = {
                "; ".join(map(str, faults)): Course(
                    arguments.workers, faults, arguments.pause, is_quick
                )
            }
        for label, course in courses.items():
            print(f"{name}, {label}: {course}", flush=True)
            number = sum(1 for _ in (folder / name).glob("run-*"))
            found = run(name, course, folder / name / f"run-{number}")
            result = differences(of_one, found)
            broken += bool(result)
            for text in result:
                print(f"    BROKEN {text}")
            print(f"    {'BROKEN' if result else 'ok'}, {found.seconds:.1f} s: {found.folder}")
            if result and arguments.show:
                print(found.last_lines())
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
