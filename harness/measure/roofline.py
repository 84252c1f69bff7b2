"""FLOPs and bytes of a problem, from shapes; what the device can do at most, measured."""

import functools
import math
import statistics
import time
from dataclasses import dataclass

import torch
from torch import nn

from harness import devices
from harness.copied import copied
from harness.errors import UsageError
from harness.judge.joined import JoinsOutputs
from harness.report import doubts

_TRANSPOSED = nn.modules.conv._ConvTransposeNd
_CONVOLUTION = nn.modules.conv._ConvNd
_WITHOUT_DATA = torch.device("meta")
_AGAIN = ", twice: the better counts"


@dataclass(frozen=True)
class Layer:
    """What one convolution or linear layer computes in a forward pass.

    `reduction_length` K products are summed for one output element (at most); one element of a
    weight's gradient sums `positions` products; `input_gradient_length` is the K of the input's
    gradient.
    """

    name: str
    flops: int
    reduction_length: int
    input_gradient_length: int
    positions: int


@dataclass(frozen=True)
class Work:
    """A forward pass: FLOPs of its products and bytes it must at least move."""

    flops: int
    bytes: int
    layers: tuple[Layer, ...]
    layout: dict | None = None  # of several outputs (judge/joined.py)

    @property
    def reduction_length(self) -> int:
        """The longest sum of products in the model, 1 when it has no such layer."""
        return max((layer.reduction_length for layer in self.layers), default=1)

    def with_backward(self) -> "Work":
        """Forward and backward: two more products of the same size; as many bytes of gradients."""
        return Work(3 * self.flops, 2 * self.bytes, self.layers)

    def backward(self) -> "Work":
        """Backward alone: what `with_backward` has beyond the forward."""
        return Work(2 * self.flops, self.bytes, self.layers)

    def gradient_length(self, name: str) -> int:
        """The longest sum behind the gradient called `name` ("input 0", or a parameter's name)."""
        if name.startswith("input "):
            return max((layer.input_gradient_length for layer in self.layers), default=1)
        return max((layer.positions for layer in self.layers), default=1)


def work_of(model: nn.Module, inputs: list, dtype: torch.dtype) -> Work:
    """Count a forward pass of `model` on tensors of the inputs' shapes; nothing is computed, but on
    the inputs themselves for a model that needs data (.item(), autocast).

    A transposed convolution costs 2 * N * Cin/groups * Cout * (taps) * (input positions), one
    multiply and one add per input element, output channel of its group and tap; a convolution the
    same with output positions. Bytes are those of inputs and outputs, each moved once. Raises
    UsageError for a model that does not run, or returns no floating-point tensors.
    """
    own = next((v.device for v in inputs if torch.is_tensor(v)), _WITHOUT_DATA)
    try:
        output, layers = _forward(model, inputs, _WITHOUT_DATA)
    except Exception as error:
        if own == _WITHOUT_DATA:
            raise _does_not_run("tensors without data", error) from error
        try:
            output, layers = _forward(model, inputs, own)
        except Exception as another:
            raise _does_not_run("its own inputs", another) from another
    joins = JoinsOutputs()
    try:
        joined = joins(model, (), output)
    except TypeError as error:
        raise UsageError(f"the reference: {error}") from None
    output = output if joined is None else joined
    elements = output.numel() + sum(v.numel() for v in inputs if torch.is_tensor(v))
    return Work(
        sum(layer.flops for layer in layers), elements * dtype.itemsize, tuple(layers), joins.layout
    )


def _forward(model: nn.Module, inputs: list, device: torch.device) -> tuple[object, list[Layer]]:
    """The output of a copy on a device, for inputs in fp32, and its layers' work."""
    layers: list[Layer] = []
    ghost = copied(model).to(device)
    for name, layer in ghost.named_modules():
        if isinstance(layer, _CONVOLUTION | nn.Linear):
            layer.register_forward_hook(functools.partial(_count, layers, name))
    ghosts = [v.to(device) if torch.is_tensor(v) else v for v in inputs]
    ghosts = [v.float() if torch.is_tensor(v) and v.is_floating_point() else v for v in ghosts]
    with torch.no_grad():
        return ghost(*ghosts), layers


