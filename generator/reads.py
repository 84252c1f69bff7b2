"""What one operator is to a kernel behind a value: an element-wise step with its operand, or why it
is none.
"""

import dataclasses
from typing import Any

import torch

from generator import ops
from generator.ir import Node, Value, leaves
from generator.ops.record import ChannelVector, Earlier, Number, Unary, WholeTensor
from generator.step_table import Step

_VIEWS = ("aten.view.default", "aten.reshape.default", "aten.unsqueeze.default")


@dataclasses.dataclass
class Read:
    """What one node is behind a value: a step with its operand, or why it is none. `vector`: an
    operand with a value for each channel, or (`whole`) for each of the output's; `earlier`: one
    that is a value of branches.
    """

    step: Step | None = None
    vector: Value | None = None
    whole: bool = False
    earlier: Value | None = None
    why: str = ""


@dataclasses.dataclass
class Behind:
    """Where a node stands: behind `value` of so many `dimensions`, where `vectors`
    operands were read before. `numbers`: of the values of branches, which it may read; `views`:
    parameters and buffers by the values that are views of them.
    """

    value: Value | None
    vectors: int = 0
    dimensions: int = 2
    numbers: dict[Value, int] = dataclasses.field(default_factory=dict)
    views: dict[Value, Value] = dataclasses.field(default_factory=dict)


def overload_of(node: Node) -> Node | None:
    """The one ATen call that a node is, itself or as a layer; None for a layer of several."""
    if node.op != "layer":
        return node
    return node.inner[0] if len(node.inner) == 1 else None


def views_of_parameters(nodes: list[Node]) -> dict[Value, Value]:
    """By the results of nodes that do no more than shape a parameter or a buffer anew: what that is
    in such a shape. What is shaped without a gradient (no_grad) is another tensor to autograd.
    """
    found: dict[Value, Value] = {}
    for node in nodes:
        given = next(node.operands(), None)
        source = found.get(given, given)
        switched = any(region.kind == "grad" for region in node.regions)
        if node.op in _VIEWS and not switched and source.kind in ("parameter", "buffer"):
            found[node.result] = dataclasses.replace(source, shape=node.result.shape)
    return found


def read_step(node: Node, behind: Behind) -> Read:
    """What an operator is there."""
    call = overload_of(node)
    record = ops.by_overload(call.op) if call is not None else None
    if record is None:
        return Read(why=why_left(node))
    try:
        if isinstance(record, Unary):
            if any(leaves((call.args[1:], call.kwargs))):
                return Read(why="it has a tensor where the kernels take a number")
            return Read(record.step_of_overload(call.op, call.args[1:], call.kwargs))
        return _binary(record, call, behind)
    except ValueError as error:
        return Read(why=f"it {error}")


def _binary(record: ops.Binary, call: Node, behind: Behind) -> Read:
    value, numbers = behind.value, behind.numbers
    if call.kwargs.get("alpha", 1) != 1 or len(call.args) > 2:
        return Read(why="it scales its operand (alpha)")
    left, right = [*call.args, *[v for k, v in call.kwargs.items() if k != "alpha"]][:2]
    if left in numbers and right in numbers:
        swapped = call.op.removeprefix("aten.") in record.reversed_overloads
        return Read(record.step(Earlier(numbers[right]), swapped), earlier=right)
    if value is None or (left is value) == (right is value):
        return Read(why="its operand is the same tensor")
    other, swapped = (right, False) if left is value else (left, True)
    swapped ^= call.op.removeprefix("aten.") in record.reversed_overloads
    if not isinstance(other, Value):
        if not record.takes_numbers:
            return Read(why="it takes no number")
        return Read(record.step(Number(other), swapped))
    if other.kind == "literal" and other.source.dim() == 0:  # it promotes no tensor of floats
        return Read(record.step(Number(other.source.item()), swapped))
    if _is_whole(other, value):
        if left is other and call.op.split(".")[1].endswith("_"):
            return Read(why="it writes to its operand")
        return Read(record.step(WholeTensor(behind.vectors), swapped), other, whole=True)
    other = behind.views.get(other, other)
    if why := _why_no_vector(other, value, behind.dimensions):
        return Read(why=why)
    return Read(record.step(ChannelVector(behind.vectors), swapped), other)


def _is_whole(other: Value, value: Value) -> bool:
    """Has it a value for each of `value`, whatever the sizes? A parameter's batch is fixed."""
    if other.kind not in ("result", "input") or other.dtype != value.dtype:
        return False
    return other.shape == value.shape


def _why_no_vector(other: Value, value: Value, dimensions: int) -> str:
    if other.shape is None:
        return "its operand is a number that forward computes"
    if other.kind not in ("parameter", "buffer"):
        return "its operand is no parameter or buffer"
    if other.dtype != value.dtype:
        return f"its operand is {other.dtype} beside {value.dtype}"
    per_channel = (value.shape[-1 - dimensions], *(1,) * dimensions)
    one = all(size == 1 for size in other.shape)
    if one and len(other.shape) <= len(value.shape):
        return ""
    if other.shape in (per_channel, (1, *per_channel)):
        return "" if len(other.shape) <= len(value.shape) else "it adds a dimension"
    return f"its operand of shape {other.shape} is neither one value nor one for each channel"


def why_left(node: Node) -> str:
    """Why an operator that nothing else was said of stays PyTorch's."""
    call = overload_of(node) or node
    if ops.by_overload(call.op) is not None:
        return "no transposed convolution comes right before it"
    return "no kernel computes it"


def writes(node: Node) -> bool:
    """Whether a node may change a tensor that others see (a layer's own statistics are not)."""
    inner = node.inner or (node,)
    for call in inner:
        packet, _, overload = call.op.removeprefix("aten.").partition(".")
        operator = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if operator is None:
            continue
        for argument, given in zip(operator._schema.arguments, call.args, strict=False):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and not (node.inner and _stored(given)):
                return True
    return False


def _stored(given: Any) -> bool:
    return isinstance(given, Value) and given.kind == "buffer"
