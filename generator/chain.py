"""From a traced graph to a chain of operations, each known by kind and line."""

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import fx, nn

from generator.call_arguments import CallArguments, attribute_path, module_path
from generator.constants import baked_attribute, baked_attributes, container_sizes
from generator.errors import Refusal
from generator.operations import BAKED, FUNCTIONS, METHODS, MODULES
from generator.reference import Reference
from generator.sources import MAX_CHANNEL_VECTORS

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
LOCAL_NAMES = ("conv", "batch_norm", "pool", "group_norm")  # modules in the generated forward


@dataclasses.dataclass
class Operation:
    """One link of the chain. `values` holds expressions for ModelNew.forward, or the Step."""

    kind: str  # conv, step, batch_norm, max_pool, group_norm
    label: str  # as a reader of the reference knows it
    line: int | None
    values: dict[str, Any]


@dataclasses.dataclass
class Chain:
    input_name: str
    operations: list[Operation]
    vectors: list[str]  # expressions of shape [out_channels]
    adds_batch_dimension: bool  # a (1, C, 1, 1) operand makes an unbatched result 4-dimensional
    # (name, expression, value) of attributes whose value is compiled in
    constants: list[tuple[str, str, Any]]
    inner: list[tuple[str, str]]  # (name, expression of its class) of every module called


class ChainReader:
    """Walks the graph once; every method that meets something unknown raises Refusal."""

    def __init__(self, reference: Reference, graph: fx.Graph):
        self.reference = reference
        self.graph = graph
        constants = baked_attributes(reference) + container_sizes(reference)
        self.chain = Chain("", [], [], False, constants, [])

    def read(self) -> Chain:
        inputs = [node for node in self.graph.nodes if node.op == "placeholder"]
        if len(inputs) != 1 or inputs[0].args or str(inputs[0].target).startswith("*"):
            names = ", ".join(str(node.target) for node in inputs)
            raise Refusal(
                f"{self.reference.path}: forward must take exactly one tensor and nothing else, "
                f"got ({names})"
            )
        flow = inputs[0]
        self.chain.input_name = str(flow.target)
        if self.chain.input_name in LOCAL_NAMES:
            raise Refusal(
                f"{self.reference.path}: forward's parameter must not be called "
                f"{self.chain.input_name}, "
                "a name that the generated forward uses"
            )
        for node in self.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                continue
            self._require_linear(flow, node)
            if node.op != "output":
                operation = self._operation(node, flow)
                if operation is not None:
                    self.chain.operations.append(operation)
            elif node.args != (flow,):
                self._refuse(node, "the return value", "must be one tensor, the end of the chain")
            flow = node
        self.chain.inner = self._inner_modules()
        return self.chain

    def _inner_modules(self) -> list[tuple[str, str]]:
        inner = []
        for name in self.reference.called:
            module = self.reference.model.get_submodule(name)
            kind = type(module)
            for hooks in HOOKS:
                if getattr(module, hooks):
                    raise Refusal(
                        f"{self.reference.path}: {name} ({kind.__name__}) has "
                        f"{hooks.strip('_').replace('_', ' ')}, which a fused operator cannot run"
                    )
            is_layer = getattr(nn, kind.__name__, None) is kind
            inner.append((name, f"_nn.{kind.__name__}" if is_layer else repr(kind.__qualname__)))
        return inner

    def _require_linear(self, flow: fx.Node, node: fx.Node) -> None:
        uses = [
            argument
            for argument in _flatten([node.args, node.kwargs])
            if isinstance(argument, fx.Node) and argument.op != "get_attr"
        ]
        if uses != [flow] or len(flow.users) != 1:
            self._refuse(
                node,
                _label(node),
                "does not take just the result of the operation before it (a branch?)",
            )

    def _refuse(self, node: fx.Node, label: str, why: str) -> None:
        line = node.meta.get("line") or max(n.meta.get("line", 0) for n in self.graph.nodes)
        raise Refusal(f"{self.reference.path}:{line}: {label} {why}")

    def _operation(self, node: fx.Node, flow: fx.Node) -> Operation | None:
        label = _label(node)
        reader: Callable | None
        if node.op == "call_module":
            module = self.reference.model.get_submodule(str(node.target))
            label = type(module).__name__
            if module._forward_hooks or module._forward_pre_hooks:
                self._refuse(node, label, "has forward hooks, which a fused operator cannot run")
            reader = MODULES.get(type(module))
            if reader is not None and (len(node.args) != 1 or node.kwargs):
                self._refuse(node, label, "must be called with the tensor alone (no output_size)")
            for name in BAKED.get(type(module), ()):
                constant = baked_attribute(str(node.target), name, getattr(module, name))
                if constant not in self.chain.constants:
                    self.chain.constants.append(constant)
            subject: Any = (module, module_path(str(node.target)))
            if type(module) is nn.MaxPool2d and module.return_indices:
                self._refuse(node, label, "with return_indices gives two results")
        else:
            name = str(node.target).removesuffix("_") if node.op == "call_method" else None
            reader = METHODS.get(name) if name else FUNCTIONS.get(node.target)
            subject = CallArguments(self.reference, node, flow, label)
        if reader is None:
            self._refuse(node, label, "is not an operation that the generator knows")
        result = reader(self, subject)
        if result is None:
            return None
        kind, values = result
        return Operation(kind, label, node.meta.get("line"), values)

    def channel_vector(self, call: CallArguments, node: fx.Node) -> int:
        """Registers a per-channel operand and returns its index."""
        tensor = self.reference.model
        for part in str(node.target).split("."):
            tensor = getattr(tensor, part)
        if not self.chain.operations or self.chain.operations[0].kind != "conv":
            call.refuse("comes before the transposed convolution")
        channels, expression = self.chain.operations[0].values["channels"]
        shape = tuple(tensor.shape)
        path = attribute_path(self.reference.model, str(node.target))
        if tensor.numel() == 1 and len(shape) <= 4:
            self.chain.vectors.append(f"{path}.reshape(-1).expand({expression})")
        elif shape in ((channels, 1, 1), (1, channels, 1, 1)):
            self.chain.vectors.append(f"{path}.reshape(-1)")
        else:
            call.refuse(
                f"has the operand {node.target} of shape {shape}; allowed are ({channels}, 1, 1), "
                f"(1, {channels}, 1, 1) and a single value"
            )
        if len(self.chain.vectors) > MAX_CHANNEL_VECTORS:
            call.refuse(f"is one per-channel operand too many; at most {MAX_CHANNEL_VECTORS} fit")
        self.chain.adds_batch_dimension |= len(shape) == 4
        return len(self.chain.vectors) - 1


def read_chain(reference: Reference, graph: fx.Graph) -> Chain:
    """The operations of forward in order. Raises Refusal naming the first one that does not fit."""
    return ChainReader(reference, graph).read()


def _flatten(value: Any) -> list:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _flatten(item)]
    return [value]


def _label(node: fx.Node) -> str:
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    if node.op == "output":
        return "the return value"
    return getattr(node.target, "__name__", str(node.target))
