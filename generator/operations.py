"""Readers of single operations: from a module or call of the reference to a link of the chain.

A reader takes the ChainReader and its subject, (module, expression) for a module or CallArguments
for a call, and returns (kind, values) of an Operation, or None for an operation without effect.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from generator import step_table
from generator.call_arguments import CallArguments


def _conv_module(reader: Any, subject: tuple):
    conv, path = subject
    names = ("stride", "padding", "output_padding", "dilation", "groups")
    return "conv", {
        "module": ("conv", path),
        "channels": (conv.out_channels, "conv.out_channels"),
        "arguments": ["conv.weight", "conv.bias"],
        "parameters": [f"conv.{name}" for name in names],
    }


def _conv_function(reader: Any, call: CallArguments):
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


def _batch_norm_module(reader: Any, subject: tuple):
    return "batch_norm", {"module": ("batch_norm", subject[1])}


def _group_norm_module(reader: Any, subject: tuple):
    names = ("num_groups", "weight", "bias", "eps")
    return "group_norm", {
        "module": ("group_norm", subject[1]),
        "arguments": [f"group_norm.{name}" for name in names],
    }


def _group_norm_function(reader: Any, call: CallArguments):
    arguments = call.bind("num_groups", weight=None, bias=None, eps=1e-5, cudnn_enabled=True)
    operands = [
        "None" if arguments[name] is None else call.attribute(arguments[name], name)[0]
        for name in ("weight", "bias")
    ]
    groups = call.integer(arguments["num_groups"], "num_groups")
    eps = call.number(arguments["eps"], "eps")
    return "group_norm", {"arguments": [str(groups), *operands, repr(float(eps))]}


def _max_pool_module(reader: Any, subject: tuple):
    pairs = [f"pool.{name}" for name in ("kernel_size", "stride", "padding", "dilation")]
    return "max_pool", {
        "module": ("pool", subject[1]),
        "arguments": [*pairs, "pool.ceil_mode"],
    }


def _max_pool_function(reader: Any, call: CallArguments):
    arguments = call.bind(
        "kernel_size", stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False
    )
    if arguments["stride"] in (None, (), []):
        arguments["stride"] = arguments["kernel_size"]
    names = ("kernel_size", "stride", "padding", "dilation")
    pairs = [call.pair(arguments[name], name) for name in names]
    return "max_pool", {"arguments": [*pairs, str(bool(arguments["ceil_mode"]))]}


def _step_module(make: Callable[[Any], step_table.Step]) -> Callable:
    return lambda reader, subject: ("step", {"step": make(subject[0])})


def _step_function(
    make: Callable[..., step_table.Step], *required: str, inplace: bool = False, **defaults: Any
) -> Callable:
    """Reader of a function whose arguments after the tensor are numbers (or None), in the order of
    PyTorch's own signature. `inplace`: it has that argument, too, the last one in PyTorch.
    """
    flag = {"inplace": False} if inplace else {}

    def read(reader: Any, call: CallArguments):
        arguments = call.bind(*required, **defaults, **flag)
        arguments.pop("inplace", None)
        for name, value in arguments.items():
            if value is not None or name not in defaults or defaults[name] is not None:
                call.number(value, name)
        return "step", {"step": make(*arguments.values())}

    return read


def _bounded(make: Callable[..., step_table.Step], **defaults: Any) -> Callable:
    """Reader of clamp: a bound at least, as PyTorch demands."""
    read_step = _step_function(make, **defaults)

    def read(reader: Any, call: CallArguments):
        if all(bound is None for bound in call.bind(**defaults).values()):
            call.refuse("needs min or max")
        return read_step(reader, call)

    return read


def _hardtanh_function(inplace: bool) -> Callable:
    def read(reader: Any, call: CallArguments):
        flag = {"inplace": False} if inplace else {}
        arguments = call.bind(min_val=-1.0, max_val=1.0, **flag)
        low, high = (call.number(arguments[name], name) for name in ("min_val", "max_val"))
        if low > high:
            call.refuse(f"needs min_val <= max_val, got {low!r} and {high!r}")
        return "step", {"step": step_table.hardtanh(low, high)}

    return read


def _gelu_function(reader: Any, call: CallArguments):
    approximate = call.bind(approximate="none")["approximate"]
    if approximate not in ("none", "tanh"):
        call.refuse(f"knows the forms 'none' and 'tanh', got approximate={approximate!r}")
    return "step", {"step": step_table.gelu(approximate)}


def _binary(by_number: Callable, by_vector: Callable, reverse: bool = False) -> Callable:
    """Reader of tensor (op) operand; the makers take (operand, True where the tensor is on the
    right).
    """

    def read(reader: Any, call: CallArguments):
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


def _subtract_number(value: float, swapped: bool) -> step_table.Step:
    return step_table.subtract_from(value) if swapped else step_table.add(-value)


def _subtract_vector(index: int, swapped: bool) -> step_table.Step:
    return step_table.add_vector(index, -1, 1) if swapped else step_table.add_vector(index, 1, -1)


_ADD = _binary(
    lambda value, _: step_table.add(value), lambda index, _: step_table.add_vector(index)
)
_SUBTRACT = _binary(_subtract_number, _subtract_vector)
_MULTIPLY = _binary(
    lambda value, _: step_table.multiply(value), lambda index, _: step_table.multiply_vector(index)
)
_DIVIDE = _binary(
    lambda value, swapped: None if swapped else step_table.divide(value),
    lambda index, swapped: None if swapped else step_table.divide_vector(index),
)
_RELU = _step_function(step_table.relu)
_TANH = _step_function(step_table.tanh)
_SIGMOID = _step_function(step_table.sigmoid)
_CLAMP = _bounded(step_table.clamp, min=None, max=None)
_CLAMP_MIN = _step_function(lambda low: step_table.clamp(low, None), "min")
_CLAMP_MAX = _step_function(lambda high: step_table.clamp(None, high), "max")
_NEGATE = _step_function(lambda: step_table.multiply(-1))

METHODS: dict[str, Callable] = {
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
FUNCTIONS: dict[Any, Callable] = {
    getattr(torch, name + suffix): reader
    for name, reader in METHODS.items()
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
    F.relu: _step_function(step_table.relu, inplace=True),
    F.relu_: _RELU,
    F.relu6: _step_function(lambda: step_table.hardtanh(0.0, 6.0), inplace=True),
    F.gelu: _gelu_function,
    F.tanh: _TANH,
    F.sigmoid: _SIGMOID,
    F.hardtanh: _hardtanh_function(inplace=True),
    F.hardtanh_: _hardtanh_function(inplace=False),
    F.conv_transpose2d: _conv_function,
    F.group_norm: _group_norm_function,
    torch.group_norm: _group_norm_function,
    F.max_pool2d: _max_pool_function,
    torch.max_pool2d: _max_pool_function,
}
# Attributes that decide what a module does and that the kernels do not read at the call.
BAKED: dict[type, tuple[str, ...]] = {
    nn.ConvTranspose2d: ("padding_mode",),
    nn.MaxPool2d: ("return_indices",),
    nn.GELU: ("approximate",),
    nn.Hardtanh: ("min_val", "max_val"),
    nn.ReLU6: ("min_val", "max_val"),
}
MODULES: dict[type, Callable] = {
    nn.ConvTranspose2d: _conv_module,
    nn.BatchNorm2d: _batch_norm_module,
    nn.GroupNorm: _group_norm_module,
    nn.MaxPool2d: _max_pool_module,
    nn.ReLU: _step_module(lambda _: step_table.relu()),
    nn.ReLU6: _step_module(lambda module: step_table.hardtanh(module.min_val, module.max_val)),
    nn.GELU: _step_module(lambda module: step_table.gelu(module.approximate)),
    nn.Tanh: _step_module(lambda _: step_table.tanh()),
    nn.Sigmoid: _step_module(lambda _: step_table.sigmoid()),
    nn.Hardtanh: _step_module(lambda module: step_table.hardtanh(module.min_val, module.max_val)),
    nn.Identity: lambda reader, subject: None,
}
