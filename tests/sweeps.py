"""Long sweeps: parameters and tests that `python -m pytest` leaves out and `-m sweep` runs.

What is kept reaches every operator and every kernel; a sweep has more sizes, seeds and options.
"""

import zlib
from collections.abc import Callable, Iterable

import pytest


def swept(values: Iterable, kept: Iterable[int] | Callable = (0,), names: int = 1) -> list:
    """Parameters for pytest.mark.parametrize, of so many argument names: those that are `kept`, by
    index or because kept(value) is true, always run, the others only in a sweep.
    """
    values = list(values)
    if not callable(kept):
        chosen = [values[index] for index in kept]
        kept = chosen.__contains__
    return [
        value
        if kept(value)
        else pytest.param(*(value if names > 1 else (value,)), marks=pytest.mark.sweep)
        for value in values
    ]


def not_finite(operands: Iterable) -> list:
    """Parameters for two argument names, an operand and what is put into it: infinity in the first
    and NaN in the last always, the others in a sweep.
    """
    operands = list(operands)
    pairs = [(operand, float(value)) for value in ("inf", "nan") for operand in operands]
    return swept(pairs, (0, len(pairs) - 1), names=2)


def is_left_out(item, config) -> bool:
    """Whether a test waits for `-m sweep`, or does not belong to the share of sweeps that is asked
    for. A GPU test never does, nor does one named by its id.
    """
    if item.get_closest_marker("sweep") is None or item.get_closest_marker("gpu") is not None:
        return False
    if any("::" in argument for argument in config.args):
        return False
    if not config.option.markexpr:
        return True
    return zlib.crc32(item.nodeid.encode()) % config.getoption("--sweep-share") != 0
