"""Volumes of few input channels, whose layers' numbers are compiled into a kernel of their own."""

import dataclasses
from collections.abc import Iterable

from generator.calls import given_to
from generator.fuse import Fused

_IN_PLACE = 8  # so many channels other kernels read in place: kDepthChannels in depth_walk.h
_NAMES = ("stride", "padding", "dilation")


@dataclasses.dataclass(frozen=True)
class FewChannels:
    """A layer: its input channels; of depth, height and width the kernel's size and the rest."""

    channels: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


def few_channels_layers(calls: Iterable[Fused]) -> list[FewChannels]:
    """What kernels_src/cuda/conv_transpose_few_channels.cuh is for among the calls, each once."""
    found = []
    for fused in calls:
        given = given_to(fused)
        channels, _, *kernel = given["weight"].shape
        axes = [
            tuple(value) if isinstance(value, list | tuple) else (value,) * 3
            for value in (kernel, *(given[name] for name in _NAMES))
        ]
        numbers = (channels, given["groups"], *(number for axis in axes for number in axis))
        if fused.dimensions != 3 or not all(isinstance(number, int) for number in numbers):
            continue
        layer = FewChannels(channels, *axes)
        if given["groups"] == 1 and channels < _IN_PLACE and layer not in found:
            found.append(layer)
    return found


def few_channels_header(layers: list[FewChannels]) -> str:
    """The text that takes the place of kernels_src/generated_few_channels.h."""
    parts = "".join(_layer(number, layer) for number, layer in enumerate(layers))
    return f"""#pragma once

namespace tconv {{

constexpr int kNumFewChannels = {len(layers)};

template <int kNumber>
struct FewChannels;
{parts}
}}  // namespace tconv
"""


def _layer(number: int, layer: FewChannels) -> str:
    axes = {"Kernel": layer.kernel, "Stride": layer.stride}
    axes |= {"Padding": layer.padding, "Dilation": layer.dilation}
    lines = "".join(
        f"  static constexpr int k{name}[3] = {{{', '.join(map(str, values))}}};\n"
        for name, values in axes.items()
    )
    return f"""
template <>
struct FewChannels<{number}> {{
  static constexpr int kChannels = {layer.channels};
{lines}}};
"""
