"""Checks of user input; each message names the source, the expected and the received value.

Pure functions on values. `cluster` and `settings` call them, and read the environment.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tfdist.errors import ClusterConfigError

_log = logging.getLogger("tfdist")
ROLES = ("chief", "worker", "ps", "evaluator", "data_dispatcher", "data_worker")
MIN_SECRET_BYTES = 16
# TensorFlow 1's name of the chief; some schedulers still write it.
_LEGACY_ROLES = {"master": "chief"}
_MAX_ADDRESS = 300  # characters; a host's name has 253 at most
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+):(?P<port>\d+)")
_MAX_TEXT = 200  # characters
_MAX_LISTED = 8
_Default = TypeVar("_Default", int, None)
_Seconds = TypeVar("_Seconds", float, None)


def show(value: object) -> str:
    """Returns `value` as JSON (or its repr), cut to a length that fits a message."""
    try:
        text = value if isinstance(value, str) else json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    if isinstance(value, str):
        text = repr(text)
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "..."


def show_some(texts: Iterable[str]) -> str:
    """Returns the first eight of `texts`, and how many follow: "a, b, and 991 more"."""
    listed = list(texts)
    more = len(listed) - _MAX_LISTED
    return ", ".join([*listed[:_MAX_LISTED], *([f"and {more} more"] if more > 0 else [])])


def expect_object(value: object, source: str, what: str) -> dict[str, object]:
    """Returns `value` if it is a JSON object, else raises ClusterConfigError."""
    if isinstance(value, dict):
        return value
    raise ClusterConfigError(
        f"{source}: expected {what} to be a JSON object, received {show(value)}"
    )


def role_name(name: object, source: str, where: str) -> str:
    """Returns one of ROLES for a role as users write it, else raises ClusterConfigError."""
    role = _LEGACY_ROLES.get(name, name) if isinstance(name, str) else name
    if role in ROLES:
        return role
    raise ClusterConfigError(
        f"{source}: unknown role {show(name)} in {where}; expected one of {', '.join(ROLES)}"
    )


def task_index(index: object, source: str) -> int:
    """Returns a task index given as an int or a numeric string, else raises ClusterConfigError."""
    if isinstance(index, str) and re.fullmatch(r"\s*-?[0-9]{1,18}\s*", index):
        return int(index)
    if isinstance(index, int) and not isinstance(index, bool):
        return index
    raise ClusterConfigError(
        f"{source}: expected task index to be a whole number, received {show(index)}"
    )


def address_problem(address: object) -> str | None:
    """Returns why `address` is not a "host:port", or None if it is one."""
    if not isinstance(address, str):
        return "it is not a string"
    match = _ADDRESS.fullmatch(address)
    if match is None:
        if re.search(r":\d+$", address):
            return "the host is not a name, an IPv4 address or an IPv6 address in brackets"
        if ":" in address.rpartition("]")[2]:
            return "the port is not a number"
        return "it has no port"
    if len(match["port"]) > 5 or not 1 <= int(match["port"]) <= 65535:
        return "the port is outside 1..65535"
    if len(address) > _MAX_ADDRESS:
        return f"it has more than {_MAX_ADDRESS} characters"
    return None


def addresses_in(text: str, source: str, owners: str) -> list[str]:
    """Returns the addresses of a list "host:port,host:port".

    Args:
      text: the list.
      source: its origin in messages, such as "--targets".
      owners: the owners of these addresses, such as "tasks".

    Raises:
      ClusterConfigError: it has another form, or is empty.
    """
    addresses = [address.strip() for address in text.split(",") if address.strip()]
    for address in addresses:
        problem = address_problem(address)
        if problem:
            raise ClusterConfigError(
                f'{source}: expected "host:port", received {address!r}: {problem}'
            )
    if not addresses:
        raise ClusterConfigError(
            f"{source}: expected addresses of {owners}, received {text[:200]!r}"
        )
    return addresses


def check_tasks(roles: Mapping[str, Sequence[Any]], source: str) -> None:
    """Raises ClusterConfigError unless the addresses of all roles form a cluster, or are empty.

    Args:
      roles: addresses by role name, the names among ROLES.
      source: the origin of the addresses in messages, such as "TF_CONFIG".
    """
    owner: dict[str, str] = {}
    for role, addresses in roles.items():
        for index, address in enumerate(addresses):
            task = f"{role} {index}"
            problem = address_problem(address)
            if problem:
                raise ClusterConfigError(
                    f'{source}: expected the address of {task} to be "host:port", received '
                    f"{show(address)}: {problem}"
                )
            key = address.lower()
            if key in owner:
                raise ClusterConfigError(
                    f"{source}: duplicate address {address}: expected an address of its own for "
                    f"each task, received it for {owner[key]} and for {task}"
                )
            owner[key] = task
    for role, written in (
        ("chief", "chief (also written master)"),
        ("data_dispatcher", "data_dispatcher"),
    ):
        if len(roles.get(role, ())) > 1:
            raise ClusterConfigError(
                f"{source}: expected at most one {written}, received "
                f"{len(roles[role])}: {', '.join(roles[role])}"
            )
    dispatchers, data_workers = (
        len(roles.get(role, ())) for role in ("data_dispatcher", "data_worker")
    )
    if bool(dispatchers) != bool(data_workers):
        raise ClusterConfigError(
            f"{source}: expected one data_dispatcher and at least one data_worker, or neither, "
            f"received {dispatchers} data_dispatcher and {data_workers} data_worker"
        )
    if owner and not (roles.get("chief") or roles.get("worker")):
        raise ClusterConfigError(
            f"{source}: expected a chief or at least one worker, received only "
            f"{', '.join(role for role in roles if roles[role])}: no task would train"
        )


def check_task(roles: Mapping[str, Sequence[str]], role: str, index: int, source: str) -> None:
    """Raises ClusterConfigError unless the task `role` `index` is one of the cluster's.

    An evaluator may be missing in the cluster: it reads checkpoints and connects to no task.
    """
    count = len(roles.get(role, ()))
    if index >= 0 and (index < count or (role == "evaluator" and not count)):
        return
    expected = f"0..{count - 1}" if count else f"no {role} at all"
    raise ClusterConfigError(
        f"{source}: task index out of range: this task is {role} {index}, but the cluster has "
        f"{expected if not count else f'{role} {expected}'}"
    )


def seconds(environ: Mapping[str, str], name: str, default: _Seconds) -> float | _Seconds:
    """Returns the positive, finite number of seconds in variable `name`, or `default`."""
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isfinite(value) and value > 0:
        return value
    raise ClusterConfigError(f"{name}: expected a positive number of seconds, received {text!r}")


def port(environ: Mapping[str, str], name: str, default: _Default) -> int | _Default:
    """Returns the port number in variable `name` (0 means any free port), or `default`."""
    text = environ.get(name, "").strip()
    if not text:
        return default
    if re.fullmatch("[0-9]{1,5}", text) and int(text) <= 65535:
        return int(text)
    raise ClusterConfigError(f"{name}: expected a port number in 0..65535, received {text!r}")


def count(environ: Mapping[str, str], name: str, default: int) -> int:
    """Returns the whole number, 0 or more, in variable `name`, or `default`."""
    text = environ.get(name, "").strip()
    if not text:
        return default
    if re.fullmatch("[0-9]{1,9}", text):
        return int(text)
    raise ClusterConfigError(f"{name}: expected a whole number, 0 or more, received {text!r}")


def size(environ: Mapping[str, str], name: str, default: int) -> int:
    """Returns the positive number of bytes in variable `name`, such as "8G", or `default`.

    K, M, G and T stand for powers of 1024.
    """
    text = environ.get(name, "").strip()
    if not text:
        return default
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)([KMGT]?)", text)
    value = int(float(found[1]) * 1024 ** " KMGT".index(found[2] or " ")) if found else 0
    if 0 < value < 2**63:
        return value
    raise ClusterConfigError(
        f"{name}: expected a number of bytes such as 500M or 8G (K, M, G, T: powers of 1024), "
        f"received {text!r}"
    )


def switch(environ: Mapping[str, str], name: str, default: bool) -> bool:
    """Returns whether variable `name` is 1 rather than 0, or `default`."""
    text = environ.get(name, "").strip()
    if text in ("", "0", "1"):
        return text == "1" if text else default
    raise ClusterConfigError(f"{name}: expected 0 or 1, received {text!r}")


def job_id(environ: Mapping[str, str]) -> str | None:
    """Returns the name of this process's job, which begins the name of a file; None without one.

    A step of Slurm has one, if TFDIST_JOB_ID does not name the job: each step is another job.
    """
    text = environ.get("TFDIST_JOB_ID", "").strip()
    if text:
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", text):
            return text
        raise ClusterConfigError(
            "TFDIST_JOB_ID: expected at most 100 letters, digits, dots, dashes and underscores, "
            f"of which the first is a letter or digit, received {show(text)}"
        )
    step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "")
    if all(re.fullmatch("[0-9]{1,20}", number) for number in step):
        return "slurm-{}.{}".format(*step)
    return None


def secret(environ: Mapping[str, str]) -> bytes | None:
    """Returns the secret in TFDIST_SECRET or the file TFDIST_SECRET_FILE, None if neither is set.

    An empty secret is an error, not "no secret": a failed substitution leaves one behind. A short
    secret can be guessed. Messages never show the secret.
    """
    text, path = environ.get("TFDIST_SECRET"), environ.get("TFDIST_SECRET_FILE")
    if text is not None and path is not None:
        raise ClusterConfigError(
            "expected one of TFDIST_SECRET and TFDIST_SECRET_FILE, received both"
        )
    if path is not None:
        try:
            with open(path, "rb") as file:
                value = file.read().strip()
                mode = os.fstat(file.fileno()).st_mode
        except OSError as error:
            raise ClusterConfigError(
                f"TFDIST_SECRET_FILE: expected a readable file, received {path!r}: "
                f"{error.strerror or error}"
            ) from None
        if mode & 0o077:
            _log.warning(
                "TFDIST_SECRET_FILE: other users can read or write %s (mode %03o); expected "
                "mode 600",
                path,
                stat.S_IMODE(mode),
            )
        name = f"TFDIST_SECRET_FILE: expected a secret in {path!r}"
    elif text is not None:
        name = "TFDIST_SECRET: expected a secret"
        try:
            # The variable's own bytes, as in a file: they need not be text.
            value = os.fsencode(text).strip()
        except UnicodeEncodeError:  # its text shows the secret
            raise ClusterConfigError(
                f"{name}, received characters that no environment variable has"
            ) from None
    else:
        return None
    if not value:
        raise ClusterConfigError(f"{name}, received nothing; unset it to run without a secret")
    if len(value) < MIN_SECRET_BYTES:
        raise ClusterConfigError(
            f"{name} of at least {MIN_SECRET_BYTES} bytes, received {len(value)}; for instance "
            "'openssl rand -hex 32' makes one"
        )
    return value
