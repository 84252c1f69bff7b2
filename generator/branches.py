"""Element-wise operators that read one another's results, such as x * sigmoid(x): one step, where
what lies between is read by them alone.
"""

import dataclasses
from collections.abc import Callable, Iterable

from generator.ir import Node, Value
from generator.step_table import Step, branches

# Operators of no arithmetic, whose results others read. What writes to a tensor is none of these.
COPIES = {
    "aten.clone.default": Step("clone", "", "_Identity()", ""),
    "aten.detach.default": Step("detach", "", "_Detach()", ""),
}
_DETACH = COPIES["aten.detach.default"]


@dataclasses.dataclass
class Part:
    """One operator: `source` goes in, `operand` is a per-channel vector, a tensor of the output's
    shape (`whole`) or another value of the branches, if there is one.
    """

    node: Node
    source: Value
    step: Step
    operand: Value | None = None
    whole: bool = False


@dataclasses.dataclass
class Found:
    """Branches as a step; `vectors`: their operands, in the order of their indices; `whole`: the
    indices of those that have the output's shape.
    """

    nodes: list[Node]
    step: Step
    vectors: list[Value]
    whole: list[int]


def behind(
    value: Value,
    following: Iterable[Node],
    users: dict[Value, list[Node | None]],
    read: Callable[[Node, dict[Value, int], list[Value]], Part | None],
) -> Found | None:
    """The fewest operators behind `value` that read it, and one another, and hand on one result
    alone; None where there are none.

    `following`: the graph's nodes behind it; `users`: every use of every value; `read(node,
    numbers, vectors)`: what a node is that reads values of these numbers, behind these per-channel
    operands, or None.
    """
    numbers, vectors, whole, parts = {value: 0}, [], [], []
    for node in following:
        if not any(operand in numbers for operand in node.operands()):
            continue
        part = read(node, numbers, vectors)
        if part is None:
            return None  # a reader that is not one of them
        if part.operand is not None and part.operand not in numbers:
            whole += [len(vectors)] * part.whole
            vectors.append(part.operand)
        parts.append(part)
        numbers[node.result] = len(parts)
        nodes = [part.node for part in parts]
        between = (number for number in numbers if number is not node.result)
        if all(user in nodes for inner in between for user in users.get(inner, [])):
            reached = _reached(parts, numbers)
            if reached is None:
                return None
            step = branches([(numbers[part.source], part.step) for part in parts], reached)
            return Found(nodes, step, vectors, whole)
    return None


def _reached(parts: list[Part], numbers: dict[Value, int]) -> set[int] | None:
    """The numbers of the values that the result's gradient reaches. None where it does not reach
    the value that comes in, or a per-channel operand: PyTorch has none for what is only read
    detached, where a kernel would give zeros.
    """
    reached = {len(parts)}
    for number, part in reversed(list(enumerate(parts, 1))):
        if number not in reached:
            if part.operand is not None and part.operand not in numbers:
                return None
        elif part.step is not _DETACH:
            reached |= {numbers[value] for value in (part.source, part.operand) if value in numbers}
    return reached if 0 in reached else None
