"""Which dtypes of a graph are those of forward's inputs: of two exports, in fp32 and in fp64, they
are what differs.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.utils import _pytree

from generator.ir import InputDtype


def follow_inputs(
    program: ExportedProgram, model: nn.Module, inputs: list, export: Callable
) -> None:
    """Has the program name InputDtype in the place of such dtypes. export(model, inputs) makes a
    program. Where forward takes another way in fp64, or cannot, they stay what they are.
    """
    named = [node for node in _nodes(program.graph_module) if _has_dtype(node)]
    if not named:
        return
    with contextlib.suppress(Exception):
        doubled = _pytree.tree_map_only(torch.Tensor, _in_double, list(inputs))
        other = export(copy.deepcopy(model).double(), doubled)
        pairs = list(zip(_nodes(program.graph_module), _nodes(other.graph_module), strict=True))
        if all(str(a.target) == str(b.target) for a, b in pairs):
            for ours, theirs in pairs:
                if ours in named:
                    ours.args = _followed(ours.args, theirs.args)
                    ours.kwargs = _followed(dict(ours.kwargs), dict(theirs.kwargs))


def _nodes(module: fx.GraphModule) -> Iterator[fx.Node]:
    """Of a graph, and of those within."""
    for node in module.graph.nodes:
        yield node
        if node.op == "get_attr" and isinstance(
            inner := getattr(module, node.target, None), fx.GraphModule
        ):
            yield from _nodes(inner)


def _has_dtype(node: fx.Node) -> bool:
    return torch.float32 in _pytree.tree_leaves((node.args, dict(node.kwargs)))


def _in_double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.dtype == torch.float32 else tensor


def _followed(ours: Any, theirs: Any) -> Any:
    if isinstance(ours, dict):
        return {key: _followed(value, theirs[key]) for key, value in ours.items()}
    if isinstance(ours, list | tuple):
        return type(ours)(_followed(*pair) for pair in zip(ours, theirs, strict=True))
    return InputDtype() if (ours, theirs) == (torch.float32, torch.float64) else ours
