"""The arguments of one traced call, bound to names and checked."""

from typing import Any

from torch import fx, nn

from generator.errors import Refusal
from generator.ops.record import require_number
from generator.reference import Reference


def attribute_path(model: nn.Module, target: str) -> str:
    """`self.<target>` as an expression: block.0.weight becomes self.block[0].weight."""
    expression, owner = "self", model
    for part in target.split("."):
        indexed = part.isdigit() and hasattr(owner, "__getitem__")
        expression += f"[{part}]" if indexed else f".{part}"
        owner = getattr(owner, part)
    return expression


def module_path(target: str) -> str:
    """`self.<target>` of a module as an expression that takes a tenth of what nn.Module's
    attributes take; None where there is no such module any more.
    """
    return "self" + "".join(f'._modules.get("{part}")' for part in target.split(".") if target)


class CallArguments:
    """A call_function or call_method node whose first tensor argument is the flowing value."""

    def __init__(self, reference: Reference, node: fx.Node, flow: fx.Node, label: str):
        self.reference, self.node, self.flow, self.label = reference, node, flow, label

    def refuse(self, why: str) -> None:
        line = self.node.meta.get("line", "?")
        raise Refusal(f"{self.reference.path}:{line}: {self.label} {why}")

    def bind(self, *required: str, **defaults: Any) -> dict[str, Any]:
        """Arguments after the tensor, by name, in this order; refuses unknown, missing and surplus
        ones.
        """
        kwargs = dict(self.node.kwargs)
        positional = list(self.node.args)
        first = positional.pop(0) if positional else kwargs.pop("input", None)
        if first is not self.flow:
            self.refuse("must have the flowing tensor as its first argument")
        names = [*required, *defaults]
        if len(positional) > len(names):
            self.refuse(f"has too many arguments: {tuple(positional)}")
        given = dict(zip(names, positional, strict=False))
        for name, value in kwargs.items():
            if name not in names or name in given:
                self.refuse(f"has the argument {name}={value!r}, which the generator does not know")
            given[name] = value
        missing = [name for name in required if name not in given]
        if missing:
            self.refuse(f"lacks the argument {missing[0]}")
        return {name: given.get(name, defaults.get(name)) for name in names}

    def binary_operand(self) -> tuple[Any, bool]:
        """(the other operand, True where the flowing tensor is on the right)"""
        kwargs = dict(self.node.kwargs)
        positional = list(self.node.args)
        if kwargs.pop("alpha", 1) != 1 or kwargs.pop("rounding_mode", None) is not None:
            self.refuse("with alpha or rounding_mode is not an operation that the generator knows")
        for name in ("input", "other"):
            if name in kwargs:
                positional.append(kwargs.pop(name))
        if kwargs or len(positional) != 2:
            self.refuse("must have two operands and no other argument")
        left, right = positional
        if (left is self.flow) == (right is self.flow):
            self.refuse("must have the flowing tensor as one of its operands")
        return (right, False) if left is self.flow else (left, True)

    def number(self, value: Any, name: str) -> float:
        try:
            return require_number(value, name)
        except ValueError as error:
            self.refuse(str(error))

    def integer(self, value: Any, name: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(f"needs an int for {name}, got {value!r}")
        return value

    def pair(self, value: Any, name: str) -> str:
        """An int or a pair of ints, as the text of a pair."""
        pair = (value, value) if isinstance(value, int) else value
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            self.refuse(f"needs an int or a pair for {name}, got {value!r}")
        return str(tuple(self.integer(item, name) for item in pair))

    def attribute(self, value: Any, name: str) -> tuple[str, tuple]:
        """(expression, shape) of a parameter or buffer of the model."""
        if not isinstance(value, fx.Node) or value.op != "get_attr":
            self.refuse(f"needs a parameter or buffer of the model for {name}, got {value!r}")
        tensor: Any = self.reference.model
        for part in str(value.target).split("."):
            tensor = getattr(tensor, part)
        return attribute_path(self.reference.model, str(value.target)), tuple(tensor.shape)
