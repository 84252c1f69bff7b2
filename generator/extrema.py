"""Minima and maxima over channels that alone read what a convolution's kernel computes: on Hopper
it may form them in the place of storing its outputs (kernels_src/cuda/channel_extremum.cuh).
"""

import dataclasses

from generator.fuse import Fused, Plan
from generator.ir import Node, Region, Value, leaves

# By overload: the kind, in generator/runtime/channel_extremum.py; does it have indices, too?
_REDUCTIONS = {
    "aten.min.dim": ("least", True),
    "aten.max.dim": ("most", True),
    "aten.amin.default": ("least", False),
    "aten.amax.default": ("most", False),
}


@dataclasses.dataclass(eq=False)
class Extremum:
    """A call of ours and what reduces its channels: `reducing`, the operator and, where that has
    indices, too, what takes its values alone. `kind`: least or most.
    """

    fused: Fused
    reducing: list[Node]
    kind: str

    @property
    def nodes(self) -> list[Node]:
        return [*self.fused.nodes, *self.reducing]

    @property
    def result(self) -> Value:
        return self.reducing[-1].result

    @property
    def regions(self) -> tuple[Region, ...]:
        return self.fused.conv.regions

    @property
    def arguments(self) -> dict:
        """Of the operator, by name."""
        return {"keepdim": False} | self.reducing[0].named(("self", "dim", "keepdim"))


def extrema(plan: Plan) -> dict[Fused, Extremum]:
    """By call of ours. Images alone: nothing but the channels of one call are channels there."""
    users = _users(plan)
    found = {}
    for fused in plan.fused:
        if fused.entry != "conv" or fused.dimensions != 2 or fused.whole:
            continue
        reducing = _reducing(fused, users)
        if reducing and all(node.regions == fused.conv.regions for node in reducing):
            found[fused] = Extremum(fused, reducing, _REDUCTIONS[reducing[0].op][0])
    return found


def with_extrema(plan: Plan) -> list[Fused | Node | Extremum]:
    """The items of a plan, each such call together with what reduces its channels."""
    found = extrema(plan)
    taken = {node for one in found.values() for node in one.reducing}
    return [found.get(item, item) for item in plan.items if item not in taken]


def _reducing(fused: Fused, users: dict[Value, list[Node | None]]) -> list[Node]:
    """The nodes that reduce the channels of a call's result and alone read it, or none."""
    readers = users.get(fused.result, [])
    node = readers[0] if len(readers) == 1 else None
    if node is None or node.op not in _REDUCTIONS:
        return []
    given = node.named(("self", "dim", "keepdim"))
    dims = given.get("dim")
    dims = dims if isinstance(dims, list | tuple) else [dims]
    if len(dims) != 1 or not isinstance(dims[0], int) or dims[0] not in (1, -3):
        return []
    if not isinstance(given.get("keepdim", False), bool) or len(fused.result.shape) != 4:
        return []
    if not _REDUCTIONS[node.op][1]:
        return [node]
    readers = users.get(node.result, [])
    values = readers[0] if len(readers) == 1 else None
    takes = values is not None and values.op == "python.getitem" and values.args[1] == 0
    return [node, values] if takes else []


def _users(plan: Plan) -> dict[Value, list[Node | None]]:
    """Every use of every value, once for each place; None for the return."""
    found: dict[Value, list[Node | None]] = {}
    for item in plan.items:
        for node in item.nodes if isinstance(item, Fused) else [item]:
            for value in node.operands():
                found.setdefault(value, []).append(node)
    for value in leaves(plan.outputs):
        found.setdefault(value, []).append(None)
    return found
