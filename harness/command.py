"""The command line that a record names."""

import shlex
from pathlib import Path

from harness.catalog import ROOT


def told_command(program: list[str], arguments: list[str]) -> str:
    """`program` and its arguments as a shell takes them. Absolute paths become what another machine
    can make sense of: relative to the project, or outside of it their last part.
    """
    return shlex.join([*program, *map(_told, arguments)])


def _told(argument: str) -> str:
    option, equals, value = argument.partition("=")
    if equals and option.startswith("--"):
        return f"{option}={_told(value)}"
    path = Path(argument)
    if not path.is_absolute():
        return argument
    below = path.is_relative_to(ROOT) and path != ROOT
    return str(path.relative_to(ROOT)) if below else path.name or argument
