"""How a command ends when it does not end well: a status of its own and one line."""

import os
import sys
import traceback
from collections.abc import Callable

from harness.errors import EnvironmentUnfit, HarnessError

INTERNAL = 4  # a fault of the harness itself; 1 would mean that the solution was rejected
INTERRUPTED = 130


def status_of(program: str, work: Callable[[], int]) -> int:
    """What `work` returns; for an exception a line on standard error and its exit status.

    A HarnessError has its own, too little device memory is EnvironmentUnfit's, an interruption
    130, anything else 4. With TCONV_TRACEBACK=1 the traceback is printed above the line.
    """
    try:
        return work()
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("TCONV_TRACEBACK", "0") not in ("", "0"):
            traceback.print_exc()
        return reported(program, error)


def reported(program: str, error: Exception) -> int:
    """The exit status that an exception has; its line is printed on standard error."""
    if isinstance(error, HarnessError):
        print(f"{program}: error: {error}", file=sys.stderr)
        return error.exit_status
    first = (str(error).strip().splitlines() or ["no message"])[0]
    # By name: not every command needs torch.
    if type(error).__name__ == "OutOfMemoryError":
        told = f"too little device memory, try a smaller --batch ({first})"
        print(f"{program}: error: {told}", file=sys.stderr)
        return EnvironmentUnfit.exit_status
    told = f"internal error: {type(error).__name__}: {first} (TCONV_TRACEBACK=1 shows where)"
    print(f"{program}: {told}", file=sys.stderr)
    return INTERNAL
