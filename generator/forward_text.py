"""The body of ModelNew.forward: calls of ours and PyTorch's operators, in the reference's order."""

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator

from generator.calls import Modules, call_text, extremum_text, modules_of
from generator.expressions import Expressions, attribute_path
from generator.extrema import Extremum, with_extrema
from generator.fold_text import FoldTexts
from generator.folds import Fold
from generator.fuse import STEPLESS, Fused, Plan
from generator.ir import Node, Region, Value, leaves
from generator.kernels import Kernels
from generator.layer_kinds import is_batch_norm, is_group_norm, is_ordinary_conv, is_softmax
from generator.means import is_mean
from generator.reference import Reference
from generator.tail_text import TailTexts, gathered


@dataclasses.dataclass(frozen=True)
class NormSoftmax:
    """BatchNorm and a softmax that alone reads it, in one call."""

    norm: Node
    softmax: Node

    @property
    def nodes(self) -> list[Node]:
        return [self.norm, self.softmax]

    @property
    def result(self) -> Value:
        return self.softmax.result

    @property
    def regions(self) -> tuple[Region, ...]:
        return self.norm.regions


class Names:
    """Local variables of results; one is used again once nothing reads it any more, so that
    forward keeps no tensor longer than the reference does.
    """

    def __init__(self, taken: set[str]):
        self._taken, self._free, self._count = taken, [], 0

    def take(self) -> str:
        if self._free:
            return self._free.pop()
        self._count += 1
        while f"v{self._count}" in self._taken:
            self._count += 1
        return f"v{self._count}"

    def give(self, name: str) -> None:
        self._free.append(name)


def body(
    reference: Reference,
    plan: Plan,
    kernels: Kernels,
    modules: Modules,
    taken: set[str],
    folds: list[Fold],
) -> str:
    """The statements of one mode, without indentation, the return last. folds: of the plan."""
    text = Expressions(reference, device_of_inputs(plan), dtype_of_inputs(plan))
    if "batch_norm" in kernels.norms:
        plan = dataclasses.replace(plan, items=_with_softmax(reference, plan))
    if kernels.reduced:
        plan = dataclasses.replace(plan, items=with_extrema(plan))
    tails = TailTexts(reference, plan, kernels, text, taken)
    items = gathered(tails.items, [fold.items for fold in folds])
    plan = dataclasses.replace(plan, items=items)
    folded = FoldTexts(reference, folds, kernels, text, modules, tails.done)
    names = Names(taken | {tails.done})
    last_use = _last_uses(plan)
    lines: list[str] = []
    opened: tuple[Region, ...] = ()
    for place, item in enumerate(plan.items):
        regions = item.conv.regions if isinstance(item, Fused) else item.regions
        if regions != opened:
            lines += _switches(regions, opened, text)
            opened = regions
        folded.begin(item, len(lines))
        tails.begin(item, len(lines))
        if isinstance(item, Node) and kernels.own_gradients and is_mean(item, plan):
            call = f"_mean({', '.join(map(text.argument, item.args))})"
        else:
            call = _item_text(reference, item, kernels, text, modules)
        result = item.result
        is_end = place + 1 == len(plan.items) and plan.outputs is result and not opened
        is_end = is_end and not (tails.are_open or folded.are_open)
        for value in last_use.get(place, ()):
            if value in text.names and not (folded.keep(value) or tails.keep(value)):
                names.give(text.names[value])
        if is_end:
            statement = f"return {call}"
        elif _is_read(result, last_use):
            text.names[result] = names.take()
            statement = f"{text.names[result]} = {call}"
        else:
            statement = call
        depth = len(regions) + tails.are_open + folded.are_open
        lines.append(textwrap.indent(statement, "    " * depth))
        folded.add(item, statement)
        free = tails.end(item, lines, text.names.get(result), folded.are_open)
        for name in [*free, *folded.end(item, lines)]:
            names.give(name)
        if is_end:
            return "\n".join(lines)
    lines.append(f"return {text.argument(plan.outputs)}")
    return "\n".join(lines)


def _with_softmax(reference: Reference, plan: Plan) -> list[Fused | Node | NormSoftmax]:
    """The items of a plan, each BatchNorm together with what alone reads it, a softmax that no tail
    begins with.
    """
    of_tails = {node for tail in plan.tails for node in tail.nodes}
    nodes = [node for item in plan.items for node in _nodes(item)]
    read = [value for node in nodes for value in node.operands()]
    read += leaves(plan.outputs)
    items: list[Fused | Node | NormSoftmax] = []
    for item in plan.items:
        before = items[-1] if items else None
        if (
            isinstance(item, Node)
            and isinstance(before, Node)
            and is_batch_norm(reference, before)
            and is_softmax(reference, item)
            and item not in of_tails
            and list(item.operands()) == [before.result]
            and read.count(before.result) == 1
            and item.regions == before.regions
        ):
            items[-1] = NormSoftmax(before, item)
        else:
            items.append(item)
    return items


