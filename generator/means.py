"""Means over positions of a convolution's outputs, whose gradient is expanded
(generator/runtime/mean.py).
"""

from generator.fuse import Fused, Plan
from generator.ir import Node


def is_mean(node: Node, plan: Plan) -> bool:
    """Does it take a mean over positions of what a call of ours makes, and over nothing else?"""
    if node.op != "aten.mean.dim" or node.kwargs or len(node.args) < 2:
        return False
    before, dims = node.args[:2]
    if not any(isinstance(item, Fused) and item.result is before for item in plan.items):
        return False
    if not isinstance(dims, list | tuple) or not all(type(dim) is int for dim in dims):
        return False
    rank = len(before.shape)
    return rank in (4, 5) and len(dims) > 0 and all(dim % rank >= 2 for dim in dims)
