"""Types and options that commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The result of `add_subparsers`; argparse has no public name for it.
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_command(
    among: Commands,
    name: str,
    summary: str,
    description: str | None = None,
    epilog: str | None = None,
) -> argparse.ArgumentParser:
    """Adds a command, and returns its parser.

    Args:
      among: the commands that it is one of.
      name: the word that the user types.
      summary: its line in the list of commands.
      description: the text above the options in its --help.
      epilog: the text below them.
    """
    return among.add_parser(
        name,
        help=summary,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # else --work would mean --workers
    )


def whole_number(minimum: int) -> Callable[[str], int]:
    """Returns an argparse type: whole numbers of at least `minimum`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum:
            raise argparse.ArgumentTypeError(
                f"expected a whole number, {minimum} or more, received {text!r}"
            )
        return value

    return parse


def seconds(text: str) -> float:
    """Parses a finite number of seconds above 0; an argparse type.

    Raises:
      argparse.ArgumentTypeError: the text is no such number.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds, more than 0, received {text!r}")
    return value


def add_watch_options(parser: argparse.ArgumentParser, instead_of: str) -> None:
    """Adds the options of a command that looks at a running job.

    Args:
      parser: of the command.
      instead_of: the option that names the job in another way.
    """
    parser.add_argument(
        "--job",
        type=Path,
        metavar="FILE",
        help=f"the job file of a 'tfdist run', with addresses and secret, instead of {instead_of}",
    )
    parser.add_argument(
        "--watch", type=seconds, metavar="S", help="continue, with a table every S seconds"
    )
