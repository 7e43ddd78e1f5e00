"""The changes of tfdist in Keras: the table in the docs, tests of need, and refusals."""

from __future__ import annotations

import ast
import itertools
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tfdist import keras
from tfdist.errors import UnsupportedKerasError
from tfdist.keras import registry
from tfdist.keras.registry import Replacement

ROOT = Path(__file__).resolve().parents[3]
PAGE = "docs/reference/keras_repairs.md"
FOR_ESTIMATOR = ("tfdist.estimator.keras3.in_graphs",)
TESTS_OF_NEED = ("tests/parallel/keras/test_keras_repairs.py", "tests/devices/test_repairs.py")


def everything() -> list[Replacement]:
    pytest.importorskip("tf_keras")
    pytest.importorskip("keras_tuner")
    return registry.registered((*keras.ALL, *FOR_ESTIMATOR))


def issue_links(issues: str | None) -> str:
    if issues is None:
        return ""
    pairs = [issue.split("#") for issue in issues.split(", ")]
    return ", ".join(f"[{name}#{n}](https://github.com/{name}/issues/{n})" for name, n in pairs)


def releases(replacement: Replacement) -> str:
    since, until = replacement.since, replacement.until
    if since is None:
        return "all" if until is None else f"up to {until}"
    if until is None:
        return f"{since} on"
    return since if since == until else f"{since} to {until}"


# Since Keras 3.16, and before, as the page has them.
NAMES = {
    "backend.tensorflow.trainer.Trainer.": "backend.tensorflow.trainer.TensorFlowTrainer.",
    "trainers.trainer.BaseTrainer.": "trainers.trainer.Trainer.",
}


def row(replacement: Replacement) -> str:
    target = f"`{replacement.target}`"
    for new, former in NAMES.items():
        target = target.replace(new, former)
    if not replacement.is_repair:
        return f"| {target} | {replacement.summary} |"
    cells = (target, replacement.summary, issue_links(replacement.issue), releases(replacement))
    return f"| {' | '.join(cells)} |"


def test_the_docs_have_a_row_for_each_change():
    page = (ROOT / PAGE).read_text().splitlines()
    rows = [line for line in page if line.startswith("| `")]
    expected = [row(each) for each in everything() if each.is_repair]
    expected += [row(each) for each in everything() if not each.is_repair]
    assert rows == expected


@pytest.mark.parametrize("replacement", everything(), ids=lambda each: each.function.__name__)
def test_a_change_says_what_it_is_for(replacement):
    assert replacement.summary.endswith(".")
    folders = ("repairs",) if replacement.is_repair else ("hooks", "session")
    module = replacement.function.__module__
    assert module in FOR_ESTIMATOR or module.split(".")[:3] in [
        ["tfdist", "keras", folder] for folder in folders
    ]
    assert replacement.is_repair or replacement.issue is None


def undone(path: str) -> set[str]:
    """The names of the repairs that a test file undoes."""
    calls = [n for n in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(n, ast.Call)]
    calls = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id in ("without", "undo")]
    return {c.args[0].value for c in calls}


def test_each_repair_has_a_test_that_fails_when_it_is_not_needed():
    # A repair with a last release expires by itself.
    repairs = [r for r in everything() if r.is_repair]
    needed = {r.function.__name__ for r in repairs if r.until is None}
    assert needed <= set.union(*map(undone, TESTS_OF_NEED))
    assert set.union(*map(undone, TESTS_OF_NEED)) <= {r.function.__name__ for r in repairs}


class Owner:
    """Stands for a class of Keras."""

    value = 3

    def method(self, first, second=2, *, third=3):
        return first + second + third


def changed(function, name: str = "method", owner: type = Owner) -> Replacement:
    return Replacement(owner, name, function, True)


@pytest.mark.parametrize(
    "function",
    [
        lambda original, self, first, second=2, *, third=3: None,
        lambda original, self, first, *args, third=3: None,
        lambda original, self, *args, **kwargs: None,
        lambda original, *args, **kwargs: None,
    ],
)
def test_known_signatures(function):
    assert changed(function).mismatch() is None


@pytest.mark.parametrize(
    "function",
    [
        lambda original, self, other, second=2, *, third=3: None,
        lambda original, self, first, *, third=3: None,
        lambda original, self, first, second=2: None,
        lambda original, self, *args, fourth=4, **kwargs: None,
        lambda original: None,
    ],
)
def test_unknown_signatures(function):
    assert "received (self, first, second=2, *, third=3)" in changed(function).mismatch()


