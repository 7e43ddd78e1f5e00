"""Multi-process tests: each rank runs the body of the test.

    @on_ranks(2, 4)
    def test_sum(ctx):
        assert my_all_reduce(ctx.rank) == sum(range(ctx.size))

Each rank is a process forked from a server that has imported TensorFlow and run nothing, so a test
starts in a fraction of a second. TF_CONFIG describes the ranks as workers on free loopback ports;
`ctx` is a `rank_process.RankContext`. A failing rank shows as "rank 2 of 4" with its traceback and
its last output, the first failure in time first; a hang shows every rank's stacks.

Fault tests control the ranks themselves:

    with start_ranks(train, 3) as ranks:
        ranks.wait_for(1, "step", 7)
        ranks[1].kill()
        outcomes = ranks.join(timeout=10)
    assert outcomes[0].exception == "UnavailableError"
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import json
import marshal
import multiprocessing
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.patience import PATIENCE
from support.processes.rank_group import RankGroup
from support.processes.rank_outcome import Outcome, describe_all
from support.processes.rank_process import Assignment, main
from tfdist.launch.ports import free_ports

__all__ = ["Outcome", "RankGroup", "on_ranks", "start_ranks"]

START_TIMEOUT = 180.0
GRACE = 5.0


def on_ranks(
    *sizes: int,
    timeout: float = 60.0,
    check: Callable[[list[Any]], None] | None = None,
    env: Mapping[str, str] | None = None,
    roles: Sequence[str] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Turns a body into a test that runs it on every rank, once for each of `sizes`.

    The body is a top-level function of its module: its first parameter is the context, the others
    are fixtures or parameters as in any test; their values are pickled.

    Args:
      *sizes: numbers of ranks to run the test on.
      timeout: seconds from the start of the ranks to the end of the last one.
      check: called in the test's own process with the bodies' results, by rank.
      env: variables set in every rank besides TF_CONFIG.
      roles: as for `start_ranks`; its length must be the only one of `sizes`.

    Returns:
      A decorator.
    """

    def decorate(body: Callable[..., Any]) -> Callable[..., None]:
        wanted = [
            parameter
            for parameter in list(inspect.signature(body).parameters.values())[1:]
            if parameter.default is inspect.Parameter.empty
        ]
        names = [parameter.name for parameter in wanted]

        @functools.wraps(body)
        def test(rank_count: int, tmp_path: Path, **fixtures: Any) -> None:
            __tracebackhide__ = True
            if "tmp_path" in names:
                fixtures["tmp_path"] = tmp_path
            with start_ranks(
                body, rank_count, kwargs=fixtures, tmp_path=tmp_path, env=env, roles=roles
            ) as ranks:
                outcomes = ranks.join(PATIENCE * timeout, grace=GRACE)
            failures = [outcome for outcome in outcomes if not outcome.ok]
            if failures:
                pytest.fail(describe_all(failures), pytrace=False)
            if check is not None:
                check([outcome.result for outcome in outcomes])

        # pytest reads the fixtures' names from the signature.
        own = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
            for name in ("rank_count", "tmp_path")
            if name not in names
        ]
        keyword_only = inspect.Parameter.KEYWORD_ONLY
        wanted_by_name = [parameter.replace(kind=keyword_only) for parameter in wanted]
        test.__signature__ = inspect.Signature(own + wanted_by_name)
        test.rank_body = body
        ids = [f"{size}-ranks" if size > 1 else "1-rank" for size in sizes]
        test = pytest.mark.parametrize("rank_count", sizes, ids=ids)(test)
        # The ranks' own deadline is earlier, because it prints their stacks.
        return pytest.mark.timeout(PATIENCE * timeout + GRACE + START_TIMEOUT)(test)

    return decorate


