"""The command `tfdist ps serve`. It starts fast: it imports the rest when it runs."""

from __future__ import annotations

import argparse

from tfdist.cli.arguments import seconds, whole_number

DESCRIPTION = """\
Serves the rows of embedding tables to processes that have loaded a model with tfdist.serving.load:
read-only servers of a snapshot. Each row is on several servers, so that one of them may die. The
environment gives the secret and TLS: TFDIST_SECRET_FILE, TFDIST_TLS."""
EPILOG = """\
examples:
  tfdist ps serve snapshots --replicas 2
      two servers on this machine, at ports that it prints
  tfdist ps serve snapshots --replicas 2 --servers host1:7000,host2:7000 --index 0
      on host1; on host2 the same with --index 1
  TF_CONFIG=... tfdist ps serve snapshots --replicas 2
      this ps task of TF_CONFIG, with the others of its role
  tfdist ps serve published --follow --servers 127.0.0.1:7000 --index 0
      one server, which takes up what 'tfdist ps follow' writes

exit code:
  2 for a wrong command line; 1 if the folder has no snapshot that can be served, or a port is
  taken; 130 after Ctrl-C, 143 after SIGTERM.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.add_argument(
        "folder",
        metavar="DIR",
        help="the checkpoint_dir of a training, or the folder of 'tfdist ps follow'",
    )
    parser.add_argument(
        "--servers",
        metavar="HOST:PORT,...",
        help="the addresses of all servers, in the same order everywhere (default: the ps tasks of "
        "TF_CONFIG, or as many on this machine as --replicas)",
    )
    parser.add_argument(
        "--index",
        type=whole_number(0),
        metavar="I",
        help="this server's place among them (default: the task's of TF_CONFIG)",
    )
    parser.add_argument(
        "--replicas",
        type=whole_number(1),
        default=1,
        metavar="N",
        help="servers that hold each row (default: 1)",
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="take up later snapshots and deltas of the folder, without a restart",
    )
    parser.add_argument(
        "--look-every",
        type=seconds,
        default=2.0,
        metavar="S",
        help="with --follow, seconds between two looks (default: 2)",
    )


def run(chosen: argparse.Namespace) -> int:
    """Serves; returns the exit code."""
    from tfdist.serving.tables import command

    follow = chosen.look_every if chosen.follow else None
    return command.serve(chosen.folder, chosen.servers, chosen.index, chosen.replicas, follow)
