"""Which package is under test, and what all tests begin and end with.

Run from the project's root, the tests use the package of this tree. Run from any other directory
they use the installed one, if there is one: that is how a wheel is tested. The folders beside this
file are the tests' own packages: pytest puts this folder, not its parent, on the path.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent

if Path.cwd() == ROOT or importlib.util.find_spec("tfdist") is None:
    sys.path.insert(0, str(ROOT))


@pytest.fixture(autouse=True)
def close_servers_and_clients() -> Iterator[None]:
    """Closes what `table_job` has opened for a test: a process has few descriptors."""
    yield
    if table_job := sys.modules.get("support.table_job"):
        table_job.OPEN.close()


@pytest.fixture(autouse=True)
def forget_the_seed() -> Iterator[None]:
    """Unsets TensorFlow's global seed, which decides what unseeded pipelines of later tests do."""
    yield
    if "tensorflow" in sys.modules:
        from tensorflow.python.eager import context

        if context.global_seed() is not None:
            sys.modules["tensorflow"].random.set_seed(None)


@pytest.fixture(autouse=True)
def forget_the_precision() -> Iterator[None]:
    """Lets later tests compute in single precision, unless they say otherwise."""
    yield
    for name in ("keras", "tf_keras"):
        if name in sys.modules and sys.modules[name].backend.floatx() != "float32":
            sys.modules[name].backend.set_floatx("float32")
    if "keras" in sys.modules:
        from keras.src.backend.common import global_state

        # The policy of layers keeps the precision that was set when it was first asked for.
        global_state.set_global_attribute("dtype_policy", None)


def pytest_report_header() -> str:
    """Shows in pytest's first lines which tfdist is being tested."""
    found = importlib.util.find_spec("tfdist")
    return f"tfdist under test: {found.origin if found else 'none'}"


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Fails a file with a mark that holds for none of its cases."""
    from support.long_cases import Case, marks_without_cases

    report = (yield).get_result()
    if isinstance(collector, pytest.Module) and report.passed:
        cases = [Case.of(item) for item in report.result if isinstance(item, pytest.Item)]
        if wrong := list(marks_without_cases(cases)):
            report.outcome, report.longrepr, report.result = "failed", "\n".join(wrong), []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects long cases, except tests that are asked for by their ids."""
    from support.long_cases import Case
    from support.tiers import LONG

    if not LONG and not any("::" in argument for argument in config.args):
        config.hook.pytest_deselected(items=[item for item in items if Case.of(item).is_long])
        items[:] = [item for item in items if not Case.of(item).is_long]


def pytest_collection_finish() -> None:
    """Opens the file of locked ports, before a test moves the directory for temporary files.

    Leaves what is imported out of garbage collections, which took a tenth of the time.
    """
    from tfdist.launch.ports import free_ports

    free_ports(1)
    gc.collect()
    gc.freeze()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Adds how long a test took to the file TEST_TIMES, for the end of scripts/test."""
    path = os.environ.get("TEST_TIMES")
    if path and report.duration > 0.05 and "PYTEST_XDIST_WORKER" not in os.environ:
        # A fixture that several tests share takes its time in the first one's setup.
        phase = "" if report.when == "call" else f" ({report.when})"
        with open(path, "a") as times:
            times.write(f"{report.duration:8.1f} s  {report.nodeid}{phase}\n")
