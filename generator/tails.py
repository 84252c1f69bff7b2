"""Tails: operators that no kernel of a convolution takes along and that kernels of ours may run by
themselves, with the element-wise steps behind them, over a tensor in memory.
"""

from torch import nn

from generator.front.layers import layer_class
from generator.ir import Node, Value
from generator.reference import Reference

# By class of a layer, its name in TailKind (kernels_src/tail_call.h).
_LAYERS = {
    nn.LayerNorm: "kLayerNorm",
    nn.Softmax: "kSoftmax",
    nn.AvgPool2d: "kAveragePool",
    nn.AvgPool3d: "kAveragePool",
    nn.MaxPool2d: "kMaxPool",
    nn.MaxPool3d: "kMaxPool",
}
_POOLS = ("kAveragePool", "kMaxPool")


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
    dimensions = 4 if layer_class(module) in (nn.AvgPool2d, nn.MaxPool2d) else 5
    return None if kind in _POOLS and len(shape) != dimensions else kind


def keeps_channels(node: Node, before: Value) -> bool:
    """Does it view `before` in another shape of as many samples and channels? To a tail's steps
    that is the same.
    """
    if node.op not in ("aten.view.default", "aten.reshape.default"):
        return False
    shape, given = node.result.shape, before.shape
    return node.args[0] is before and len(shape) > 2 and shape[:2] == given[:2]


def _softmax_kind(dim: int | None, dimensions: int) -> str | None:
    """Over channels, or over what is behind them where that is one dimension."""
    if dim in (1, 1 - dimensions):
        return "kSoftmax"
    return "kPlaneSoftmax" if dimensions == 3 and dim in (2, -1) else None


def _is_plain_call(node: Node, arguments: int) -> bool:
    return len(node.args) == arguments and not node.kwargs
