"""The command `tfdist env`: the cluster that this process's environment describes, and why."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdist.config.cluster import Cluster
    from tfdist.config.environments.launched import DetectedCluster

DESCRIPTION = """\
Prints the cluster that 'python train.py' would find here: which variables describe it, which ones
are ignored and why, this process's task, and the TF_CONFIG that says the same. It asks no other
process."""
EPILOG = """\
examples:
  tfdist env
      in a shell
  srun -n 2 --label tfdist env
      in each task of a Slurm step; 'mpirun -np 2 tfdist env' for those of MPI
  export TF_CONFIG=$(tfdist env --json | jq -r .tf_config)
      for a program that reads TF_CONFIG only

exit code:
  0; 1 if the variables are unusable or contradict each other, or name a certificate that cannot be
  used; 2 for a wrong command line.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(chosen: argparse.Namespace) -> int:
    """Prints the cluster; returns the exit code."""
    # Not above: --help does not need them.
    from tfdist.config import environments
    from tfdist.config.cluster import Cluster
    from tfdist.config.printing import printable
    from tfdist.config.settings import Settings
    from tfdist.control import network
    from tfdist.errors import ClusterConfigError
    from tfdist.job.encryption import check_certificate

    try:
        detected = environments.detect()
        cluster = None if detected.exchange is not None else Cluster.from_detected(detected)
        settings = Settings.from_environment()
        wanted = settings.interface
        interface = None if wanted is None else f"{wanted} ({network.select(wanted)})"
        check_certificate(settings)
    except ClusterConfigError as error:
        print(f"tfdist env: error: {printable(str(error))}", file=sys.stderr)
        return 1
    encryption = None if settings.tls is None else str(settings.tls)
    fields = _fields(detected, cluster, interface) | {"encryption": encryption}
    print(json.dumps(fields, indent=2) if chosen.json else printable(_text(fields)))
    return 0


def _fields(
    detected: DetectedCluster, cluster: Cluster | None, interface: str | None
) -> dict[str, Any]:
    exchange = detected.exchange
    fields: dict[str, Any] = {
        "source": detected.source,
        "notes": list(detected.notes),
        "warnings": list(detected.warnings),
        "task": None,
        "rank": None,
        "world_size": None,
        "address": None,
        "tf_config": None,
        "meeting": None,
        "interface": interface,
    }
    if cluster is not None:
        fields |= {
            "task": cluster.task_name,
            "rank": cluster.rank,
            "world_size": cluster.world_size,
            "address": cluster.address,
            "tf_config": cluster.tf_config(),
        }
    if exchange is not None:
        fields["meeting"] = {
            "index": exchange.index,
            "size": exchange.size,
            "servers": exchange.servers,
            "address": exchange.address,
        }
    return fields


def _text(fields: dict[str, Any]) -> str:
    lines = [f"found: {fields['source']}"]
    lines += [f"  {note}" for note in fields["notes"]]
    lines += [f"  warning: {warning}" for warning in fields["warnings"]]
    if fields["interface"]:
        lines.append(f"interface: TFDIST_INTERFACE={fields['interface']}")
    exchange = fields["meeting"]
    if exchange is not None:
        lines += [
            f"task: process {exchange['index']} of {exchange['size']}, {exchange['servers']} of "
            "them parameter servers",
            f"TF_CONFIG: known at the start, when all processes have told their hosts to rank 0 at "
            f"{exchange['address']}",
        ]
    elif fields["address"] is None and fields["tf_config"] == "{}":
        lines.append("task: trains alone")
    else:
        rank = "" if fields["rank"] is None else f" (rank {fields['rank']} of "
        rank += f"{fields['world_size']})" if rank else ""
        where = f" at {fields['address']}" if fields["address"] else ""
        lines.append(f"task: {fields['task']}{rank}{where}")
    if exchange is None:
        lines.append(f"TF_CONFIG={shlex.quote(fields['tf_config'])}")
    lines.append(f"connections: {fields['encryption'] or 'not encrypted'}")
    return "\n".join(lines)
