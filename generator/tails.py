"""Tails: operators that no kernel of a convolution takes along and that kernels of ours may run by
themselves, with the element-wise steps behind them, over a tensor in memory.
"""

from torch import nn

from generator.front.layers import layer_class
from generator.ir import Node
from generator.reference import Reference

# By class of a layer, its name in TailKind (kernels_src/tail_call.h).
_LAYERS = {
    nn.LayerNorm: "kLayerNorm",
    nn.Softmax: "kSoftmax",
    nn.AvgPool3d: "kAveragePool",
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
        over_channels = node.args[1:] in ((1,), (1 - len(shape),)) and not node.kwargs
        return "kSoftmax" if over_channels else None
    if node.op != "layer" or len(node.args) != 1 or node.kwargs:
        return None
    module = reference.model.get_submodule(node.path)
    kind = _LAYERS.get(layer_class(module))
    if kind == "kSoftmax" and module.dim not in (1, 1 - len(shape)):
        return None
    return None if kind in _POOLS and len(shape) != 5 else kind
