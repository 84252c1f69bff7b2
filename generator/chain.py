"""From a traced graph to a chain of operations, each known by kind and line."""

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from generator import steps
from generator.call_arguments import CallArguments, attribute_path
from generator.errors import Refusal
from generator.reference import Reference

LOCAL_NAMES = ("conv", "batch_norm", "pool", "group_norm")  # modules in the generated forward


@dataclasses.dataclass
class Operation:
    """One link of the chain. `values` holds Python expressions for ModelNew.forward, or the Step."""

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


class ChainReader:
    """Walks the graph once; every method that meets something unknown raises Refusal."""

    def __init__(self, reference: Reference, graph: fx.Graph):
        self.reference = reference
        self.graph = graph
        self.chain = Chain("", [], [], False)

    def read(self) -> Chain:
        inputs = [node for node in self.graph.nodes if node.op == "placeholder"]
        if len(inputs) != 1 or inputs[0].args or str(inputs[0].target).startswith("*"):
            names = ", ".join(str(node.target) for node in inputs)
            raise Refusal(
                f"{self.reference.path}: forward must take exactly one tensor and nothing else, got ({names})"
            )
        flow = inputs[0]
        self.chain.input_name = str(flow.target)
        if self.chain.input_name in LOCAL_NAMES:
            raise Refusal(
                f"{self.reference.path}: forward's parameter must not be called {self.chain.input_name}, "
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
        return self.chain

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

    def _refuse(self, node: fx.Node, label: str, problem: str) -> None:
        raise Refusal(f"{self.reference.path}:{node.meta.get('line', '?')}: {label} {problem}")

    def _operation(self, node: fx.Node, flow: fx.Node) -> Operation | None:
        label = _label(node)
        reader: Callable | None
        if node.op == "call_module":
            module = self.reference.model.get_submodule(str(node.target))
            label = type(module).__name__
            if module._forward_hooks or module._forward_pre_hooks:
                self._refuse(node, label, "has forward hooks, which a fused operator cannot run")
            reader = _MODULES.get(type(module))
            if reader is not None and (len(node.args) != 1 or node.kwargs):
                self._refuse(node, label, "must be called with the tensor alone (no output_size)")
            subject: Any = (module, attribute_path(self.reference.model, str(node.target)))
            if type(module) is nn.MaxPool2d and module.return_indices:
                self._refuse(node, label, "with return_indices gives two results")
        else:
            name = str(node.target).removesuffix("_") if node.op == "call_method" else None
            reader = _METHODS.get(name) if name else _FUNCTIONS.get(node.target)
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


def _conv_module(reader: ChainReader, subject: tuple):
    conv, path = subject
    names = ("stride", "padding", "output_padding", "dilation", "groups")
    return "conv", {
        "module": ("conv", path),
        "channels": (conv.out_channels, "conv.out_channels"),
        "arguments": ["conv.weight", "conv.bias"],
        "parameters": [f"conv.{name}" for name in names],
    }


def _conv_function(reader: ChainReader, call: CallArguments):
    arguments = call.bind(
        "weight", bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1
    )
    weight, shape = call.attribute(arguments["weight"], "weight")
    bias = "None"
    if arguments["bias"] is not None:
        bias = call.attribute(arguments["bias"], "bias")[0]
    groups = call.integer(arguments["groups"], "groups")
    names = ("stride", "padding", "output_padding", "dilation")
    return "conv", {
        "channels": (shape[1] * groups, f"{weight}.shape[1] * {groups}"),
        "arguments": [weight, bias],
        "parameters": [*(call.pair(arguments[name], name) for name in names), str(groups)],
    }


def _batch_norm_module(reader: ChainReader, subject: tuple):
    return "batch_norm", {"module": ("batch_norm", subject[1])}


def _group_norm_module(reader: ChainReader, subject: tuple):
    names = ("num_groups", "weight", "bias", "eps")
    return "group_norm", {
        "module": ("group_norm", subject[1]),
        "arguments": [f"group_norm.{name}" for name in names],
    }


def _group_norm_function(reader: ChainReader, call: CallArguments):
    arguments = call.bind("num_groups", weight=None, bias=None, eps=1e-5, cudnn_enabled=True)
    operands = [
        "None" if arguments[name] is None else call.attribute(arguments[name], name)[0]
        for name in ("weight", "bias")
    ]
    groups = call.integer(arguments["num_groups"], "num_groups")
    eps = call.number(arguments["eps"], "eps")
    return "group_norm", {"arguments": [str(groups), *operands, repr(float(eps))]}


def _max_pool_module(reader: ChainReader, subject: tuple):
    pairs = [f"_pair(pool.{name})" for name in ("kernel_size", "stride", "padding", "dilation")]
    return "max_pool", {
        "module": ("pool", subject[1]),
        "arguments": [*pairs, "pool.ceil_mode"],
    }


def _max_pool_function(reader: ChainReader, call: CallArguments):
    arguments = call.bind(
        "kernel_size", stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False
    )
    if arguments["return_indices"]:
        call.refuse("with return_indices gives two results")
    if arguments["stride"] in (None, (), []):
        arguments["stride"] = arguments["kernel_size"]
    names = ("kernel_size", "stride", "padding", "dilation")
    pairs = [call.pair(arguments[name], name) for name in names]
    return "max_pool", {"arguments": [*pairs, str(bool(arguments["ceil_mode"]))]}


def _step_module(make: Callable[[Any], steps.Step]) -> Callable:
    return lambda reader, subject: ("step", {"step": make(subject[0])})


def _step_function(make: Callable[..., steps.Step], *required: str, **defaults: Any) -> Callable:
    """Reader of a function whose arguments after the tensor are numbers (or None, or words)."""

    def read(reader: ChainReader, call: CallArguments):
        arguments = call.bind(*required, inplace=False, **defaults)
        arguments.pop("inplace")
        for name, value in arguments.items():
            if value is not None or name not in defaults or defaults[name] is not None:
                call.number(value, name)
        return "step", {"step": make(*arguments.values())}

    return read


def _gelu_function(reader: ChainReader, call: CallArguments):
    approximate = call.bind(approximate="none")["approximate"]
    if approximate not in ("none", "tanh"):
        call.refuse(f"knows the forms 'none' and 'tanh', got approximate={approximate!r}")
    return "step", {"step": steps.gelu(approximate)}


def _binary(by_number: Callable, by_vector: Callable, reverse: bool = False) -> Callable:
    """Reader of tensor (op) operand; the makers take (operand, True where the tensor is on the right)."""

    def read(reader: ChainReader, call: CallArguments):
        other, swapped = call.binary_operand()
        swapped ^= reverse
        if isinstance(other, fx.Node):
            step = by_vector(reader.channel_vector(call, other), swapped)
        else:
            step = by_number(call.number(other, "the operand"), swapped)
        if step is None:
            call.refuse("with the tensor as divisor is not an operation that the generator knows")
        return "step", {"step": step}

    return read


def _subtract_number(value: float, swapped: bool) -> steps.Step:
    return steps.subtract_from(value) if swapped else steps.add(-value)


def _subtract_vector(index: int, swapped: bool) -> steps.Step:
    return steps.add_vector(index, -1, 1) if swapped else steps.add_vector(index, 1, -1)


_ADD = _binary(lambda value, _: steps.add(value), lambda index, _: steps.add_vector(index))
_SUBTRACT = _binary(_subtract_number, _subtract_vector)
_MULTIPLY = _binary(
    lambda value, _: steps.multiply(value), lambda index, _: steps.multiply_vector(index)
)
_DIVIDE = _binary(
    lambda value, swapped: None if swapped else steps.divide(value),
    lambda index, swapped: None if swapped else steps.divide_vector(index),
)
_RELU = _step_function(steps.relu)
_RELU6 = _step_function(lambda: steps.hardtanh(0.0, 6.0))
_TANH = _step_function(steps.tanh)
_SIGMOID = _step_function(steps.sigmoid)
_HARDTANH = _step_function(steps.hardtanh, min_val=-1.0, max_val=1.0)
_CLAMP = _step_function(steps.clamp, min=None, max=None)
_CLAMP_MIN = _step_function(lambda low: steps.clamp(low, None), "min")
_CLAMP_MAX = _step_function(lambda high: steps.clamp(None, high), "max")
_NEGATE = _step_function(lambda: steps.multiply(-1))

_METHODS: dict[str, Callable] = {
    "relu": _RELU,
    "tanh": _TANH,
    "sigmoid": _SIGMOID,
    "clamp": _CLAMP,
    "clip": _CLAMP,
    "clamp_min": _CLAMP_MIN,
    "clamp_max": _CLAMP_MAX,
    "add": _ADD,
    "sub": _SUBTRACT,
    "subtract": _SUBTRACT,
    "mul": _MULTIPLY,
    "multiply": _MULTIPLY,
    "div": _DIVIDE,
    "divide": _DIVIDE,
    "true_divide": _DIVIDE,
    "neg": _NEGATE,
    "negative": _NEGATE,
}
# torch.relu, torch.relu_ ... are the methods as functions.
_FUNCTIONS: dict[Any, Callable] = {
    getattr(torch, name + suffix): reader
    for name, reader in _METHODS.items()
    for suffix in ("", "_")
    if hasattr(torch, name + suffix)
} | {
    operator.add: _ADD,
    operator.iadd: _ADD,
    operator.sub: _SUBTRACT,
    operator.isub: _SUBTRACT,
    operator.mul: _MULTIPLY,
    operator.imul: _MULTIPLY,
    operator.truediv: _DIVIDE,
    operator.itruediv: _DIVIDE,
    operator.neg: _NEGATE,
    F.relu: _RELU,
    F.relu_: _RELU,
    F.relu6: _RELU6,
    F.gelu: _gelu_function,
    F.tanh: _TANH,
    F.sigmoid: _SIGMOID,
    F.hardtanh: _HARDTANH,
    F.hardtanh_: _HARDTANH,
    F.conv_transpose2d: _conv_function,
    F.group_norm: _group_norm_function,
    torch.group_norm: _group_norm_function,
    F.max_pool2d: _max_pool_function,
    torch.max_pool2d: _max_pool_function,
}
_MODULES: dict[type, Callable] = {
    nn.ConvTranspose2d: _conv_module,
    nn.BatchNorm2d: _batch_norm_module,
    nn.GroupNorm: _group_norm_module,
    nn.MaxPool2d: _max_pool_module,
    nn.ReLU: _step_module(lambda _: steps.relu()),
    nn.ReLU6: _step_module(lambda _: steps.hardtanh(0.0, 6.0)),
    nn.GELU: _step_module(lambda module: steps.gelu(module.approximate)),
    nn.Tanh: _step_module(lambda _: steps.tanh()),
    nn.Sigmoid: _step_module(lambda _: steps.sigmoid()),
    nn.Hardtanh: _step_module(lambda module: steps.hardtanh(module.min_val, module.max_val)),
    nn.Identity: lambda reader, subject: None,
}
