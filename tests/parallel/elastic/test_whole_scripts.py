"""Scripts with several calls of `fit` whose workers are killed, stopped, leave and join.

Each equals one process that nothing happened to: models, histories, arrays, decisions and files.
tests/soak/test_script_soak.py draws hundreds of faults.
"""

from __future__ import annotations

import pytest

from support.script_faults.script_course import Course, Fault, run, run_alone
from support.script_faults.script_results import differences
from support.warm_python import interpreter

PAUSE = 0.05
COURSES = {
    # The usual ones: a model that another one needs, and many short calls of fit.
    "two_stage-kill": (
        "two_stage",
        Course("1:4:2", (Fault("kill", 1, "step", 12),), PAUSE),
    ),
    "one_epoch_fits-kill": (
        "one_epoch_fits",
        Course("1:4:2", (Fault("kill", 0, "step", 24),), PAUSE),
    ),
    # One for each script and kind of place.
    "two_stage-predict": (
        "two_stage",
        Course("2:4:2", (Fault("kill", 0, "step of predict", 3),), PAUSE),
    ),
    "alternating_gan-one after the other": (
        "alternating_gan",
        Course("1:4:2", (Fault("kill", 1, "fit", 3), Fault("kill", 0, "fit", 20)), PAUSE),
    ),
    "alternating_gan-fit 7": (
        "alternating_gan",
        Course("2:4:2", (Fault("kill", 1, "trace", 2), Fault("kill", 0, "after fit", 7)), PAUSE),
    ),
    "random_search-trial": (
        "random_search",
        Course("1:4:2", (Fault("kill", 1, "after fit", 2),), PAUSE),
    ),
    "cross_validation-checkpoint": (
        "cross_validation",
        Course("1:4:2", (Fault("kill", 0, "rename", 7),), PAUSE),
    ),
    "curriculum-two": (
        "curriculum",
        Course("1:4:3", (Fault("kill", 0, step=20), Fault("kill", 2, step=20)), PAUSE),
    ),
    "pseudo_labels-newcomer": (
        "pseudo_labels",
        Course(
            "1:4:2", (Fault("kill", 1, "step", 30), Fault("kill", 1, "predict", 1, life=1)), PAUSE
        ),
    ),
    "fine_tuning-leave and join": (
        "fine_tuning",
        Course("1:4:2", (Fault("leave", 0, step=20), Fault("join", step=30)), PAUSE),
    ),
    "weight_averaging-kill": (
        "weight_averaging",
        Course("1:4:2", (Fault("kill", 1, "step", 140),), PAUSE),
    ),
    "evaluate_then_decide-stop": (
        "evaluate_then_decide",
        Course("1:4:2", (Fault("stop", 0, "after fit", 2, seconds=8.0),), PAUSE, is_quick=True),
    ),
    "evaluate_then_decide-end": (
        "evaluate_then_decide",
        Course("1:4:2", (Fault("kill", 1, "end"),), PAUSE),
    ),
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Runs a script in one process, once."""
    found = {}

    def run_once(name):
        if name not in found:
            folder = tmp_path_factory.mktemp(name) / "alone"
            found[name] = run_alone(name, folder, interpreter())
        return found[name]

    return run_once


@pytest.mark.long(covered_by="parallel/elastic/test_elastic_scripts.py")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("course", COURSES)
def test_faults_leave_no_trace(course, alone, tmp_path):
    name, faults = COURSES[course]
    found = run(name, faults, tmp_path / "run", interpreter())
    broken = differences(alone(name), found)
    assert not broken, "\n".join([str(faults), *broken, found.last_lines()])
    assert found.came, f"no fault came: {faults}"
