"""The functions that tfdist replaces in Keras: one list, and the one place that installs it.

There are two kinds. A *repair* corrects a defect of Keras or TensorFlow. It names the issue and the
releases of Keras that need it, and is deleted when the oldest supported release no longer does. A
*hook* makes Keras do what tfdist offers, and stays.

    @repairs(LossScaleOptimizer, "check_finite", issue="keras-team/keras#18666")
    def agree_on_overflow(original, self, grads):
        '''Finite gradients are looked for in each replica alone.'''
        return _finite_on_all(original(self, grads))

The decorated function is called in place of `LossScaleOptimizer.check_finite`. Its first parameter
is the function that it replaces: Keras's own, or a replacement that was installed before. The other
parameters must equal the parameters of Keras's function, where `*args` and `**kwargs` stand for
any. The first paragraph of its docstring is its row in docs/reference/keras_repairs.md. A decorated
function whose only parameter is `original` replaces a value: it is called once, and returns the new
value.

Decorating registers and changes nothing. `install` does, in the order of the modules that it is
given, and within a module in the order of definition: the last one is the outermost. Replacements
that were installed earlier and come later in the order are put around the new ones again. So the
order is the same in a process that used another part of tfdist first.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tfdist.errors import UnsupportedKerasError
from tfdist.tracebacks import hide_own_frames

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclasses.dataclass(frozen=True, eq=False)
class Replacement:
    """One function or value of Keras, and its replacement.

    Attributes:
      owner: the class or module that has it.
      name: the attribute of the owner.
      function: the decorated function.
      is_repair: whether it is a repair; else it is a hook.
      issue: the upstream issues, such as "keras-team/keras#18666"; `None` if there is none.
      since: the first release of Keras that needs a repair, such as "3.8"; `None`: all.
      until: the last one; `None`: the defect is not fixed yet.
      adds: whether the owner may lack the name; the original is then `None`.
    """

    owner: type | types.ModuleType
    name: str
    function: Callable
    is_repair: bool
    issue: str | None = None
    since: str | None = None
    until: str | None = None
    adds: bool = False

    @property
    def target(self) -> str:
        """The full name of the replaced function or value."""
        if inspect.ismodule(self.owner):
            return f"{self.owner.__name__}.{self.name}"
        return f"{self.owner.__module__}.{self.owner.__qualname__}.{self.name}"

    @property
    def summary(self) -> str:
        """The first paragraph of the docstring, on one line."""
        return " ".join((inspect.getdoc(self.function) or "").partition("\n\n")[0].split())

    def is_for(self, release: tuple[int, ...]) -> bool:
        """Whether a release of Keras, as major and minor number, needs it."""
        return (self.since is None or _numbers(self.since) <= release) and (
            self.until is None or release <= _numbers(self.until)
        )

    def mismatch(self) -> str | None:
        """How the function to be replaced differs from the expected one; `None` if it does not."""
        if not hasattr(self.owner, self.name):
            return None if self.adds else "does not exist"
        current = getattr(self.owner, self.name)
        own = list(inspect.signature(self.function).parameters.values())[1:]
        if not callable(current):
            return "is not a function" if own else None
        received = inspect.signature(current)
        if not own or not accepts(own, list(received.parameters.values())):
            expected = inspect.Signature(own)
            return f"expected the parameters {expected}, received {received}"
        return None

    def around(self, original: Any) -> Any:
        """Returns the replacement of `original`."""
        function = self.function
        if not callable(original) and not self.adds:
            return function(original)

        @functools.wraps(original or function)
        def replaced(*args: object, **kwargs: object) -> Any:
            try:
                return function(original, *args, **kwargs)
            except BaseException as error:
                hide_own_frames(error)
                raise

        marked: Any = replaced
        marked.tfdist_replacement = self
        return marked


@dataclasses.dataclass(frozen=True)
class _Layer:
    """An installed replacement, the value inside of it, and the value that it has made."""

    replacement: Replacement
    inner: Any
    outer: Any


_registered: list[Replacement] = []
# By the owner and the name; the innermost is the first.
_layers: dict[tuple[type | types.ModuleType, str], list[_Layer]] = {}


def repairs(
    owner: type | types.ModuleType,
    name: str,
    *,
    issue: str | None = None,
    since: str | None = None,
    until: str | None = None,
    adds: bool = False,
) -> Callable[[Callable], Callable]:
    """Registers a function as the repair of `owner.name`; see the module, and `Replacement`."""

    def register(function: Callable) -> Callable:
        _registered.append(Replacement(owner, name, function, True, issue, since, until, adds))
        return function

    return register


def hooks(
    owner: type | types.ModuleType, name: str, *, until: str | None = None
) -> Callable[[Callable], Callable]:
    """Registers a function as product code that replaces `owner.name`; see the module."""

    def register(function: Callable) -> Callable:
        _registered.append(Replacement(owner, name, function, False, until=until))
        return function

    return register


def registered(modules: Iterable[str]) -> list[Replacement]:
    """Imports modules, and returns what they register, in the order of installation."""
    for module in modules:
        importlib.import_module(module)
    return [r for module in modules for r in _registered if r.function.__module__ == module]


def installed() -> list[Replacement]:
    """The replacements that are installed in this process; of one target, the innermost first."""
    return [layer.replacement for layers in _layers.values() for layer in layers]


def install(*modules: str, order: Sequence[str] = ()) -> None:
    """Installs what modules register for the installed Keras, all or nothing; each only once.

    Args:
      *modules: full names. They are imported now, and with them Keras.
      order: full names of modules, from the innermost to the outermost. Modules that it does not
        name are outside of all that are installed.

    Raises:
      UnsupportedKerasError: a function to be replaced is not as expected; nothing was changed.
    """
    import keras

    release = tuple(int(part) for part in keras.__version__.split(".")[:2])
    present = installed()
    new = [r for r in registered(modules) if r.is_for(release) and r not in present]
    problems = [f"{r.target} {problem}" for r in new if (problem := r.mismatch()) is not None]
    if problems:
        raise UnsupportedKerasError(
            f"tfdist changes functions of Keras that Keras {keras.__version__} does not have in "
            f"the form that tfdist knows: {'; '.join(problems)}. Install a release of Keras that "
            "tfdist was tested with; its requirements name them."
        )
    places = {module: place for place, module in enumerate(order)}
    for each in new:
        _put(each, places)


def _put(new: Replacement, places: dict[str, int]) -> None:
    """Puts a replacement inside of the installed replacements of later places."""

    def place(replacement: Replacement) -> int:
        return places.get(replacement.function.__module__, len(places))

    layers = _layers.setdefault((new.owner, new.name), [])
    current = getattr(new.owner, new.name, None)
    later: list[Replacement] = []
    # A function that somebody else has put around ours stays inside of the new one.
    while layers and layers[-1].outer is current and place(layers[-1].replacement) > place(new):
        current = layers[-1].inner
        later.insert(0, layers.pop().replacement)
    for replacement in (new, *later):
        layers.append(_Layer(replacement, current, replacement.around(current)))
        current = layers[-1].outer
    setattr(new.owner, new.name, current)


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def accepts(own: list[inspect.Parameter], theirs: list[inspect.Parameter]) -> bool:
    """Whether a function of the parameters `own` may stand for one of the parameters `theirs`."""
    kinds = {p.kind for p in own}
    own_names = [p.name for p in own if p.kind in _POSITIONAL]
    names = [p.name for p in theirs if p.kind in _POSITIONAL]
    if own_names != names[: len(own_names)]:
        return False
    keywords = {p.name for p in own if p.kind == inspect.Parameter.KEYWORD_ONLY}
    if not keywords <= {p.name for p in theirs}:
        return False
    for parameter in theirs:
        if parameter.name in own_names or parameter.name in keywords:
            continue
        by_position = parameter.kind in (*_POSITIONAL, inspect.Parameter.VAR_POSITIONAL)
        needed = inspect.Parameter.VAR_POSITIONAL if by_position else inspect.Parameter.VAR_KEYWORD
        if needed not in kinds:
            return False
    return True
