"""One call of our operator as source of ModelNew.forward."""

import math

from generator.expressions import Expressions, module_path
from generator.extrema import Extremum
from generator.folds import Fold
from generator.fuse import TRANSPOSED, Fused, dimensions_of, label
from generator.ir import Node, Value
from generator.reads import overload_of

METHODS = {
    "conv": (
        "One kernel walks a tap table: outputs with the same residue modulo the stride share "
        "their taps, so every "
        "phase is a dense sliding product and no multiplication by an inserted zero is done. "
        "Bias and element-wise "
        "operations are applied to the accumulator before its only store."
    ),
    "conv_group_norm": (
        "The convolution walks a tap table (outputs with the same residue modulo the stride "
        "share their taps); bias, "
        "element-wise operations and the moments that GroupNorm needs are computed while a "
        "tile is on chip, so the "
        "statistics cost no read of the output. Normalisation reads the moments and rewrites "
        "the output once."
    ),
    "conv_batch_norm_pool_group_norm": (
        "The convolution walks a tap table and gathers the moments of every channel for "
        "BatchNorm. BatchNorm is "
        "affine per channel and the activation never decreases, so max-pooling can come first "
        "(the minimum where the "
        "scale is negative): BatchNorm, activation and GroupNorm then work on the pooled "
        "image only."
    ),
}
LIFTED = {  # by dimensions of the convolution
    1: "One dimension is an image of one row.",
    3: (
        "In three dimensions the output slices with the same residue modulo the stride in depth "
        "share their depth taps: the input slices that they read stand behind one another as "
        "channels of an image, one call of the kernel for each residue."
    ),
}
_FOLDED = {1: "_folded_row", 2: "_folded_image", 3: "_folded_volume"}  # by dimensions
_PARAMETERS = ("stride", "padding", "output_padding", "dilation", "groups")
_DEFAULTS = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1, "groups": 1}
# Places in aten.conv_transpose2d.input, aten.max_pool2d.default and aten.group_norm.default.
_CONV = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
_POOL = ("self", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
_NORM = ("input", "num_groups", "weight", "bias", "eps", "cudnn_enabled")


class Modules:
    """Local names of the modules that calls of ours read at run time."""

    def __init__(self, taken: set[str]):
        self._taken = set(taken)
        self.names: dict[str, str] = {}  # by path

    def name(self, path: str, wanted: str) -> str:
        """The local variable that holds the module `path`."""
        if path not in self.names:
            name, count = wanted, 0
            while name in self._taken:
                count += 1
                name = f"{wanted}_{count}"
            self._taken.add(name)
            self.names[path] = name
        return self.names[path]


def call_text(fused: Fused, suffix: str, text: Expressions, modules: Modules) -> str:
    """The call, one argument a line."""
    conv, channels = _convolution(fused.conv, text, modules)
    vectors = [
        _tensor(value, fused, text) if index in fused.whole else vector_text(value, channels, text)
        for index, value in enumerate(fused.vectors)
    ]
    if fused.entry == "conv":
        x, weight, bias, *parameters = conv
        call = _operator(fused, suffix, x, weight, bias, *parameters, *vectors)
        if _broadcasts(fused):
            whole = fused.dimensions + 2
            more = "" if whole == 4 else f", {whole}"
            call = f"_with_batch_dimension({call}{more})"
        return call
    group_norm = _group_norm(fused.rest[-1], text, modules)
    if fused.entry == "conv_group_norm":
        return _operator(fused, suffix, *conv, *group_norm, *vectors)
    norm, _, pool, _ = fused.rest
    name = modules.name(norm.path, "batch_norm")
    arguments = [
        name,
        *conv[:3],
        f"({', '.join(conv[3:])})",
        f"({', '.join(_max_pool(pool, text, modules))})",
        f"({', '.join(group_norm)})",
    ]
    return _call(f"_forward_and_track{suffix}", *arguments)


def extremum_text(extremum: Extremum, suffix: str, text: Expressions, modules: Modules) -> str:
    """The call that also reduces channels, likewise."""
    fused, given = extremum.fused, extremum.arguments
    conv, channels = _convolution(fused.conv, text, modules)
    vectors = [vector_text(value, channels, text) for value in fused.vectors]
    dim, keepdim = text.argument(given["dim"]), given["keepdim"]
    reduction = f"(torch.ops.{extremum.reducing[0].op}, {dim}, {keepdim})"
    names = f"_operator{suffix}", repr(suffix), repr(extremum.kind), reduction
    return _call("_channel_extremum", *names, str(_broadcasts(fused)), *conv, *vectors)


def fold_text(region: Fused, given: tuple[str, ...], text: Expressions, modules: Modules) -> str:
    """The call that takes along the BatchNorm behind a call of ours in eval mode, likewise. given:
    the fold's number, the layer, those behind it.
    """
    conv, channels = _convolution(region.conv, text, modules)
    vectors = [vector_text(value, channels, text) for value in region.vectors]
    number, *layers = given
    return _call("_folded_norm", number, _FOLDED[region.dimensions], *layers, *conv, *vectors)


def _broadcasts(fused: Fused) -> bool:
    """Does a result without a batch get one from a per-channel operand, as from (1, C, 1, 1)?"""
    per_channel = [v for i, v in enumerate(fused.vectors) if i not in fused.whole]
    return any(len(v.shape) == fused.dimensions + 2 for v in per_channel)


def modules_of(fused: Fused, modules: Modules) -> None:
    """Gives the modules of a call their names, in the order in which they run."""
    kinds = ["conv"] + (["batch_norm", "", "pool", "group_norm"] if len(fused.rest) == 4 else [])
    nodes = [fused.conv, *fused.rest]
    if fused.entry == "conv_group_norm":
        kinds = ["conv", "group_norm"]
    for node, kind in zip(nodes, kinds, strict=False):
        if kind and node.op == "layer":
            modules.name(node.path, kind)


def given_to(fused: Fused) -> dict:
    """What the convolution is called with, by name."""
    calls = (fused.conv, *fused.conv.inner)
    return _DEFAULTS | next(call for call in calls if call.op in TRANSPOSED).named(_CONV)


def pairs_rows(fused: Fused) -> bool:
    """Do at most half a tile's output channels (of a group) come of taps in several rows, with
    stride one in an image? kernels_src/row_pairs.h is for those.
    """
    given = given_to(fused)
    _, out_channels, *kernel = given["weight"].shape
    stride = given["stride"]
    strides = [stride] if isinstance(stride, int) else list(stride)
    if len(kernel) < 2 or not all(isinstance(size, int) for size in (out_channels, kernel[-2])):
        return False
    return out_channels <= 32 and kernel[-2] > 1 and set(strides[-2:]) == {1}


def joins_columns(fused: Fused) -> bool:
    """Are columns three to eight apart and the kernel a whole number of strides wide, or columns
    two apart with half a tile's output channels (of a group) at most?
    kernels_src/joined_columns.h is for those.
    """
    given = given_to(fused)
    ends = [given[name] for name in ("stride", "dilation")]
    stride, dilation = (end if isinstance(end, int) else list(end)[-1] for end in ends)
    _, channels, *_, width = given["weight"].shape
    if not all(isinstance(number, int) for number in (stride, dilation, channels, width)):
        return False
    fits = width % stride == 0 if 2 < stride <= 8 else stride == 2 and channels <= 32
    return fits and dilation == 1


def splits_channels(fused: Fused) -> bool:
    """May an image's outputs, or those of the gradient of x, be few for the processors and its
    channels (of a group) many? kernels_src/cuda/channel_parts.h is for those.
    """
    given = given_to(fused)
    in_channels, out_channels, *_ = given["weight"].shape
    if not all(isinstance(size, int) for size in (in_channels, out_channels, given["groups"])):
        return False
    return fused.dimensions > 1 and max(in_channels // given["groups"], out_channels) >= 256


def packs_chain(fused: Fused) -> bool:
    """Has it steps behind a volume whose channels of a group are whole eights, or not known? Input
    channels without groups are filled up to such.
    """
    given = given_to(fused)
    in_channels, out_channels, *_ = given["weight"].shape
    if fused.dimensions != 3 or not fused.steps:
        return False
    if not all(isinstance(size, int) for size in (in_channels, out_channels, given["groups"])):
        return True
    eights = given["groups"] == 1 or in_channels // given["groups"] % 8 == 0
    return eights and out_channels % 8 == 0


def has_short_passes(fused: Fused) -> bool:
    """Are columns two apart, or not known to be others? Then few taps are an output's, and what
    a pass takes beside its products counts (kernels_src/cuda/conv_transpose_hopper_short_pass.cuh).
    """
    stride = given_to(fused)["stride"]
    last = stride[-1] if isinstance(stride, list | tuple) else stride
    return not isinstance(last, int) or last == 2


def has_odd_rows(fused: Fused) -> bool:
    """Are columns two apart and outputs in a row of an odd number, whatever the input's width? Then
    stores are of one column (kernels_src/cuda/conv_transpose_hopper_twin_odd.cuh). The number is
    2 (width - 1 - padding) + dilation (kernel - 1) + output_padding + 1, nn.ConvTranspose3d's.
    """
    given = given_to(fused)
    ends = [given[name] for name in ("stride", "dilation", "output_padding")]
    stride, dilation, more = (end if isinstance(end, int) else list(end)[-1] for end in ends)
    width = given["weight"].shape[-1]
    if not all(isinstance(number, int) for number in (stride, dilation, more, width)):
        return False
    return stride == 2 and (dilation * (width - 1) + more) % 2 == 0


def lacks_taps(fused: Fused) -> bool:
    """Have some outputs a tap of an axis that others lack, or is that not known, and output
    channels (of a group) whole blocks of 64? kernels_src/cuda/present_taps.h is for those.
    """
    channels, axes = _out_channels_and_axes(fused)
    if not isinstance(channels, int) or channels % 64 != 0:
        return False
    return axes is None or any(size > count and size % count != 0 for size, count in axes)


def sums_many_channels(fused: Fused) -> bool:
    """Has x's gradient 256 channels or more to sum over: output channels (of a group), times what
    a stride and taps in depth make of one? Then windows of blocks of channels are loaded ahead
    (kernels_src/cuda/conv_transpose_hopper_plan.h).
    """
    channels, axes = _out_channels_and_axes(fused)
    if not isinstance(channels, int) or axes is None:
        return True
    of_classes = math.prod(min(size, count) for size, count in axes)
    depth_taps = math.prod(math.ceil(size / count) for size, count in axes[:-2])
    return channels * of_classes * depth_taps >= 256


def _out_channels_and_axes(fused: Fused) -> tuple:
    """(output channels of a group; of each axis the kernel's size and how many classes its taps
    fall into (kernels_src/cuda/sliding_layer.h), or None where that is not known)
    """
    given = given_to(fused)
    _, channels, *kernel = given["weight"].shape
    steps, apart = (
        list(given[name]) if isinstance(given[name], list | tuple) else [given[name]] * len(kernel)
        for name in ("stride", "dilation")
    )
    axes = list(zip(kernel, steps, apart, strict=True))
    if not all(isinstance(number, int) for axis in axes for number in axis):
        return channels, None
    return channels, [(size, step // math.gcd(step, tap)) for size, step, tap in axes]


def interleaves(fused: Fused) -> bool:
    """Are outputs of one residue over two columns apart, or a volume's channels in groups?
    kernels_src/cuda/conv_transpose_interleaved.cuh is for those.
    """
    given = given_to(fused)
    stride = given["stride"]
    last = stride[-1] if isinstance(stride, list | tuple) else stride
    grouped = fused.dimensions == 3 and given["groups"] != 1
    return grouped or not isinstance(last, int) or last > 2


def takes_turns(fused: Fused) -> bool:
    """Is it an image's convolution alone, one block of 33 to 64 channels in and out, and one dense
    pass of at most 16 taps? Then stores take as long as products, and over many pixels the weights
    do not fit beside them (kernels_src/cuda/conv_transpose_hopper_turns.cuh). Not where a number is
    not known, nor with steps behind: what they take was measured to cost more than turns gain.
    """
    given = given_to(fused)
    stride = given["stride"]
    steps = stride if isinstance(stride, list | tuple) else [stride]
    in_channels, out_channels, *kernel = given["weight"].shape
    numbers = (in_channels, out_channels, *kernel, *steps, given["groups"])
    if fused.dimensions != 2 or fused.steps or not all(isinstance(n, int) for n in numbers):
        return False
    one_block = all(33 <= channels <= 64 for channels in (in_channels, out_channels))
    return one_block and {*steps, given["groups"]} == {1} and math.prod(kernel) <= 16


def summary(fused: Fused | Fold) -> str:
    """The chain in words."""
    return " -> ".join(map(label, fused.nodes))


def _call(function: str, *arguments: str) -> str:
    lines = "".join(f"    {argument},\n" for argument in arguments)
    return f"{function}(\n{lines})"


def _operator(fused: Fused, suffix: str, *arguments: str) -> str:
    name = f"_operator{suffix}"
    if fused.dimensions == 1:
        name = name if fused.rest or fused.whole else f"_folding({name})"
        return _call("_in_one_dimension", name, *arguments)
    if fused.dimensions == 3:
        chain = f"(_CHAIN{suffix}, _CHAIN_NUMBER{suffix})"
        return _call("_in_three_dimensions", name, repr(suffix), chain, *arguments)
    return _call(name, *arguments)


def _convolution(node: Node, text: Expressions, modules: Modules) -> tuple[list[str], str]:
    """(x, weight, bias, parameters as texts, the number of output channels as text)"""
    if node.op == "layer":
        name = modules.name(node.path, "conv")
        parts = [f"{name}.{part}" for part in ("weight", "bias", *_PARAMETERS)]
        return [text.argument(node.args[0]), *parts], f"{name}.out_channels"
    given = _DEFAULTS | node.named(_CONV)
    weight = text.argument(given["weight"])
    parts = [text.argument(given["input"]), weight, text.argument(given.get("bias"))]
    for name in _PARAMETERS[:-1]:
        value = given[name]
        parts.append(_axes(value, text, dimensions_of(node)))
    groups = text.argument(given["groups"])
    return [*parts, groups], f"{weight}.shape[1] * {groups}"


def _axes(value, text: Expressions, dimensions: int = 2) -> str:
    """An int, or a list of one or one for each dimension, as the text of a tuple."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    return text.argument(tuple(values * dimensions if len(values) == 1 else values))


def vector_text(value: Value, channels: str, text: Expressions) -> str:
    """A per-channel operand, or one of a single value, as operators take it."""
    flat = f"{text.value(value)}.reshape(-1)"
    one = all(size == 1 for size in value.shape)
    return f"{flat}.expand({channels})" if one else flat


def _tensor(value: Value, fused: Fused, text: Expressions) -> str:
    """An operand of the output's shape, as the operator takes it."""
    if fused.dimensions == 1:
        return f"{text.value(value)}.unsqueeze(-2)"
    given = text.value(value)
    return f"_with_batch_dimension({given}, 5)" if fused.dimensions == 3 else given


def _group_norm(node: Node, text: Expressions, modules: Modules) -> list[str]:
    if node.op == "layer":
        name = modules.name(node.path, "group_norm")
        return [f"{name}.{part}" for part in ("num_groups", "weight", "bias", "eps")]
    given = {"weight": None, "bias": None, "eps": 1e-5} | node.named(_NORM)
    return [text.argument(given[part]) for part in ("num_groups", "weight", "bias", "eps")]


def _max_pool(node: Node, text: Expressions, modules: Modules) -> list[str]:
    if node.op == "layer":
        name = modules.name(node.path, "pool")
        return [f"{name}.{part}" for part in _POOL[1:]]
    given = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False}
    given |= overload_of(node).named(_POOL)
    if given["stride"] in (None, [], ()):
        given["stride"] = given["kernel_size"]
    pairs = [_axes(given[part], text) for part in _POOL[1:-1]]
    return [*pairs, str(bool(given["ceil_mode"]))]


def module_text(path: str) -> str:
    """How forward looks a module up."""
    return module_path(path)
