"""Which operators run in one kernel call with a transposed convolution, and why others do not."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from generator import branches, ops
from generator.errors import Refusal
from generator.front.layers import layer_class
from generator.front.watch import Watch
from generator.ir import Graph, Node, Value, leaves
from generator.reads import (
    Behind,
    Read,
    overload_of,
    read_step,
    views_of_parameters,
    why_left,
    writes,
)
from generator.reference import Reference
from generator.softsign import softsign
from generator.sources import MAX_CHANNEL_VECTORS
from generator.step_table import Step
from generator.tails import CENTRED, NORM_TAILS, centring, keeps_channels, may_read, tail_kind

_OVER_SLICES = "a group's moments are over all slices, which are images to the kernels"
_BEHIND_TENSORS = "no kernel normalises what a tensor operand is read into"
TRANSPOSED = {  # with their dimensions
    "aten.conv_transpose1d.default": 1,
    "aten.conv_transpose2d.input": 2,
    "aten.conv_transpose3d.input": 3,
}
STEPLESS = ("conv", (), 0, None)  # Fused.headers of a convolution that nothing is fused behind
_LAYERS = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_RECORDS = {record.module: record for record in ops.UNARY if record.module is not None}
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


@dataclasses.dataclass(eq=False)
class Fused:
    """One call of our operator: the convolution and the nodes that it takes along.

    `entry`: kernels_src/<device>/entry_<entry>.*, or a tail's kind, whose operator is in the place
    of the convolution (tails.py); `steps`: what its element-wise nodes compute;
    `vectors`: their operands, in the order of their indices: per-channel ones and, at the indices
    in `whole`, tensors of the output's shape; `rest`: the nodes of norms, activation and pool
    behind them.
    """

    entry: str
    conv: Node
    elementwise: list[Node]
    steps: list[Step]
    vectors: list[Value]
    rest: list[Node]
    whole: list[int] = dataclasses.field(default_factory=list)
    activation: Step | None = None  # in `rest`, where that begins with BatchNorm

    @property
    def nodes(self) -> list[Node]:
        return [self.conv, *self.elementwise, *self.rest]

    @property
    def result(self) -> Value:
        return self.nodes[-1].result

    @property
    def stands_at(self) -> Node:
        """The node in whose place it is called: operands of the output's shape may come late."""
        return self.nodes[-1] if self.whole else self.conv

    @property
    def dimensions(self) -> int:
        """Of the convolution: 1, 2 or 3; of a tail those behind the channels."""
        return dimensions_of(self.conv) or len(self.result.shape) - 2

    @property
    def headers(self) -> tuple:
        """What makes one kernel of two calls: entry, steps, number of vectors, activation."""
        steps = tuple((step.device, step.python) for step in self.steps)
        activation = self.activation
        return self.entry, steps, len(self.vectors), activation and activation.python


@dataclasses.dataclass
class Plan:
    """The order of forward: calls of ours among nodes that stay PyTorch's, each left for the reason
    that `why` gives. `tails`: those of such nodes that a kernel may take together (tails.py);
    `read_through`: views of parameters that only calls of ours read, from where those lie;
    `normed`: by call of ours the BatchNorm that alone reads it, as a tail (folds.py).
    """

    items: list[Fused | Node]
    why: dict[Node, str]
    outputs: Any
    tails: list[Fused] = dataclasses.field(default_factory=list)
    read_through: list[Node] = dataclasses.field(default_factory=list)
    normed: dict[Fused, Fused] = dataclasses.field(default_factory=dict)

    @property
    def fused(self) -> list[Fused]:
        return [item for item in self.items if isinstance(item, Fused)]


def hooks_of(module: nn.Module) -> list[str]:
    """The kinds of hooks that a module has, in words."""
    return [name.strip("_").replace("_", " ") for name in _HOOKS if getattr(module, name)]


def fuse(reference: Reference, graph: Graph, watch: Watch) -> Plan:
    """Takes every transposed convolution of the graph with what can follow it in one kernel
    call.
    """
    return _Fusion(reference, graph).plan()


