"""Jobs on a Ray cluster: `tfdist.ray.run` starts a training function on its nodes.

Needs Ray, the extra `ray`. Importing this package does not import Ray; `run` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tfdist._extras import install_command
from tfdist.errors import RayJobError
from tfdist.ray.request import RayRequest, RayResult

__all__ = ["RayJobError", "RayResult", "run"]


def run(
    train_fn: Callable,
    *,
    num_workers: int,
    num_ps: int = 0,
    elastic: tuple[int, int] | None = None,
    config: Mapping[str, object] | None = None,
    resources: Mapping[str, float] | None = None,
    ps_resources: Mapping[str, float] | None = None,
    placement: str = "PACK",
    max_failures: int | None = None,
    checkpoint_dir: str | None = None,
    variables: Mapping[str, str] | None = None,
    placement_timeout: float = 300.0,
) -> RayResult:
    """Runs a training function in `num_workers` processes of a Ray cluster, and waits for its end.

    Each process is an actor in a bundle of one placement group, so that the job starts as a whole.
    It finds the job as a process of `tfdist run` does: make a strategy, or call `tfdist.init()`.
    Parameter servers do not call `train_fn`.

    A lost task restarts the job, up to `max_failures` times; the function continues from the files
    of `BackupAndRestore` or its own checkpoints. An elastic job continues meanwhile, replaces the
    lost worker, and grows while the cluster has room. A node that Ray drains is a preemption notice
    to its workers, as SIGTERM is; the restart after it does not count.

    Args:
      train_fn: called as `train_fn()`, or `train_fn(config)` with a `config`; Ray must be able to
        serialize its value.
      num_workers: the workers that the job starts with.
      num_ps: parameter servers. With any and without `elastic`, worker 0 is the chief.
      elastic: the least and the largest number of workers of an elastic job.
      config: the argument of `train_fn`.
      resources: of each worker, such as `{"CPU": 4, "GPU": 1}`; one CPU by default. "memory" is in
        bytes.
      ps_resources: of each parameter server; one CPU by default.
      placement: Ray's strategy for the placement group: PACK, SPREAD, STRICT_PACK, STRICT_SPREAD.
      max_failures: restarts of the job, or replacements of single workers of an elastic one; 0 by
        default, and 10 with `elastic`.
      checkpoint_dir: `TFDIST_CHECKPOINT_DIR` of all tasks; a directory that all nodes share.
      variables: environment variables of all tasks.
      placement_timeout: seconds to wait for the cluster's resources at each start.

    Returns:
      The values of `train_fn`, by rank, and how often tasks were started again.

    Raises:
      ClusterConfigError: the numbers or resources contradict each other.
      RayJobError: a task failed and no restart was left, or the resources did not come in time. Its
        cause is the error of the task that failed first.
      ImportError: Ray is not installed.

    Example:

    ```python
    def train():
        strategy = tfdist.MultiWorkerMirroredStrategy()
        ...
        return float(model.evaluate(x, y, verbose=0))

    loss = tfdist.ray.run(train, num_workers=4, resources={"CPU": 2}).values[0]
    ```
    """
    request = RayRequest.of(
        num_workers=num_workers,
        num_ps=num_ps,
        elastic=elastic,
        resources=resources,
        ps_resources=ps_resources,
        placement=placement,
        max_failures=max_failures,
        checkpoint_dir=checkpoint_dir,
        variables=variables,
        placement_timeout=placement_timeout,
    )
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise ImportError(f"tfdist.ray needs Ray: {install_command('ray')}") from error
    from tfdist.ray.elastic_job import ElasticRayJob
    from tfdist.ray.fixed_job import FixedRayJob

    arguments = () if config is None else (dict(config),)
    job = FixedRayJob if request.workers is None else ElasticRayJob
    return job(request, train_fn, arguments).run()
