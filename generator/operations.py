"""Readers of single operations: from a module or call of the reference to a link of the chain.

A reader takes the ChainReader and its subject, (module, expression) for a module or CallArguments
for a call, and returns (kind, values) of an Operation, or None for an operation without effect.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from generator import ops
from generator.call_arguments import CallArguments
from generator.ops.record import (
    REQUIRED,
    ChannelVector,
    Number,
    call_arguments,
    functions_of,
)
from generator.step_table import Step


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


def _made(call: CallArguments, make: Callable[..., Step], *args: Any, **kwargs: Any):
    """The step, or a refusal with the call's place and name."""
    try:
        return "step", {"step": make(*args, **kwargs)}
    except ValueError as error:
        call.refuse(str(error))


def _unary_call(record: ops.Unary, function: Callable | None = None) -> Callable:
    """Reader of a call of `function`, or of the record's methods."""

    def read(reader: Any, call: CallArguments):
        names = call_arguments(record, function)
        required = [name for name, default in names.items() if default is REQUIRED]
        defaults = {name: default for name, default in names.items() if name not in required}
        arguments = call.bind(*required, **defaults)
        arguments.pop("inplace", None)
        return _made(call, record.step, **arguments)

    return read


def _unary_module(record: ops.Unary) -> Callable:
    return lambda reader, subject: ("step", {"step": record.step_of_module(subject[0])})


def _binary_call(record: ops.Binary) -> Callable:
    """Reader of tensor (op) operand."""

    def read(reader: Any, call: CallArguments):
        other, swapped = call.binary_operand()
        if isinstance(other, fx.Node):
            return _made(
                call, record.step, ChannelVector(reader.channel_vector(call, other)), swapped
            )
        if not record.takes_numbers:
            call.refuse(f"needs a tensor for the other operand, got {other!r}")
        return _made(call, record.step, Number(other), swapped)

    return read


def _call(record: ops.Unary | ops.Binary, function: Callable | None = None) -> Callable:
    if isinstance(record, ops.Binary):
        return _binary_call(record)
    return _unary_call(record, function)


METHODS: dict[str, Callable] = {
    name: _call(record)
    for record in ops.RECORDS
    for name in record.methods
    if hasattr(torch.Tensor, name)
}
FUNCTIONS: dict[Any, Callable] = {
    function: _call(record, function if own_signature else None)
    for record in ops.RECORDS
    for function, own_signature in functions_of(record).items()
} | {
    F.conv_transpose2d: _conv_function,
    F.group_norm: _group_norm_function,
    torch.group_norm: _group_norm_function,
    F.max_pool2d: _max_pool_function,
    torch.max_pool2d: _max_pool_function,
}
_MODULE_RECORDS = [record for record in ops.UNARY if record.module is not None]
# Attributes that decide what a module does and that the kernels do not read at the call.
BAKED: dict[type, tuple[str, ...]] = {
    nn.ConvTranspose2d: ("padding_mode",),
    nn.MaxPool2d: ("return_indices",),
} | {record.module: record.attributes for record in _MODULE_RECORDS if record.attributes}
MODULES: dict[type, Callable] = {
    nn.ConvTranspose2d: _conv_module,
    nn.BatchNorm2d: _batch_norm_module,
    nn.GroupNorm: _group_norm_module,
    nn.MaxPool2d: _max_pool_module,
    nn.Identity: lambda reader, subject: None,
} | {record.module: _unary_module(record) for record in _MODULE_RECORDS}
