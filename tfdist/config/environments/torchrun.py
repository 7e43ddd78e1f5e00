"""`RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`, as torchrun and others set them."""

from __future__ import annotations

from collections.abc import Mapping

from tfdist.config.environments.launched import LaunchedProcess, Remark, required, shown, whole

LAUNCHER = "torchrun"
_DEFAULT_PORT = 29500


def launched(environ: Mapping[str, str]) -> LaunchedProcess | None:
    """Returns this process among the ranks; None unless both variables are set.

    Raises:
      ClusterConfigError: a variable is unusable.
    """
    if not environ.get("RANK") or not environ.get("WORLD_SIZE"):
        return None
    return LaunchedProcess(
        LAUNCHER,
        required(environ, "RANK", "WORLD_SIZE"),
        required(environ, "WORLD_SIZE", "RANK"),
        "RANK",
        "WORLD_SIZE",
    )


def remark(environ: Mapping[str, str]) -> Remark | None:
    """Returns which of the variables are ignored, because others are missing."""
    known = shown(environ, ("RANK", "WORLD_SIZE"))
    if not known or (environ.get("RANK") and environ.get("WORLD_SIZE")):
        return None
    absent = "WORLD_SIZE" if environ.get("RANK") else "RANK"
    return Remark(f"{known} ignored: {absent} is not set")


def is_one_host(environ: Mapping[str, str], launched: LaunchedProcess) -> bool | None:
    """Returns whether all ranks are on this host; None if no variable says it."""
    local = whole(environ, "LOCAL_WORLD_SIZE")
    return None if local is None else local == launched.size


def local_size_variable(environ: Mapping[str, str]) -> str:
    """Returns the name of the variable with the number of ranks on this host."""
    del environ
    return "LOCAL_WORLD_SIZE"


def first_port(environ: Mapping[str, str]) -> tuple[int, str]:
    """Returns the port of rank 0 if `MASTER_PORT` does not give it, and its origin."""
    del environ
    return _DEFAULT_PORT + 1, "torchrun's default"
