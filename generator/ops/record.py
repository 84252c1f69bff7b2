"""Records of element-wise operators: all forms that PyTorch has of one, and the step it becomes.

Argument names, their order and defaults are read from PyTorch's own signatures.
"""

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from generator.step_table import Step, literal, number

_MOST = int(sys.float_info.max)
REQUIRED = inspect.Parameter.empty


def require_number(value: Any, name: str) -> float:
    """`value` if a kernel can be compiled with it; else ValueError."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if not known or value != value or (isinstance(value, int) and abs(value) > _MOST):
        raise ValueError(f"needs a number for {name}, got {value!r}")
    return value


@dataclasses.dataclass(frozen=True)
class Unary:
    """An operator of one tensor and numbers. `make(**arguments)` gives its step, or raises
    ValueError with what the operator lacks.
    """

    name: str
    make: Callable[..., Step]
    overloads: tuple[str, ...]  # of torch.ops.aten; those in place are derived
    methods: tuple[str, ...] = ()  # of torch.Tensor, and of torch where it has them
    functional: tuple[str, ...] = ()  # of torch.nn.functional
    operators: tuple[Callable, ...] = ()  # of Python's module `operator`
    module: type[nn.Module] | None = None
    attributes: tuple[str, ...] = ()  # of the module: make's arguments, in its order

    @property
    def all_overloads(self) -> tuple[str, ...]:
        return with_inplace(self.overloads)

    def step(self, **arguments: Any) -> Step:
        """Of arguments by PyTorch's names. Raises ValueError for what cannot be compiled in."""
        parameters = inspect.signature(self.make).parameters
        for name, value in arguments.items():
            default = parameters[name].default
            words = isinstance(default, str)
            if not words and not (value is None and default is None):
                require_number(value, name)
        return self.make(**arguments)

    def step_of_module(self, module: nn.Module) -> Step:
        return self.make(*(getattr(module, name) for name in self.attributes))

    def step_of_overload(
        self, target: torch._ops.OpOverload, args: tuple, kwargs: dict[str, Any]
    ) -> Step:
        """Of an ATen call; `args` without the tensor. Raises ValueError as `step` does."""
        names = schema_arguments(str(target).removeprefix("aten."))
        given = dict(zip(names, args, strict=False)) | kwargs
        return self.step(**{n: given.get(n, d) for n, d in names.items()})


@dataclasses.dataclass(frozen=True)
class Number:
    """A right or left operand that is compiled in."""

    value: float

    @property
    def device(self) -> str:
        return number(self.value)

    @property
    def python(self) -> str:
        return literal(self.value)

    def take(self, gradient: str) -> str:
        """C++ that keeps its gradient: a number has none."""
        return ""


@dataclasses.dataclass(frozen=True)
class ChannelVector:
    """The operand with this index among those with one value for each output channel."""

    index: int

    @property
    def device(self) -> str:
        return f"static_cast<Acc>(args.channel_vectors[{self.index}][channel])"

    @property
    def python(self) -> str:
        return f"_Channel({self.index})"

    def take(self, gradient: str) -> str:
        """C++ that keeps its gradient, as Step.gradient has it."""
        return f"sums[{self.index}] += {gradient};"


@dataclasses.dataclass(frozen=True)
class WholeTensor:
    """The operand with this index, which has the output's shape: a value of its own for each."""

    index: int

    @property
    def device(self) -> str:
        return f"static_cast<Acc>(tensors[{self.index}][at])"

    @property
    def python(self) -> str:
        return f"_Whole({self.index})"

    def take(self, gradient: str) -> str:
        """C++ that keeps its gradient, as Step.gradient has it."""
        return f"taken[{self.index}] = {gradient};"


@dataclasses.dataclass(frozen=True)
class Earlier:
    """The value of this number among those of one step of branches (step_table.branches)."""

    index: int

    @property
    def device(self) -> str:
        return f"w{self.index}"

    @property
    def python(self) -> str:
        return f"_Earlier({self.index})"

    def take(self, gradient: str) -> str:
        """C++ that adds to its gradient."""
        return f"e{self.index} += {gradient};"


Operand = Number | ChannelVector | WholeTensor | Earlier


@dataclasses.dataclass(frozen=True)
class Binary:
    """An operator of the flowing value and an operand. `make(operand, swapped)` gives its step;
    swapped: the flowing value is the second of the two.
    """

    name: str
    make: Callable[[Operand, bool], Step]
    overloads: tuple[str, ...]
    reversed_overloads: tuple[str, ...] = ()  # the first argument is the second operand
    methods: tuple[str, ...] = ()
    operators: tuple[Callable, ...] = ()
    takes_numbers: bool = True  # PyTorch accepts a Python number for the operand

    @property
    def all_overloads(self) -> tuple[str, ...]:
        return with_inplace(self.overloads) + self.reversed_overloads

    def step(self, operand: Operand, swapped: bool) -> Step:
        """Raises ValueError for a number that cannot be compiled in."""
        if isinstance(operand, Number):
            require_number(operand.value, "the operand")
        return self.make(operand, swapped)


def with_inplace(overloads: tuple[str, ...]) -> tuple[str, ...]:
    """The overloads, and of those that PyTorch has in place, too, these."""
    names = list(overloads)
    for overload in overloads:
        packet, _, kind = overload.partition(".")
        inplace = getattr(torch.ops.aten, f"{packet}_", None)
        if inplace is not None and kind in inplace.overloads():
            names.append(f"{packet}_.{kind}")
    return tuple(names)


@functools.cache
def schema_arguments(overload: str) -> dict[str, Any]:
    """Names and defaults (REQUIRED where there is none) behind the tensor of an ATen overload."""
    packet, _, kind = overload.partition(".")
    schema = getattr(getattr(torch.ops.aten, packet), kind)._schema
    return {
        argument.name: argument.default_value if argument.has_default_value() else REQUIRED
        for argument in schema.arguments[1:]
    }


@functools.cache
def call_arguments(record: Unary, function: Callable | None = None) -> dict[str, Any]:
    """Names and defaults behind the tensor of a function of torch.nn.functional, or (None) of the
    record's methods; `inplace` among them, where the function has it.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())[1:] if function else None
    except ValueError:  # a function in C++: its schema is ATen's
        parameters = None
    if parameters is None:
        return schema_arguments(record.overloads[0])
    return {parameter.name: parameter.default for parameter in parameters}


def functions_of(record: Unary | Binary) -> dict[Callable, bool]:
    """The record's functions of torch, `operator` and torch.nn.functional, those in place too;
    True for the last, whose signatures are their own.
    """
    found: dict[Callable, bool] = {function: False for function in record.operators}
    for owner, names in ((torch, record.methods), (F, getattr(record, "functional", ()))):
        for name in (name + suffix for name in names for suffix in ("", "_")):
            function = getattr(owner, name, None)
            if function is not None and function not in found:
                found[function] = owner is F
    return found