class _Fusion:
    def __init__(self, reference: Reference, graph: Graph):
        self._reference, self._graph = reference, graph
        self._users = graph.users()
        self._place = {node: place for place, node in enumerate(graph.nodes)}
        self._why: dict[Node, str] = {}
        self._taken: dict[Node, Fused] = {}
        self._views = views_of_parameters(graph.nodes)

    def plan(self) -> Plan:
        taken = self._taken
        for node in self._graph.nodes:
            if node not in taken and self._is_anchor(node):
                fused = self._grow(node)
                taken |= dict.fromkeys(fused.nodes, fused)
        items: list[Fused | Node] = []
        read_through = []
        for node in self._graph.nodes:
            fused = taken.get(node)
            if fused is None and self._is_read_through(node):
                read_through.append(node)
            elif fused is None:
                items.append(node)
                self._why.setdefault(node, why_left(node))
            elif fused.stands_at is node:
                items.append(fused)
        left = {node: why for node, why in self._why.items() if node not in taken}
        tails = self._tails()
        return Plan(items, left, self._graph.outputs, tails, read_through, self._normed(items))

    def _is_read_through(self, node: Node) -> bool:
        """Is it a view of a parameter that kernels alone read, from where the parameter lies?"""
        users = self._users.get(node.result, [])
        taken = bool(users) and all(
            user in self._taken or (user is not None and self._is_read_through(user))
            for user in users
        )
        return taken and node.result in self._views

    def _tails(self) -> list[Fused]:
        """Each operator that a tail is for, with the steps behind it."""
        found = []
        for node in self._graph.nodes:
            kind = None if node in self._taken else tail_kind(self._reference, node)
            # Of softmax PyTorch keeps the result for the gradient, a tail what it was given.
            kept = kind is None or "Softmax" not in kind or not self._writes_behind(node)
            centred = centring(node, self._graph, self._users) if kind == "kBatchNorm" else []
            kind = CENTRED if centred else kind
            tail = self._grow(node, kind, centred) if kind is not None and kept else None
            if tail is not None and (tail.steps or centred or kind not in NORM_TAILS):
                found.append(tail)
        return found

    def _normed(self, items: list[Fused | Node]) -> dict[Fused, Fused]:
        """By call of ours the BatchNorm that alone reads it, with the steps behind that."""
        found = {}
        for fused in items:
            if not isinstance(fused, Fused) or fused.entry != "conv" or fused.whole:
                continue
            self._members = set(fused.nodes)
            node = self._next(fused.result, fused.nodes[-1], fused.conv)
            if node is not None and self._layer(node) is not None:
                if tail_kind(self._reference, node) == "kBatchNorm":
                    found[fused] = self._grow(node, "kBatchNorm")
        return found

    def _writes_behind(self, node: Node) -> bool:
        return any(writes(later) for later in self._graph.nodes[self._place[node] + 1 :])

    def _is_anchor(self, node: Node) -> bool:
        inner = next((n for n in node.inner if n.op in TRANSPOSED), None)
        if node.op not in TRANSPOSED and inner is None:
            return False
        if node.op == "layer":
            module = self._reference.model.get_submodule(node.path)
            if layer_class(module) not in _LAYERS:
                return False
            if hooks := hooks_of(module):
                self._why[node] = f"it has {hooks[0]}, which PyTorch must run"
                return False
            if node.args[0] is not (inner.args[0] if inner.args else inner.kwargs["input"]):
                self._why[node] = "it changes its input before it convolves"
                return False
        if node.result.dtype not in (
            torch.float32,
            torch.float64,
            torch.float16,
            torch.bfloat16,
        ):
            self._why[node] = f"the kernels compute no {node.result.dtype}"
            return False
        return True

    def _next(self, value: Value, last: Node, anchor: Node) -> Node | None:
        """The one node that reads `value`, where it can run with the anchor."""
        users = self._users.get(value, [])
        if len(users) != 1 or users[0] is None:
            if len(users) > 1:
                for user in users:
                    if user is not None:
                        self._why.setdefault(
                            user, f"the result of {label(last)} is read {len(users)} times"
                        )
            return None
        node = users[0]
        if node in self._taken:
            return None
        if node.regions != anchor.regions:
            self._why[node] = "it runs under another switch (no_grad or autocast)"
            return None
        for between in self._graph.nodes[self._place[anchor] + 1 : self._place[node]]:
            if between not in self._members and writes(between):
                self._why[node] = f"{label(between)} writes to a tensor in between"
                return None
        return node

    def _grow(self, conv: Node, entry: str = "conv", taken: Sequence[Node] = ()) -> Fused:
        """taken: nodes right behind `conv` that are no steps but the entry's own."""
        fused = Fused(entry, conv, [*taken], [], [], [])
        self._members = {conv, *taken}
        last = [conv, *taken][-1]
        while True:
            if (joined := softsign(last.result, conv, self._users)) is not None:
                fused.elementwise += joined
                fused.steps.append(_RECORDS[nn.Softsign].make())
                self._members |= set(joined)
                last = joined[-1]
                continue
            found = self._branches(last.result, fused)
            if found is not None and may_read(entry, found.vectors, found.whole):
                fused.elementwise += found.nodes
                fused.steps.append(found.step)
                fused.whole += [len(fused.vectors) + index for index in found.whole]
                fused.vectors += found.vectors
                self._members |= set(found.nodes)
                last = found.nodes[-1]
                continue
            node = self._next(last.result, last, conv)
            if node is None:
                break
            if node.op == "layer" and hooks_of(self._reference.model.get_submodule(node.path)):
                self._why[node] = "it has hooks, which PyTorch must run"
                break
            if entry != "conv" and keeps_channels(node, last.result):
                fused.elementwise.append(node)
                self._members.add(node)
                last = node
                continue
            read_before = len(fused.vectors)
            behind = Behind(last.result, read_before, fused.dimensions, views=self._views)
            read = self._step(node, behind)
            if read.step is None:
                if self._take_norms(fused, node):
                    break
                self._why[node] = read.why
                if self._is_group_norm(node):
                    self._why[node] = _BEHIND_TENSORS if fused.whole else _OVER_SLICES
                break
            if not may_read(entry, read.vector, read.whole):
                break
            if read.vector is not None:
                if len(fused.vectors) == MAX_CHANNEL_VECTORS:
                    self._why[node] = f"at most {MAX_CHANNEL_VECTORS} operands fit"
                    break
                fused.whole += [len(fused.vectors)] * read.whole
                fused.vectors.append(read.vector)
            fused.elementwise.append(node)
            fused.steps.append(read.step)
            self._members.add(node)
            last = node
        return fused

    def _branches(self, value: Value, fused: Fused) -> branches.Found | None:
        """What reads `value` more than once and can run with the anchor as one step."""
        if len(self._users.get(value, [])) < 2:
            return None
        behind = self._graph.nodes[self._place[fused.conv] + 1 :]

        def read(node: Node, numbers: dict[Value, int], vectors: list[Value]):
            if node.regions != fused.conv.regions:
                return None
            source = next(operand for operand in node.operands() if operand in numbers)
            call = overload_of(node)
            if call is not None and call.op in branches.COPIES:
                alone = len(call.args) == 1 and not call.kwargs
                return branches.Part(node, source, branches.COPIES[call.op]) if alone else None
            if node.op == "layer" and hooks_of(self._reference.model.get_submodule(node.path)):
                return None
            read_before = len(fused.vectors) + len(vectors)
            behind = Behind(source, read_before, fused.dimensions, numbers, self._views)
            found = self._step(node, behind)
            full = found.vector is not None and read_before == MAX_CHANNEL_VECTORS
            if found.step is None or full:
                return None
            operand = found.vector or found.earlier
            return branches.Part(node, source, found.step, operand, found.whole)

        others = (node for node in behind if node not in self._members)
        following = itertools.takewhile(lambda node: not writes(node), others)
        return branches.behind(value, following, self._users, read)

    def _step(self, node: Node, behind: Behind) -> Read:
        module = self._reference.model.get_submodule(node.path) if node.op == "layer" else None
        record = _RECORDS.get(layer_class(module)) if module is not None else None
        if record is None:
            return read_step(node, behind)
        try:
            return Read(record.step_of_module(module))
        except ValueError as error:
            return Read(why=f"it {error}")

    def _take_norms(self, fused: Fused, node: Node) -> bool:
        """Takes GroupNorm, or BatchNorm with what must follow it, if that is what comes."""
        if fused.whole or fused.entry != "conv":
            return False
        if self._is_group_norm(node):
            if fused.dimensions == 3:  # _OVER_SLICES
                return False
            fused.entry, fused.rest = "conv_group_norm", [node]
            return True
        if self._layer(node) is not nn.BatchNorm2d or fused.elementwise:
            return False
        nodes = [node]
        for accepts in (self._is_rising, self._is_max_pool, self._is_group_norm):
            self._members.add(nodes[-1])
            following = self._next(nodes[-1].result, nodes[-1], fused.conv)
            if following is None or not accepts(following):
                self._members -= set(nodes)
                return False
            nodes.append(following)
        fused.entry, fused.rest = "conv_batch_norm_pool_group_norm", nodes
        fused.activation = self._step(nodes[1], Behind(None)).step
        return True

    def _layer(self, node: Node) -> type[nn.Module] | None:
        if node.op != "layer":
            return None
        module = self._reference.model.get_submodule(node.path)
        kind = layer_class(module)
        return None if hooks_of(module) else kind

    def _is_group_norm(self, node: Node) -> bool:
        if node.op == "layer":
            return self._layer(node) is nn.GroupNorm
        return node.op == "aten.group_norm.default" and isinstance(node.args[1], int)

    def _is_max_pool(self, node: Node) -> bool:
        if node.op == "layer":
            return self._layer(node) is nn.MaxPool2d and overload_of(node) is not None
        return node.op == "aten.max_pool2d.default" and not any(leaves(node.args[1:]))

    def _is_rising(self, node: Node) -> bool:
        if node.op == "layer" and self._layer(node) is None:
            return False
        read = self._step(node, Behind(None))
        return read.step is not None and read.step.monotone and read.vector is None


def dimensions_of(node: Node) -> int | None:
    """Those of a transposed convolution, None for other nodes."""
    ops_of = (call.op for call in (node, *node.inner))
    return next((TRANSPOSED[op] for op in ops_of if op in TRANSPOSED), None)


def label(node: Node) -> str:
    """A node as a reader of the reference knows it."""
    return node.layer or node.op.split(".")[1]


def require_transposed(reference: Reference, graph: Graph) -> None:
    """Raises Refusal for a forward without any transposed convolution."""
    if not any(call.op in TRANSPOSED for node in graph.nodes for call in (node, *node.inner)):
        raise Refusal(
            f"{reference.path}:{reference.forward_line}: forward calls no transposed convolution, "
            "so there is nothing to generate"
        )
