"""The element-wise operators: one record each (record.py), in tables that every reader of a
reference looks into.
"""

import torch

from generator.ops.activations import ACTIVATIONS
from generator.ops.arithmetic import ARITHMETIC, BINARY
from generator.ops.record import Binary, Unary

UNARY: tuple[Unary, ...] = (*ARITHMETIC, *ACTIVATIONS)
RECORDS: tuple[Unary | Binary, ...] = (*UNARY, *BINARY)
_BY_OVERLOAD: dict[str, Unary | Binary] = {
    overload: record for record in RECORDS for overload in record.all_overloads
}


def by_overload(target: torch._ops.OpOverload) -> Unary | Binary | None:
    """The record of an ATen call (torch.ops.aten.mish.default, or in place
    torch.ops.aten.relu_.default); None where it is of no element-wise operator known.
    """
    return _BY_OVERLOAD.get(str(target).removeprefix("aten."))