def test_values_and_what_does_not_exist():
    assert changed(lambda original: 4, "value").mismatch() is None
    assert changed(lambda original, self: 4, "value").mismatch() == "is not a function"
    assert changed(lambda original, self: 4, "gone").mismatch() == "does not exist"


@pytest.fixture
def fake(monkeypatch):
    """A module whose repairs are of a class that no other test knows."""
    owner = type("Fake", (), {"one": lambda self, x: x, "two": lambda self, x: 10 * x, "three": 3})
    module = types.ModuleType("tfdist_fake_repairs")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(registry, "_registered", [])
    monkeypatch.setattr(registry, "_layers", {})

    def register(name, function, **releases):
        function.__module__ = module.__name__
        registry.repairs(owner, name, **releases)(function)

    return types.SimpleNamespace(owner=owner, module=module.__name__, register=register)


def test_repairs_are_installed_once_and_in_order(fake):
    fake.register("one", lambda original, self, x: original(self, x) + 1)
    fake.register("one", lambda original, self, x: original(self, x) * 2)
    fake.register("three", lambda original: original + 1)
    for _ in range(2):
        registry.install(fake.module)
        assert fake.owner().one(3) == 8
        assert fake.owner.three == 4


def test_the_order_does_not_depend_on_what_is_installed_first(fake, monkeypatch):
    """Three modules in all six orders; a fourth, which the order does not name, is outside."""
    calls = []
    names = [f"{fake.module}_{letter}" for letter in "abcd"]

    def note(letter):
        def method(original, self, x):
            calls.append(letter)
            return original(self, x)

        return method

    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for first in itertools.permutations(names):
        owner = type("Fake", (), {"one": lambda self, x: x})
        monkeypatch.setattr(registry, "_registered", [])
        for name in names:
            function = note(name[-1])
            function.__module__ = name
            registry.hooks(owner, "one")(function)
        for name in first:
            registry.install(name, order=names[:3])
        assert owner().one(3) == 3
        assert "".join(calls) == "dcba"
        calls.clear()


def test_what_somebody_else_has_put_around_a_repair_stays(fake, monkeypatch):
    fake.register("one", lambda original, self, x: original(self, x) + 1)
    registry.install(fake.module)
    ours = fake.owner.one
    monkeypatch.setattr(fake.owner, "one", lambda self, x: ours(self, x) * 10)
    fake.register("one", lambda original, self, x: original(self, x) + 5)
    registry.install(fake.module, order=[fake.module])
    assert fake.owner().one(3) == 45


@pytest.mark.long(covered_by="test_the_order_does_not_depend_on_what_is_installed_first")
def test_strategies_are_repaired_alike_after_whatever_comes_before():
    """In a new process, in which parts of the list are installed first."""
    program = """
import keras, tf_keras
import tfdist
from tfdist import keras as of_keras
from tfdist.keras import registry
of_keras.follow_data_tasks()
of_keras.keep_ops_from_xla()
of_keras.repair_tables_of_tf_keras()
of_keras.repair_distributed_optimizers()
of_keras.apply_repairs()
places = {module: place for place, module in enumerate(of_keras.ALL)}
targets = {}
for each in registry.installed():
    targets.setdefault(each.target, []).append(each)
several = [found for found in targets.values() if len(found) > 1]
assert len(several) > 5
for found in several:
    got = [places[each.function.__module__] for each in found]
    assert got == sorted(got), found
    outer = getattr(found[0].owner, found[0].name)
    for each in reversed(found):
        assert outer.tfdist_replacement is each
        outer = outer.__wrapped__
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100, cwd=ROOT)


def test_repairs_of_other_releases_are_not_installed(fake):
    fake.register("one", lambda original, self, x: -1, until="3.7")
    fake.register("gone", lambda original, self, x: -1, since="99.0")
    registry.install(fake.module)
    assert fake.owner().one(3) == 3


def test_one_message_names_all_that_is_unknown_and_nothing_is_changed(fake):
    fake.register("one", lambda original, self, x: -1)
    fake.register("two", lambda original, self, y: -1)
    fake.register("gone", lambda original, self: -1)
    with pytest.raises(
        UnsupportedKerasError,
        match=r"Fake\.two expected the parameters \(self, y\), received \(self, x\); "
        r".*Fake\.gone does not exist\. Install a release of Keras",
    ):
        registry.install(fake.module)
    assert fake.owner().one(3) == 3