def _nodes(item: Fused | Node | NormSoftmax | Extremum) -> list[Node]:
    return [item] if isinstance(item, Node) else item.nodes


def device_of_inputs(plan: Plan) -> str | None:
    """The text of the device on which forward's inputs are."""
    first = next(_tensors_given(plan), None)
    return None if first is None else f"{Expressions.value(None, first)}.device"


def dtype_of_inputs(plan: Plan) -> str | None:
    """The text of the dtype that those of floating point have."""
    floating = (value for value in _tensors_given(plan) if value.dtype.is_floating_point)
    first = next(floating, None)
    return None if first is None else f"{Expressions.value(None, first)}.dtype"


def _tensors_given(plan: Plan) -> Iterator[Value]:
    """Inputs of forward, as they are read."""
    for item in plan.items:
        for value in (v for node in _nodes(item) for v in node.operands()):
            if value.kind == "input" and value.shape is not None:
                yield value


def signature(reference: Reference) -> str:
    """forward's parameters as the reference writes them; one plain tensor gets its annotation."""
    parameters = list(inspect.signature(reference.model.forward).parameters.values())
    if len(parameters) == 1 and parameters[0].default is inspect.Parameter.empty:
        if parameters[0].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            return f"self, {parameters[0].name}: torch.Tensor) -> torch.Tensor"
    for node in ast.walk(reference.tree):
        if isinstance(node, ast.FunctionDef) and node.name == "forward":
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first == reference.forward_line or node.lineno == reference.forward_line:
                return f"{ast.unparse(node.args)})"
    return f"self, {', '.join(parameter.name for parameter in parameters)})"


def _last_uses(plan: Plan) -> dict[int, list[Value]]:
    """By the place of an item, the results that nothing reads after it."""
    last: dict[Value, int] = {}
    for place, item in enumerate(plan.items):
        for node in _nodes(item):
            for value in node.operands():
                last[value] = place
    for value in leaves(plan.outputs):
        last[value] = len(plan.items)
    found: dict[int, list[Value]] = {}
    for value, place in last.items():
        found.setdefault(place, []).append(value)
    return found


def _is_read(value: Value, last_use: dict[int, list[Value]]) -> bool:
    return any(value in values for values in last_use.values())


def _item_text(
    reference: Reference,
    item: Fused | Node | NormSoftmax | Extremum,
    kernels: Kernels,
    text: Expressions,
    modules: Modules,
) -> str:
    if isinstance(item, Fused):
        modules_of(item, modules)
        return call_text(item, kernels.suffixes[item.headers], text, modules)
    if isinstance(item, Extremum):
        modules_of(item.fused, modules)
        return extremum_text(item, kernels.suffixes[item.fused.headers], text, modules)
    if isinstance(item, NormSoftmax):
        norm, softmax = (attribute_path(reference.model, node.path) for node in item.nodes)
        return f"_large_batch_norm({norm}, {text.argument(item.norm.args[0])}, {softmax})"
    if item.op == "layer":
        layer, x = attribute_path(reference.model, item.path), text.argument(item.args[0])
        suffix = kernels.suffixes.get(STEPLESS)
        if suffix is not None and is_ordinary_conv(reference, item):
            return f"_ordinary_conv(_operator{suffix}, {layer}, {x})"
        if "batch_norm" in kernels.norms and is_batch_norm(reference, item):
            return f"_large_batch_norm({layer}, {x})"
        if "group_norm" in kernels.norms and is_group_norm(reference, item):
            return f"_large_group_norm({layer}, {x})"
        return f"{layer}({x})"
    return text.call(item.op, item.args, item.kwargs)


def _switches(
    regions: tuple[Region, ...], opened: tuple[Region, ...], text: Expressions
) -> list[str]:
    """The `with` statements of regions that are not open yet."""
    lines = []
    shared = 0
    while shared < min(len(regions), len(opened)) and regions[shared] is opened[shared]:
        shared += 1
    for depth, region in enumerate(regions[shared:], shared):
        if region.kind == "grad":
            switch = f"torch.set_grad_enabled({region.settings[0]})"
        else:
            device, dtype, enabled, caches = region.settings
            given = [text.device_type(device)]
            given += [f"dtype={dtype}"] if dtype is not None else []
            given += [f"enabled={enabled}"]
            given += [f"cache_enabled={caches}"] if caches is not None else []
            switch = f"torch.autocast({', '.join(given)})"
        lines.append("    " * depth + f"with {switch}:")
    return lines
