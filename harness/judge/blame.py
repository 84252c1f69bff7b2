"""What a solution's code raises, turned into the reason of its rejection."""

import contextlib
import traceback

import torch

MAX_TEXT = 4000


class Failure(Exception):
    """Something the solution did wrong, with the code of its rejection."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


@contextlib.contextmanager
def blamed(code: str):
    """Turn anything that the solution's code raises into a Failure."""
    try:
        yield
    except Failure:
        raise
    except BaseException as error:
        raise failure_of(error, code) from None


def failure_of(error: BaseException, code: str) -> Failure:
    """The Failure for an exception: `code`, unless the exception itself tells more."""
    return Failure(_code_of(error, code), _describe(error))


def _code_of(error: BaseException, code: str) -> str:
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return "exit"
    text = str(error).lower()
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return "out_of_memory"
    if isinstance(error, RuntimeError):
        if "out of memory" in text or "can't allocate" in text:
            return "out_of_memory"
        # From here on every call to the device fails in this process.
        if "cuda error" in text:
            return "device_error"
    return code


def _describe(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.endswith("solution.py")]
    place = f" (line {own[-1].lineno} of the solution)" if own else ""
    return f"{type(error).__name__}: {error}{place}"[-MAX_TEXT:]