@contextlib.contextmanager
def start_ranks(
    body: Callable[..., Any],
    size: int,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    tmp_path: Path | None = None,
    env: Mapping[str, str] | None = None,
    roles: Sequence[str] | None = None,
) -> Iterator[RankGroup]:
    """Runs `body(ctx, *args, **kwargs)` in `size` processes; ends processes still alive on leaving.

    Args:
      body: a top-level function of a module.
      size: the number of ranks.
      args: positional arguments for every rank, picklable.
      kwargs: keyword arguments for every rank, picklable.
      tmp_path: the ranks' shared directory; a temporary one by default.
      env: variables set in every rank besides TF_CONFIG. All others are this process's own.
      roles: each rank's task type in TF_CONFIG, such as ("chief", "worker", "ps"); by default all
        are workers.

    Yields:
      The running ranks.

    Raises:
      TypeError: the body is not a top-level function, or an argument cannot be pickled.
    """
    if "<" in body.__qualname__:
        raise TypeError(f"expected a top-level function as body, received {body.__qualname__}")
    arguments = _pickled(body, args, dict(kwargs or {}))
    source = Path(inspect.getfile(inspect.unwrap(body))).resolve()
    code = _compiled(source)
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(size))
    roles = tuple(roles or ("worker",) * size)
    if len(roles) != size:
        raise TypeError(f"expected {size} roles, one per rank, received {roles}")
    context = fork_server()
    with tempfile.TemporaryDirectory(prefix="ranks-") as scratch_name:
        scratch = Path(scratch_name)
        shared = tmp_path if tmp_path is not None else scratch / "shared"
        shared.mkdir(exist_ok=True)
        assignments = [
            Assignment(
                rank=rank,
                size=size,
                addresses=addresses,
                environment={
                    **os.environ,
                    **(env or {}),
                    "TF_CONFIG": tf_config(roles, addresses, rank),
                },
                source=source,
                code=code,
                module=body.__module__,
                qualname=body.__qualname__,
                arguments=arguments,
                tmp_path=shared,
                output=scratch / f"rank-{rank}.out",
                stacks=scratch / f"rank-{rank}.stacks",
            )
            for rank in range(size)
        ]
        with RankGroup(context, main, assignments) as group:
            yield group


def tf_config(roles: Sequence[str], addresses: Sequence[str], rank: int) -> str:
    """The TF_CONFIG of one rank, where rank r has the role roles[r] and address addresses[r]."""
    cluster: dict[str, list[str]] = {}
    for role, address in zip(roles, addresses, strict=True):
        cluster.setdefault(role, []).append(address)
    task = {"type": roles[rank], "index": list(roles[:rank]).count(roles[rank])}
    return json.dumps({"cluster": cluster, "task": task})


@functools.cache
def _compiled(source: Path) -> bytes:
    text = source.read_bytes()
    tree = ast.parse(text, filename=str(source))
    # Adds the operands' values to the message of a failing assert. pytest has no public call for
    # this; without it asserts still fail, with a shorter message.
    with contextlib.suppress(ImportError, TypeError):
        from _pytest.assertion.rewrite import rewrite_asserts

        rewrite_asserts(tree, text, str(source), None)
    return marshal.dumps(compile(tree, str(source), "exec", dont_inherit=True))


def _pickled(body: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
    for name, value in [*enumerate(args), *kwargs.items()]:
        try:
            pickle.dumps(value)
        except Exception as error:
            raise TypeError(
                f"{body.__qualname__}: expected arguments that can be pickled, received {name!r} "
                f"of type {type(value).__name__}: {error}"
            ) from error
    return pickle.dumps((tuple(args), kwargs))


@functools.cache
def fork_server() -> multiprocessing.context.BaseContext:
    """The server that ranks and scripts are forked from; no test's timeout includes its imports."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["support.processes.rank_imports"])
    before = dict(os.environ)
    # The server takes the path of the modules to preload from its environment only.
    os.environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    # TensorFlow's C++ side reads it once, in the server.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        first = context.Process(target=_nothing, daemon=True)
        first.start()
        first.join(START_TIMEOUT)
        if first.exitcode != 0:
            first.kill()
            raise RuntimeError(
                f"expected the fork server to start a process within {START_TIMEOUT:g} s, "
                f"received exit code {first.exitcode}"
            )
        first.close()
    finally:
        os.environ.clear()
        os.environ.update(before)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return context


def _nothing() -> None:
    """The body of the first process: its end proves that the server has finished its imports."""
