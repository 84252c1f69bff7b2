"""BatchNorm in eval mode as a step of the convolution's kernel, with the element-wise steps behind
it: a chain of its own, beside the call of ours and what stands behind that in training mode.
"""

import dataclasses

from torch import nn

from generator.fuse import Fused, Plan
from generator.ir import Node, Value
from generator.layer_kinds import is_softmax
from generator.reference import Reference
from generator.sources import FOLDED_NORM, MAX_CHANNEL_VECTORS
from generator.step_table import Step, epilogue_header
from generator.tails import CENTRED

_NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}  # by dimensions


@dataclasses.dataclass(eq=False)
class Fold:
    """`region`: a convolution and its chain; `tail`: the BatchNorm that alone reads it, with the
    steps behind; `norm`: what of the layer is compiled in; `behind`: what a tail of training mode
    takes along besides, which PyTorch runs behind the fold.
    """

    region: Fused
    tail: Fused
    norm: "Norm"
    behind: list[Node]

    @property
    def items(self) -> list[Fused | Node]:
        """As a plan has them."""
        return [self.region, *self.tail.nodes, *self.behind]

    @property
    def nodes(self) -> list[Node]:
        return [*self.region.nodes, *self.tail.nodes]

    @property
    def result(self) -> Value:
        return self.tail.result

    @property
    def steps(self) -> list[Step]:
        step = norm_step(len(self.region.vectors), self.norm)
        return [*self.region.steps, step, *self.tail.steps]

    @property
    def key(self) -> tuple:
        """What makes one kernel of two: the call whose text it shares, and the steps."""
        return self.region.headers, tuple(step.device for step in self.steps), self.norm


@dataclasses.dataclass(frozen=True)
class Norm:
    """`weight`, `bias`: has it one?"""

    eps: float
    weight: bool
    bias: bool

    @property
    def vectors(self) -> int:
        """Mean and variance, then those two."""
        return 2 + self.weight + self.bias


def fold_of(reference: Reference, region: Fused, tail: Fused, plan: Plan) -> Fold | None:
    """None where that is no chain for the kernels. With eps = 0 PyTorch's result for a variance of
    zero depends on the device.
    """
    module = reference.model.get_submodule(tail.conv.path)
    if type(module) is not _NORMS[region.dimensions] or module.eps <= 0:
        return None
    if module.running_mean is None or module.running_var is None:
        return None
    norm = Norm(float(module.eps), module.weight is not None, module.bias is not None)
    if len(region.vectors) + norm.vectors > MAX_CHANNEL_VECTORS:
        return None
    # Views are no step, and what keeps values for later needs registers that accumulators have.
    views = any(node.op.startswith(("aten.view", "aten.reshape")) for node in tail.elementwise)
    if views or any(step.parts for step in tail.steps):
        return None
    # In training mode a kernel of the norm takes such a softmax along.
    readers = [item for item in plan.items if tail.result in _read(item)]
    softmax = not tail.steps and any(
        isinstance(item, Node) and is_softmax(reference, item) for item in readers
    )
    if softmax:
        return None
    centred = (t for t in plan.tails if t.entry == CENTRED and t.conv is tail.conv)
    return Fold(region, tail, norm, [node for one in centred for node in one.elementwise])


def _read(item: Fused | Node) -> list[Value]:
    nodes = item.nodes if isinstance(item, Fused) else [item]
    return [value for node in nodes for value in node.operands()]


def norm_step(first: int, norm: Norm) -> Step:
    """By statistics that are there. Its operands are as they are stored, the first at that index:
    products of them would be rounded to the tensor's dtype. No kernel has its gradient.
    """
    count = iter(range(first, MAX_CHANNEL_VECTORS))
    names = ["mean", "var", *["weight"] * norm.weight, *["bias"] * norm.bias]
    places = {name: next(count) for name in names}
    of = {n: f"static_cast<Acc>(args.channel_vectors[{i}][channel])" for n, i in places.items()}
    scale = f"elementwise::inverse_root({of['var']} + Acc({norm.eps!r}))"
    scale += f" * {of['weight']}" if norm.weight else ""
    shift = f"({of['bias']} - {of['mean']} * scale)" if norm.bias else f"-{of['mean']} * scale"
    # Two numbers of a channel take fewer registers than mean, scale and bias.
    device = f"{{ const Acc scale = {scale}; v = v * scale + {shift}; }}"
    given = ", ".join(f"{name}={place}" for name, place in places.items())
    python, header = f"_RunningNorm({norm.eps!r}, {given})", "elementwise/inverse_root.h"
    return Step("batch_norm", device, python, gradient="", header=header)


def with_folds(epilogue: str, folds: list[Fold], tensors: bool) -> str:
    """The text of generated_epilogue.h, in which the libraries of folds find theirs; its arguments
    are as step_table.epilogue_header has them.
    """
    headers = [epilogue, *(epilogue_header(fold.steps, tensors) for fold in folds)]
    split = [header.splitlines() for header in headers]
    included = (line for lines in split for line in lines if line.startswith("#include"))
    given, *others = (
        [line for line in lines if not line.startswith(("#include", "#pragma once"))]
        for lines in split
    )
    parts = [f"#ifndef {FOLDED_NORM}", *given, "#else"]
    for index, lines in enumerate(others):
        parts += [f"#if {FOLDED_NORM} == {index}", *lines, "#endif"]
    return "\n".join(["#pragma once", *dict.fromkeys(included), *parts, "#endif", ""])


def constants(folds: list[Fold], suffixes: dict[tuple, str]) -> dict[str, str]:
    """What the Python half reads of them (generator/runtime/folded_norm.py). suffixes: of the calls
    whose texts they share.
    """
    rows = [(suffixes[fold.region.headers], *dataclasses.astuple(fold.norm)) for fold in folds]
    return {"_FOLDED_NORMS": repr(tuple(rows))} if folds else {}
