"""Tails: operators that no kernel of a convolution takes along and that kernels of ours may run by
themselves, with the element-wise steps behind them, over a tensor in memory.
"""

from typing import Any

from torch import nn

from generator.front.layers import layer_class
from generator.ir import Graph, Node, Value
from generator.reads import writes
from generator.reference import Reference

# By class of a layer, its name in TailKind (kernels_src/tail_call.h).
_LAYERS = {
    nn.LayerNorm: "kLayerNorm",
    nn.Softmax: "kSoftmax",
    nn.AvgPool2d: "kAveragePool",
    nn.AvgPool3d: "kAveragePool",
    nn.MaxPool2d: "kMaxPool",
    nn.MaxPool3d: "kMaxPool",
    nn.GroupNorm: "kGroupNorm",
    nn.InstanceNorm1d: "kGroupNorm",
    nn.InstanceNorm2d: "kGroupNorm",
    nn.InstanceNorm3d: "kGroupNorm",
    nn.BatchNorm1d: "kBatchNorm",
    nn.BatchNorm2d: "kBatchNorm",
    nn.BatchNorm3d: "kBatchNorm",
}
CENTRED = "kCentredBatchNorm"  # BatchNorm with what centring() finds behind it
# Steps of these have no operands, and but for CENTRED there are some: by themselves norms have
# libraries of their own.
NORM_TAILS = ("kGroupNorm", "kBatchNorm", CENTRED)
_DIMENSIONS = {
    nn.AvgPool2d: 4,
    nn.AvgPool3d: 5,
    nn.MaxPool2d: 4,
    nn.MaxPool3d: 5,
    nn.InstanceNorm1d: 3,
    nn.InstanceNorm2d: 4,
    nn.InstanceNorm3d: 5,
    nn.BatchNorm1d: 3,
    nn.BatchNorm2d: 4,
    nn.BatchNorm3d: 5,
}


def tail_kind(reference: Reference, node: Node) -> str | None:
    """The kind of the tail that `node` may begin, or None. What depends on numbers that may change
    is asked at run time (generator/runtime/large_tails.py).
    """
    shape = node.result.shape
    if shape is None or len(shape) < 3 or not node.result.dtype.is_floating_point:
        return None
    if node.op == "aten.softmax.int":
        return _softmax_kind(node.args[1], len(shape)) if _is_plain_call(node, 2) else None
    if node.op != "layer" or len(node.args) != 1 or node.kwargs:
        return None
    module = reference.model.get_submodule(node.path)
    kind = _LAYERS.get(layer_class(module))
    if kind == "kSoftmax":
        return _softmax_kind(module.dim, len(shape))
    return kind if _DIMENSIONS.get(layer_class(module), len(shape)) == len(shape) else None


def centring(norm: Node, graph: Graph, users: dict[Value, list[Node | None]]) -> list[Node]:
    """The mean over the positions of each channel of a sample and its subtraction, where these two
    alone read what `norm` makes, or nothing.
    """
    value, readers = norm.result, users.get(norm.result, [])
    means = [node for node in readers if node is not None and node.op == "aten.mean.dim"]
    if len(readers) != 2 or len(means) != 1:
        return []
    (mean,) = means
    given, last = mean.named(("self", "dim", "keepdim")), users.get(mean.result, [])
    dims = given.pop("dim", None)
    if given != {"self": value, "keepdim": True} or not _are_positions(dims, len(value.shape)):
        return []
    difference = last[0] if len(last) == 1 and last[0] in readers else None
    if difference is None or difference.op != "aten.sub.Tensor":
        return []
    if difference.args != (value, mean.result) or difference.kwargs.get("alpha", 1) != 1:
        return []
    places = [graph.nodes.index(node) for node in (norm, difference)]
    written = any(map(writes, graph.nodes[slice(*places)]))
    alike = norm.regions == mean.regions == difference.regions
    return [mean, difference] if alike and not written else []


def keeps_channels(node: Node, before: Value) -> bool:
    """Does it view `before` in another shape of as many samples and channels? To a tail's steps
    that is the same.
    """
    if node.op not in ("aten.view.default", "aten.reshape.default"):
        return False
    shape, given = node.result.shape, before.shape
    return node.args[0] is before and len(shape) > 2 and shape[:2] == given[:2]


def may_read(entry: str, operands: Any, whole: Any) -> bool:
    """May the steps behind it, a tail's kind or "conv", have these operands, of which the `whole`
    have the output's shape?
    """
    return entry == "conv" or not (whole or (operands and entry in NORM_TAILS))


def _softmax_kind(dim: int | None, dimensions: int) -> str | None:
    """Over channels, or over what is behind them where that is one dimension."""
    if dim in (1, 1 - dimensions):
        return "kSoftmax"
    return "kPlaneSoftmax" if dimensions == 3 and dim in (2, -1) else None


def _are_positions(dims: Any, dimensions: int) -> bool:
    """Each of those behind batch and channels, once?"""
    if not isinstance(dims, (list, tuple)) or not all(isinstance(dim, int) for dim in dims):
        return False
    return sorted(dim % dimensions for dim in dims) == [*range(2, dimensions)]


def _is_plain_call(node: Node, arguments: int) -> bool:
    return len(node.args) == arguments and not node.kwargs
