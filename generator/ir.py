"""The graph between reading a reference and writing its solution: values and nodes, never text."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any


@dataclasses.dataclass(eq=False)
class Value:
    """A tensor, a number or a tuple of the graph.

    `kind`: input, parameter, buffer, attribute (a tensor of a module that is neither), global,
    literal (of a tensor that forward itself constructs), result (of a node). `source`: for an input
    its place among forward's arguments (Place), for parameter, buffer and attribute the path in the
    model, for a global its name, for a literal the tensor. `shape` holds ints and, as text, what
    may be any size; None where the value is no tensor.
    """

    kind: str
    source: Any = None
    shape: tuple | None = None
    dtype: Any = None


@dataclasses.dataclass(frozen=True)
class Place:
    """An argument of forward, or what is found in it by these keys."""

    argument: str
    keys: tuple = ()


@dataclasses.dataclass(frozen=True)
class InputDtype:
    """In the place of a dtype: that of forward's inputs."""


@dataclasses.dataclass(frozen=True)
class Region:
    """A stretch of forward under a switch: `kind` grad (settings: whether it is on) or autocast
    (settings: device type, dtype, whether it is on, whether casts are cached).
    """

    kind: str
    settings: tuple


@dataclasses.dataclass(eq=False)
class Node:
    """One operator: an ATen overload (aten.relu.default), a call of one layer of torch.nn
    ("layer"), or arithmetic of sizes (python.mul).

    `path`, `layer` and `inner`: of a layer its path in the model, the name of its class in torch.nn
    and the overloads that it runs. `regions`:
    the switches around it, the outermost first.
    """

    op: str
    args: tuple
    kwargs: dict[str, Any]
    result: Value
    line: int | None = None
    path: str | None = None
    layer: str | None = None
    inner: tuple["Node", ...] = ()
    regions: tuple[Region, ...] = ()

    def named(self, names: tuple[str, ...]) -> dict[str, Any]:
        """The arguments by name: `names` are those of the ones that have places."""
        return dict(zip(names, self.args, strict=False)) | self.kwargs

    def operands(self) -> Iterator[Value]:
        return leaves((self.args, self.kwargs))


@dataclasses.dataclass
class Graph:
    """Nodes in the order in which they run; `outputs` is what forward returns: values inside
    tuples, lists and dicts.
    """

    nodes: list[Node]
    outputs: Any

    def users(self) -> dict[Value, list[Node | None]]:
        """Every use of every value, once for each place; None for the return."""
        found: dict[Value, list[Node | None]] = {}
        for node in self.nodes:
            for value in node.operands():
                found.setdefault(value, []).append(node)
        for value in leaves(self.outputs):
            found.setdefault(value, []).append(None)
        return found


def leaves(nested: Any) -> Iterator[Value]:
    """The values inside tuples, lists, dicts and slices."""
    if isinstance(nested, Value):
        yield nested
    elif isinstance(nested, dict):
        for item in nested.values():
            yield from leaves(item)
    elif isinstance(nested, tuple | list):
        for item in nested:
            yield from leaves(item)
    elif isinstance(nested, slice):
        yield from leaves((nested.start, nested.stop, nested.step))


def replaced(nested: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure with `change` of every leaf."""
    if isinstance(nested, dict):
        return {key: replaced(item, change) for key, item in nested.items()}
    if isinstance(nested, tuple | list):
        items = [replaced(item, change) for item in nested]
        if type(nested).__module__ == "torch.return_types":
            return type(nested)(items)
        if hasattr(nested, "_fields"):
            return type(nested)(*items)
        return tuple(items) if isinstance(nested, tuple) else items
    if isinstance(nested, slice):
        return slice(*(replaced(item, change) for item in (nested.start, nested.stop, nested.step)))
    return change(nested)
