"""Jobs with parameter servers in tests: the workers run the body of a test."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras

import tfdist
from support.processes.ranks import on_ranks
from support.training import models
from support.training.models import difference, slots
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.ps.server import ServerTask


def roles(workers: int, servers: int = 1) -> tuple[str, ...]:
    """Returns the task types of a job: the chief, the other workers, the servers."""
    return ("chief", *("worker",) * (workers - 1), *("ps",) * servers)


def on_job(workers: int, servers: int = 1, **options: Any) -> Callable:
    """As `on_ranks`, for `workers` and `servers`; the body begins with `if served(): return`."""
    return on_ranks(workers + servers, roles=roles(workers, servers), **options)


def served() -> bool:
    """Serves until the job has ended if this process is a parameter server."""
    cluster = Cluster.from_environment()
    if cluster.task_type != "ps":
        return False
    assert ServerTask(cluster, Settings.from_environment()).serve() == 0
    return True


def meet(ctx: Any, name: str, timeout: float = 30.0) -> None:
    """A barrier `name` of the workers only, because the servers are serving."""
    (ctx.tmp_path / f"{name} {ctx.rank}").touch()
    deadline = time.monotonic() + timeout
    for worker in range(Cluster.from_environment().world_size):
        while not (ctx.tmp_path / f"{name} {worker}").exists():
            assert time.monotonic() < deadline, f"{name}: worker {worker} did not come"
            time.sleep(0.01)


def train_like_alone(
    build: Callable[[], Any],
    fit: Callable[[Any], Any],
    tolerance: float,
    library: Any = keras,
    **options: Any,
) -> Any:
    """Trains without parameter servers and then with them; asserts that both give the same.

    Args:
      build: makes a compiled model.
      fit: trains it and returns its History; data and batches are global.
      tolerance: the largest difference allowed in any weight or slot, and, with one worker or in
        "sync", in the history.
      library: `keras` or `tf_keras`.
      **options: of the strategy.

    Returns:
      The model trained with servers.
    """
    cluster = Cluster.from_environment()
    library.utils.set_random_seed(0)
    # On all workers, because Keras numbers the names of layers per process.
    alone = build()
    expected = fit(alone).history
    library.utils.set_random_seed(0)
    strategy = tfdist.ParameterServerStrategy(**options)
    with strategy.scope():
        model = build()
    history = fit(model).history
    # Read after the last step of all workers, not only of this one.
    weights, optimizer_slots = model.get_weights(), slots(model)
    assert difference(weights, alone.get_weights()) <= tolerance
    assert difference(optimizer_slots, slots(alone)) <= tolerance
    assert history.keys() == expected.keys()
    if cluster.world_size == 1 or strategy.extended.config.mode == "sync":
        for name in expected:
            assert difference([history[name]], [expected[name]]) <= tolerance, name
    return model


def fit_dataset(steps: int, batch: int = 64) -> Callable[[Any], Any]:
    """Returns a function that trains a model on `steps` batches of `models.examples`."""
    return lambda model: model.fit(models.dataset(batch * steps, batch), verbose=0)
