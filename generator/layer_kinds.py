"""Which nodes are layers that libraries of ours may serve beside the convolution's kernels."""

from torch import nn

from generator.front.layers import layer_class
from generator.ir import Node
from generator.reference import Reference


def is_ordinary_conv(reference: Reference, node: Node) -> bool:
    """Is it an nn.Conv2d that generator/runtime/ordinary_conv.py may serve?"""
    return _is_layer(reference, node, nn.Conv2d)


def is_batch_norm(reference: Reference, node: Node) -> bool:
    """Is it a BatchNorm that generator/runtime/large_batch_norm.py may serve?"""
    kinds = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d
    return any(_is_layer(reference, node, kind) for kind in kinds)


def is_group_norm(reference: Reference, node: Node) -> bool:
    """Is it a GroupNorm or InstanceNorm that generator/runtime/large_group_norm.py may serve?"""
    kinds = nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d
    return any(_is_layer(reference, node, kind) for kind in kinds)


def is_softmax(reference: Reference, node: Node) -> bool:
    """Is it an nn.Softmax, which large_batch_norm.py may take along?"""
    return _is_layer(reference, node, nn.Softmax)


def _is_layer(reference: Reference, node: Node, kind: type[nn.Module]) -> bool:
    if node.op != "layer":
        return False
    return layer_class(reference.model.get_submodule(node.path)) is kind
