"""Where run_eval.py begins: what needs no PyTorch is done without waiting for its import."""

import sys

from harness.errors import UsageError
from harness.run.arguments import make_parser
from harness.run.listing import lines


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        make_parser().parse_args(arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else UsageError.exit_status
    if arguments == ["--list"]:
        print("\n".join(lines()))
        return 0
    from harness.run import cli  # now the imports that take seconds

    return cli.main(arguments)
