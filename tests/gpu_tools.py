"""What the GPU tests share: kernels and how to force one, TF32 settings, ways to lay an input out,
the check of an operator call, graphs.
"""

import contextlib
import hashlib

import pytest
import torch

from generator.sources import gradient_operator_source
from tests.builds_ahead import CHAINED_GRADIENTS, SLICED_GRADIENTS, cuda_source_of
from tests.solution_tools import Case, assert_within, conv_bound, environment

KERNELS = ["plain", "direct", "portable", "hopper", "auto"]
LOW = [torch.float16, torch.bfloat16]
DTYPES = [torch.float32, torch.float64, *LOW]
NAN = float("nan")


@contextlib.contextmanager
def tf32(allowed: bool):
    old = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = old


def gradients_library(shelf, path):
    """The operators of a library of gradients (tests/builds_ahead.py) with the tests' chains."""
    chained = path in (CHAINED_GRADIENTS, SLICED_GRADIENTS)
    source = cuda_source_of(path)
    entry = "gradients" if chained else path.stem.removeprefix("entry_")
    name = f"tconv_tests_{entry}_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    load = shelf["65"].solution["_load_operators"]
    tensors = path == CHAINED_GRADIENTS
    operator = gradient_operator_source(entry, chained=chained, tensors=tensors)
    return load(name, operator, source, {})[0]


def forced(kernel: str):
    """TCONV_KERNEL set for a while; a visible skip where the device has no such kernel."""
    if kernel == "hopper" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the Hopper kernel needs compute capability 9.0")
    return environment(TCONV_KERNEL=kernel)


def settings(dtype: torch.dtype) -> tuple:
    """The TF32 settings that make a difference for a dtype."""
    return (True, False) if dtype == torch.float32 else (True,)


def can_force(kernel: str, case: Case, dtype: torch.dtype, allowed: bool) -> bool:
    """Whether a kernel that is forced must do a case, by the rule in docs/kernels.md."""
    if kernel in ("plain", "auto"):
        return True
    if dtype == torch.float64:
        return False
    if kernel == "direct":
        return max(case.stride) <= 8
    strict = dtype == torch.float32 and not allowed
    return kernel == "portable" or not strict and _phases_fit(case)


def _phases_fit(case: Case) -> bool:
    """At most 16 stride phases, and along each axis an output that a tap reaches."""
    reached = True
    for axis in range(2):
        kernel, stride, dilation = case.kernel[axis], case.stride[axis], case.dilation[axis]
        padding, size = case.padding[axis], case.output_size[axis]
        reached &= any(
            (residue + padding - tap * dilation) % stride == 0
            for tap in range(kernel)
            for residue in range(min(stride, size))
        )
    return reached and case.stride[0] * case.stride[1] <= 16


def pytorch_strides(case: Case, x, weight, bias) -> tuple:
    """Of what PyTorch returns: channels_last where input or weight are."""
    stride, padding, output_padding, dilation, groups = case.parameters
    return torch.conv_transpose2d(
        x, weight, bias, stride, padding, output_padding, groups, dilation
    ).stride()


def check(operator, case: Case, dtype: torch.dtype, *, x=None, weight=None, bias=None):
    """Every output within the bound, with TF32 allowed and forbidden where that matters."""
    made = case.tensors(dtype, "cuda")
    x, weight, bias = (m if t is None else t for m, t in zip(made, (x, weight, bias), strict=True))
    exact = case.reference(x, weight, bias)
    for allowed in settings(dtype):
        with tf32(allowed):
            y = operator(x, weight, bias, *case.parameters)
        assert y.stride() == pytorch_strides(case, x, weight, bias)
        assert y.dtype == dtype and y.device == x.device
        rounded = allowed and dtype == torch.float32
        assert_within(y, exact, conv_bound(case, x, weight, bias, dtype, tf32=rounded))


def moved(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    """The same values that many elements behind an aligned address, NaN before and after."""
    flat = tensor.new_full((tensor.numel() + 2 * elements,), NAN)
    flat[elements:-elements] = tensor.reshape(-1)
    return flat[elements:-elements].view(tensor.shape)


def inside(tensor: torch.Tensor, before: tuple, after: tuple, steps=(1, 1, 1, 1)) -> torch.Tensor:
    """The same values as a strided window of a larger tensor that is NaN everywhere else."""
    places = list(zip(tensor.shape, before, after, steps, strict=True))
    wide = tensor.new_full([b + n * s + a for n, b, a, s in places], NAN)
    window = wide[tuple(slice(b, b + n * s, s) for n, b, _, s in places)]
    window.copy_(tensor)
    return window


LAYOUTS = {
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "offset_1": lambda x: moved(x, 1),
    "offset_2": lambda x: moved(x, 2),
    "offset_3": lambda x: moved(x, 3),
    "channel_window": lambda x: inside(x, (0, 5, 0, 0), (0, 3, 0, 0)),
    "row_window": lambda x: inside(x, (1, 0, 2, 0), (0, 0, 1, 0)),
    "column_window": lambda x: inside(x, (0, 0, 0, 1), (0, 0, 0, 2)),
    "aligned_window": lambda x: inside(x, (0, 8, 4, 8), (0, 8, 4, 8)),
    "strided": lambda x: inside(x, (0, 0, 0, 0), (0, 0, 0, 0), (1, 1, 2, 3)),
    "batch_expanded": lambda x: x[:1].expand(x.shape),
    "channels_expanded": lambda x: x[:, :1].expand(x.shape),
    "columns_expanded": lambda x: x[..., :1].expand(x.shape),
}


def captured(model, x):
    """A graph of model(x), and the tensor that its replays fill."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    return graph, y


def check_replays(graph, model, x, y, draw) -> None:
    """Replays on other inputs fill y as model(x) does; draw(x) gives one."""
    for seed in range(3):
        torch.manual_seed(seed)
        x.copy_(draw(x))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, model(x))
