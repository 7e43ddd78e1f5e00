"""A parser that tells a mistyped option or command which one is meant."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import NoReturn

# The message of argparse about a word that is not among the choices.
_CHOICE = re.compile(r"argument \S+: invalid choice: '(.*?)' \(choose from (.*)\)", re.DOTALL)

_TWICE = re.compile(r"^(argument (?:\S+/)?(--[\w-]+)(?:/\S+)?: )\2(?:=\S*)?: ")


class Parser(argparse.ArgumentParser):
    """As `argparse.ArgumentParser`; commands that are added to it have parsers of this class, too.

    argparse tells unknown options of a command as errors of the whole program. Here they are errors
    of the command.
    """

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse's, but no word is left over."""
        chosen, unknown = super().parse_known_args(args, namespace)
        if unknown:
            option = unknown[0].partition("=")[0]
            known = [name for action in self._actions for name in action.option_strings]
            self.error(f"there is no option {option}{_meant(option, known)}")
        return chosen, unknown

    def error(self, message: str) -> NoReturn:
        """As argparse's; names the command that is meant."""
        # The error of a value may name the option, too: other sources of values have no argparse.
        message = _TWICE.sub(r"\1", message)
        found = _CHOICE.fullmatch(message)
        if found:
            known = re.findall(r"[\w-]+", found[2])
            choices = ", ".join(known)
            message = f"there is no {found[1]!r}{_meant(found[1], known)} (choose from {choices})"
        super().error(message)


def _meant(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
