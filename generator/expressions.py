"""Values and arguments of the graph as Python source of ModelNew.forward."""

import re
from typing import Any

import torch
from torch import nn

from generator.ir import InputDtype, Value
from generator.reference import Reference
from generator.step_table import literal

_OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "floordiv": "//", "truediv": "/", "mod": "%", "pow": "**",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and_": "&", "or_": "|",
    "pow_by_natural": "**", "float_pow": "**", "int_floordiv": "//", "int_truediv": "/",
}  # fmt: skip
_FUNCTIONS = {
    "sym_float": "float", "sym_int": "int", "sym_max": "max", "sym_min": "min", "sym_not": "not ",
    "abs": "abs", "neg": "-", "sym_sum": "sum", "trunc": "int", "round": "round",
}  # fmt: skip


def attribute_path(model: nn.Module, target: str) -> str:
    """`self.<target>` as an expression: block.0.weight becomes self.block[0].weight."""
    expression, owner = "self", model
    for part in target.split(".") if target else ():
        if part.isdigit() and hasattr(type(owner), "__getitem__"):
            expression += f"[{part}]"
        elif part.isidentifier():
            expression += f".{part}"
        else:
            expression += f"[{part!r}]"  # a key of a ModuleDict
        owner = getattr(owner, part)
    return expression


def module_path(target: str) -> str:
    """`self.<target>` of a module as an expression that takes a tenth of what nn.Module's
    attributes take; None where there is no such module any more.
    """
    return "self" + "".join(f'._modules.get("{part}")' for part in target.split(".") if target)


def place_text(argument: str, keys: tuple) -> str:
    """An argument of forward, or what is found in it."""
    return argument + "".join(f"[{key!r}]" for key in keys)


class Expressions:
    """Text of the values of one forward; `names` are those of results, `device` and `dtype` texts
    that give those of inputs.
    """

    def __init__(self, reference: Reference, device: str | None, dtype: str | None = None):
        self._reference = reference
        self._dtype = dtype or "torch.float32"
        self.names: dict[Value, str] = {}
        # What is traced on the CPU because the trace is there, not because forward asks for it.
        self._device = None if re.search(r"\bcpu\b", reference.source) else device

    def value(self, value: Value) -> str:
        """A value wherever it comes from."""
        source = value.source
        if value.kind == "input":
            return place_text(source.argument, source.keys)
        if value.kind in ("parameter", "buffer"):
            return attribute_path(self._reference.model, source)
        if value.kind == "attribute":
            path, name, keys = source
            return place_text(f"{attribute_path(self._reference.model, path)}.{name}", keys)
        if value.kind == "global":
            return place_text(*source)
        if value.kind == "literal":
            return self._tensor(source)
        return self.names[value]

    def argument(self, value: Any) -> str:
        """Any argument of an ATen call."""
        if isinstance(value, Value):
            return self.value(value)
        if isinstance(value, list | tuple):
            items = [self.argument(item) for item in value]
            if type(value).__module__ == "torch.return_types":
                return f"torch.return_types.{type(value).__name__}(({', '.join(items)}))"
            if hasattr(value, "_fields"):
                return f"{type(value).__name__}({', '.join(items)})"
            if isinstance(value, list):
                return f"[{', '.join(items)}]"
            return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
        if isinstance(value, dict):
            pairs = (f"{key!r}: {self.argument(item)}" for key, item in value.items())
            return f"{{{', '.join(pairs)}}}"
        if isinstance(value, torch.device):
            if value.type == "cpu" and self._device is not None:
                return self._device
            return f'torch.device("{value}")'
        if isinstance(value, InputDtype):
            return self._dtype
        if isinstance(value, slice):
            return f"slice({', '.join(map(self.argument, (value.start, value.stop, value.step)))})"
        return literal(value)

    def device_type(self, kind: str) -> str:
        """The text of torch.autocast's first argument."""
        if kind == "cpu" and self._device is not None:
            return f"{self._device}.type"
        return repr(kind)

    def _tensor(self, tensor: torch.Tensor) -> str:
        made = f"torch.tensor({self.argument(tensor.tolist())}, dtype={tensor.dtype}"
        if tensor.dim() and self._device is not None:
            made += f", device={self._device}"
        return f"{made})"

    def call(self, op: str, args: tuple, kwargs: dict) -> str:
        """One node that stays PyTorch's, but for layers."""
        kind, _, name = op.partition(".")
        if op.startswith("aten.sym_"):
            method = name.removeprefix("sym_").partition(".")[0]
            return f"{self.value(args[0])}.{method}({', '.join(map(self.argument, args[1:]))})"
        given = [self.argument(value) for value in args]
        if kind == "python":
            return self._python(name, given)
        if kind != "aten":
            namespace, _, rest = op.partition("::")
            return f"torch.ops.{rest if rest.startswith(namespace) else op}({', '.join(given)})"
        packet, _, overload = name.partition(".")
        schema = getattr(getattr(torch.ops.aten, packet), overload)._schema
        for index, argument in enumerate(schema.arguments[: len(given)]):
            if argument.name == "cudnn_enabled":
                given[index] = "torch.backends.cudnn.enabled"
        given += [f"{key}={self.argument(value)}" for key, value in kwargs.items()]
        return f"torch.ops.{op}({', '.join(given)})"

    @staticmethod
    def _python(name: str, given: list[str]) -> str:
        if name == "getitem":
            return f"{given[0]}[{given[1]}]"
        if name in _OPERATORS and len(given) == 2:
            return f"({given[0]} {_OPERATORS[name]} {given[1]})"
        if name in _FUNCTIONS:
            return f"{_FUNCTIONS[name]}({', '.join(given)})"
        return f"torch.{name}({', '.join(given)})"