def _does_not_run(where: str, error: Exception) -> UsageError:
    told = f"{type(error).__name__}: {error}".partition("\n")[0]
    return UsageError(f"the reference does not run on {where}: {told}")


def _count(layers: list, name: str, layer: nn.Module, arguments: tuple, output: torch.Tensor):
    source = arguments[0]
    if isinstance(layer, nn.Linear):
        rows = source.numel() // layer.in_features
        work = (rows * layer.in_features * layer.out_features, layer.in_features)
        layers.append(Layer(name, 2 * work[0], work[1], layer.out_features, rows))
        return
    taps = math.prod(layer.kernel_size)
    per_group_in = layer.in_channels // layer.groups
    per_group_out = layer.out_channels // layer.groups
    if isinstance(layer, _TRANSPOSED):
        products = source.numel() * per_group_out * taps
    else:
        products = output.numel() * per_group_in * taps
    channels = max(layer.in_channels, layer.out_channels)
    positions = max(source.numel() // layer.in_channels, output.numel() // layer.out_channels)
    layers.append(
        Layer(
            name,
            2 * products,
            per_group_in * taps,
            per_group_out * taps,
            max(positions, channels),
        )
    )


@dataclass(frozen=True)
class Ceilings:
    """Measured limits of a device: products per precision in TFLOP/s, memory in GB/s."""

    tflops: dict[str, float]
    gbps: float
    how: str


_CONV_CHANNELS = 256
_known: dict[tuple, Ceilings] = {}


def ceilings(device: torch.device, precision: str, again: bool = False) -> Ceilings:
    """What the device can do, measured once per process; with `again` once more, and then the
    better of both counts, for a ceiling can only be measured too low.
    """
    before = _known.get((device, precision))
    if before is None:
        _known[device, precision] = _measured(device, precision)
    elif again:
        now = _measured(device, precision)
        _known[device, precision] = Ceilings(
            {name: max(rate, before.tflops[name]) for name, rate in now.tflops.items()},
            max(now.gbps, before.gbps),
            f"{now.how.removesuffix(_AGAIN)}{_AGAIN}",
        )
    return _known[device, precision]


def _measured(device: torch.device, precision: str) -> Ceilings:
    """A big copy, and a square matrix product in `precision` and, on CUDA, in 16 bits. On a CPU in
    fp32 also an ordinary convolution, of which the better counts: some BLAS reach half of what
    oneDNN does.
    """
    cuda = device.type == "cuda"
    copy_bytes = 1 << 30 if cuda else 1 << 28
    source = torch.ones(copy_bytes, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    seconds = _best_seconds(functools.partial(target.copy_, source), device)
    gbps = 2 * copy_bytes / seconds / 1e9
    del source, target
    dtypes = {"tf32": torch.float32, "float32": torch.float32, "float64": torch.float64}
    dtypes |= {"float16": torch.float16, "bfloat16": torch.bfloat16}
    wanted = {precision, "bfloat16", "float16"} if cuda else {precision}
    tflops = {}
    for name in sorted(wanted):
        with devices.tf32("allow" if name == "tf32" else "forbid"):
            size = 8192 if cuda else _cpu_size(dtypes[name])
            a = torch.randn(size, size, device=device).to(dtypes[name])
            seconds = _best_seconds(functools.partial(torch.mm, a, a), device)
            tflops[name] = 2 * size**3 / seconds / 1e12
            del a
    product = f"{size}x{size} matrix product"
    if "float32" in tflops and not cuda:
        tflops["float32"] = max(tflops["float32"], _cpu_convolution_tflops())
        product += f" or 3x3 convolution of {_CONV_CHANNELS} channels"
    how = f"copy of {copy_bytes >> 20} MiB, {product}, measured in this run"
    return Ceilings(tflops, gbps, how)


def _cpu_convolution_tflops() -> float:
    channels, side = _CONV_CHANNELS, 64
    x, weight = torch.randn(2, channels, side, side), torch.randn(channels, channels, 3, 3)
    convolve = functools.partial(torch.nn.functional.conv2d, x, weight, padding=1)
    seconds = _best_seconds(convolve, torch.device("cpu"))
    return 2 * x.numel() * channels * 9 / seconds / 1e12


def _cpu_size(dtype: torch.dtype) -> int:
    """The side of a matrix product of less than half a second, at most 2048.

    Some CPUs multiply 16-bit numbers a hundred times slower than fp32.
    """
    size = 128
    while size < 2048:
        a = torch.randn(size, size).to(dtype)
        if 8 * _best_seconds(functools.partial(torch.mm, a, a), torch.device("cpu")) > 0.5:
            break
        size *= 2
    return size


def _best_seconds(call, device: torch.device) -> float:
    """Seconds of a call: on CUDA the median by device events, on the CPU, which others may keep
    busy, the least.
    """
    times = []
    for _ in range(2 if device.type == "cuda" else 1):
        call()
    for _ in range(5 if device.type == "cuda" else 3):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize(device)
            times.append(begin.elapsed_time(end) / 1e3)
        else:
            started = time.perf_counter()
            call()
            times.append(time.perf_counter() - started)
    return statistics.median(times) if device.type == "cuda" else min(times)


def roofline(work: Work, limits: Ceilings, precision: str, milliseconds: float) -> dict:
    """Achieved rates of a forward pass and their share of what the device could do.

    `share` is the floor (the larger of arithmetic time at the precision's measured rate and memory
    time) over the measured time. A solution may pass 1 honestly where it forms its products in a
    faster format of the same accuracy; `share_16_bit` is over the 16-bit rate.
    """
    memory_ms = work.bytes / limits.gbps / 1e6
    arithmetic_ms = work.flops / limits.tflops[precision] / 1e9
    fastest = max(limits.tflops.values())
    floor_16 = max(memory_ms, work.flops / fastest / 1e9)
    return {
        "gflop": work.flops / 1e9,
        "gbyte": work.bytes / 1e9,
        "tflops": work.flops / milliseconds / 1e9,
        "gbps": work.bytes / milliseconds / 1e6,
        "ceiling_tflops": limits.tflops,
        "ceiling_gbps": limits.gbps,
        "ceilings": limits.how,
        "arithmetic_ms": arithmetic_ms,
        "memory_ms": memory_ms,
        "share": max(arithmetic_ms, memory_ms) / milliseconds,
        "share_16_bit": floor_16 / milliseconds if device_has_16_bit(limits) else None,
        "bound": "arithmetic" if arithmetic_ms >= memory_ms else "memory",
    }


def measured_roofline(
    work: Work, device: torch.device, precision: str, milliseconds: float
) -> tuple[dict, Ceilings]:
    """`roofline` under measured ceilings, and those. Where the share is beyond belief the ceilings
    are measured once more; it may stay so, and is marked wherever it is shown.
    """
    limits = ceilings(device, precision)
    rates = roofline(work, limits, precision, milliseconds)
    if doubts.is_high(rates):
        limits = ceilings(device, precision, again=True)
        rates = roofline(work, limits, precision, milliseconds)
    return rates, limits


def device_has_16_bit(limits: Ceilings) -> bool:
    """Whether 16-bit products were measured."""
    return "float16" in limits.tflops


def physical_floor_ms(work: Work, limits: Ceilings, device: torch.device) -> float:
    """A time below which no honest measurement can lie.

    On CUDA half the memory time where the data are more than four times the L2 cache (less could
    stay there; a CPU's caches are not cleared between calls), and a fifth of the arithmetic time
    at the fastest measured rate: Winograd's algorithm saves up to a factor of four, and ceilings
    are measured with a little noise.
    """
    memory_ms = 0.0
    if device.type == "cuda":
        cache_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        if work.bytes > 4 * cache_bytes:
            memory_ms = work.bytes / limits.gbps / 1e6
    arithmetic_ms = work.flops / max(limits.tflops.values()) / 1e9
    return max(memory_ms / 2, arithmetic_ms / 5)
