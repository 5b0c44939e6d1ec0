"""The text of a terminal: the help of a command, and commands with their output."""

from __future__ import annotations

import argparse
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from pygments.lexer import RegexLexer, bygroups
from pygments.token import Generic

from collectives.cli import parser

WIDTH = 88


class Usage(Directive):
    """``usage``: the help text of the subcommand that is its argument."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the help text as it stands in a terminal of `WIDTH` columns."""
        text = help_of(self.arguments[0])
        return [nodes.literal_block(text, text, language="text")]


def help_of(command: str) -> str:
    """Return the help text of a subcommand."""
    subcommands = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    found: argparse.ArgumentParser = next(subcommands).choices[command]
    found.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=WIDTH)  # type: ignore
    return found.format_help()


class Console(RegexLexer):
    """``$`` begins a command and everything else is output, also what begins with ``#``."""

    name = "console"
    aliases = ("console",)
    tokens = {  # noqa: RUF012  pygments reads it from the class
        "root": [
            (r"^(\$ )(.*\n)", bygroups(Generic.Prompt, Generic.Strong)),
            (r"^.*\n", Generic.Output),
        ]
    }


def setup(app: Any) -> dict[str, bool]:
    """Join the build of Sphinx."""
    app.add_directive("usage", Usage)
    app.add_lexer("console", Console)
    return {"parallel_read_safe": True}
