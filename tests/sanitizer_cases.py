"""Every CUDA kernel of the committed solutions on small shapes, to run under compute-sanitizer:

for tool in memcheck racecheck "initcheck --check-api-memory-access no" synccheck; do
    compute-sanitizer --tool $tool --error-exitcode 1 --kernel-regex kns=tconv \\
        python -m tests.sanitizer_cases
done

The option leaves out copies of host memory, all of which initcheck takes for uninitialised.
volume_only is to run without the filter: behind its convolution stand kernels of PyTorch's, whose
writes the filter hides.

It compares nothing (tests/test_gpu_operator.py does); it exits 1 where an output is not finite.
Names of kernels (plain, direct, portable, hopper), numbers of problems (69, 19, 11) and names in
tests/references (volume_only, soft_activations ...) after the command restrict it to these.

What the kernels read is made so that the tools see its origin: inputs, weights and running
statistics are computed on the host and copied, because the filter hides what other kernels write,
and PyTorch's caching allocator is off, because a cached block passes for initialised memory and
hides accesses beyond a tensor's end.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from tests.builds_ahead import (
    EXTREMA,
    FEW_CHANNELS,
    FULL_BLOCKS,
    MANY_CHANNELS,
    RESIDUAL,
    VOLUME_ONLY,
)
from tests.group_norm_tools import CASES as GROUP_CASES
from tests.sanitizer_models import (
    centred_are_finite,
    extrema_are_finite,
    few_channels_are_finite,
    grouped_is_finite,
    joined_volumes_are_finite,
    residual_is_finite,
    stepped_batch_norm_is_finite,
    tails_are_finite,
)
from tests.solution_tools import PROBLEMS, REFERENCES, ROOT, environment, generated, load_text

KERNELS = ("plain", "direct", "portable", "hopper")
CHAIN = "soft_activations"  # whose gradient is formed as it is packed
GROUPED = "grouped_volumes"  # whose GroupNorm has a library of its own
NORMED = "normed_volumes"  # whose tails have one
CENTRED = "centred_norms"  # whose tails take away the means of planes
JOINED = "joined_volumes"  # whose value is kept, and one of whose gradients two operands share
PACKED = "packed_volumes"  # whose chain's gradient is formed as volumes are packed
NUMBERS = ("69", "19", "11", VOLUME_ONLY, CHAIN, PACKED, MANY_CHANNELS, RESIDUAL, JOINED)
NUMBERS += (GROUPED, NORMED, CENTRED, FEW_CHANNELS, EXTREMA, FULL_BLOCKS)  # 65 has 69's kernels
_OF_THEIR_OWN = {
    RESIDUAL: residual_is_finite,
    JOINED: joined_volumes_are_finite,
    GROUPED: grouped_is_finite,
    NORMED: tails_are_finite,
    CENTRED: centred_are_finite,
    FEW_CHANNELS: few_channels_are_finite,
    EXTREMA: extrema_are_finite,
}
# An H200, whose tiles are chosen wherever the cases are listed.
_SMEM_LIMIT, _NUM_SMS = 232448, 132


@dataclasses.dataclass(frozen=True)
class Run:
    """One model call: one of NUMBERS, constructor arguments, input shape, and how it is called."""

    problem: str
    arguments: tuple
    shape: tuple
    dtype: torch.dtype = torch.float32
    kernel: str = "auto"
    layout: str = "contiguous"
    allow_tf32: bool = True
    training: bool = True

    def __str__(self) -> str:
        """What differs from run to run, in one line."""
        flags = [self.layout] * (self.layout != "contiguous")
        flags += ["strict"] * (not self.allow_tf32) + ["eval"] * (not self.training)
        return " ".join(
            map(str, (self.problem, self.arguments, self.shape, self.dtype, self.kernel, *flags))
        )


# Tails in every direction: channels, rows, columns, phases; more than one block of channels.
CONVOLUTIONS = [
    ((20, 70, (3, 7), 1, 0, 0, 1, 1, True), (2, 20, 9, 30)),
    ((64, 64, (3, 3), 2, 1, 1), (1, 64, 7, 12)),
    ((70, 130, (2, 3), (1, 2), (1, 0)), (2, 70, 6, 11)),
    ((3, 5, (4, 4), 2, 1), (2, 3, 8, 9)),
    ((34, 36, (3, 3), 1, 1, 0, 2, 2), (1, 34, 12, 17)),  # dilation 2, two groups
    ((96, 64, (3, 3), 1, 1), (2, 96, 8, 12)),  # a channel block that ends after its first half
    ((72, 66, (1, 1)), (2, 72, 3, 64)),  # one tap: gradients without packing
]
# The same with statistics, and normalisations: of a group in one block (two kernels), or in many.
NORMS = [
    ("19", (64, 64, 3, 1, 8, 8), (2, 64, 10, 28)),
    ("19", (64, 64, 3, 1, 8, 8), (1, 64, 10, 11)),
    ("11", (64, 128, 5, 1, 1, 8, 8), (1, 64, 20, 24)),
    ("19", (64, 64, 3, 1, 8, 2), (1, 64, 60, 60)),
    ("11", (64, 128, 5, 1, 1, 8, 8), (2, 64, 12, 12)),
    ("11", (64, 128, 5, 1, 1, 8, 2), (1, 64, 40, 40)),
]


def runs(kernels=KERNELS) -> Iterator[Run]:
    """Every kernel in every dtype and mode it has code for."""
    for kernel in kernels:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for arguments, shape in CONVOLUTIONS:
                yield Run("69", arguments, shape, dtype, kernel)
            for problem, arguments, shape in NORMS:
                yield Run(problem, arguments, shape, dtype, kernel)
        for layout in ("channels_last", "offset"):
            for dtype in (torch.float32, torch.bfloat16):
                yield Run("69", *CONVOLUTIONS[0], dtype, kernel, layout)
        yield Run("11", *NORMS[2][1:], torch.float32, kernel, training=False)
    if "portable" in kernels:
        for problem, arguments, shape in [("69", *case) for case in CONVOLUTIONS] + NORMS:
            yield Run(problem, arguments, shape, torch.float32, "portable", allow_tf32=False)
    if "plain" in kernels:
        for problem, arguments, shape in NORMS:
            for training in (True, False):
                yield Run(problem, arguments, shape, torch.float64, "plain", training=training)
    if "direct" in kernels:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            yield Run("69", (8, 12, (3, 4), (2, 3), 1, 1), (2, 8, 9, 70), dtype, "direct")
            # Interleaved; of groups in 16 bits, more than a strip of a row.
            yield Run(VOLUME_ONLY, (16, 2), (2, 16, 3, 9, 70), dtype)
    if "hopper" in kernels:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            # Slices that taps reach, and slices that none does.
            yield Run(VOLUME_ONLY, (16, 1, 2), (2, 16, 3, 5, 9), dtype, "hopper")
            yield Run(VOLUME_ONLY, (16, 1), (8, 16, 9, 40, 40), dtype, "hopper")  # row pairs
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            yield Run(CHAIN, (24, 72, 2.0), (2, 24, 7, 42), dtype, "hopper")
            yield Run(CHAIN, (24, 64, 2.0), (2, 24, 7, 42), dtype, "hopper")  # two planes at once
            yield Run(CHAIN, (24, 24, 2.0), (9, 24, 7, 7), dtype, "hopper")  # formed first
            yield Run(PACKED, (24, 40, 1), (2, 24, 3, 5, 42), dtype, "hopper")
            yield Run(PACKED, (24, 64, 2), (3, 24, 3, 5, 42), dtype, "hopper")  # two planes at once
            # Operands of the output's shape: the chain's rest, and its gradients.
            yield Run(RESIDUAL, (), (2, 24, 7, 42), dtype, "hopper")
            # Gathered, of 128 and of 256 pixels a tile; output channels in parts.
            yield Run(MANY_CHANNELS, (130, 192, 3, 2, 1), (3, 130, 4, 5), dtype, "hopper")
            yield Run(MANY_CHANNELS, (256, 128, 4, 2, 1), (128, 256, 8, 8), dtype, "hopper")
            yield Run(MANY_CHANNELS, (16, 256, 3, 1, 1), (2, 16, 20, 40), dtype, "hopper")
            # Planes of even and odd columns at once; in volumes, without taps that are not there.
            yield Run(MANY_CHANNELS, (24, 64, 3, 2, 1), (2, 24, 7, 42), dtype, "hopper")
            yield Run(JOINED, (24, 64), (2, 24, 3, 4, 20), dtype, "hopper")
            # In turns.
            yield Run(FULL_BLOCKS, (40, 64), (2, 40, 300, 528), dtype, "hopper")
            # The input's scale from a sample.
            yield Run(MANY_CHANNELS, (16, 40, 3, 1, 1), (1, 16, 256, 256), dtype, "hopper")
            yield Run(FEW_CHANNELS, (), (2, 7, 3, 5, 40), dtype)
            yield Run(NORMED, (), (2, 8, 4, 6, 16), dtype, "hopper")
            yield Run(EXTREMA, (24, 40), (2, 24, 7, 20), dtype, "hopper")
            yield Run(EXTREMA, (64, 130), (1, 64, 9, 21), dtype, "hopper")
            yield Run(EXTREMA, (64, 16), (2, 64, 8, 9), dtype, "hopper")  # no planes to join
        yield Run(CENTRED, (), (3, 6, 3, 5, 7), torch.float32, "hopper")
        for case in GROUP_CASES:
            yield Run(GROUPED, (case,), case.image, case.dtype, "hopper")
        for shape in (
            (3, 64, 10, 28),
            (2, 64, 60, 60),
            (5, 64, 9, 11),
        ):  # held: one block, and many
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                yield Run("19", (64, 64, 3, 1, 8, 8), shape, dtype, "held")
        for (_, _, sixteen_bit), case in hopper_shapes().items():
            if case is None:
                continue
            arguments, shape = case
            dtype = torch.float16 if sixteen_bit else torch.float32
            yield Run("69", arguments, shape, dtype, "hopper")
            if not sixteen_bit:
                yield Run("19", (*arguments, 8, 8), shape, torch.bfloat16, "hopper")
        # Rings of pixels and of weights that are filled again and again.
        for dtype in (torch.float32, torch.float16):
            yield Run("69", (192, 64, (3, 3), 1, 1), (1, 192, 30, 40), dtype, "hopper")
            yield Run("69", (64, 128, (3, 3), 1, 1), (140, 64, 4, 60), dtype, "hopper")
            yield Run("69", (64, 64, (3, 3), 1, 1), (1, 64, 160, 150), dtype, "hopper")


def execute(run: Run, load: Callable[[str], dict]) -> bool:
    """Whether the run's outputs are finite. `load` gives the namespace of a problem's solution."""
    torch.manual_seed(0)
    if run.problem in _OF_THEIR_OWN:
        return _OF_THEIR_OWN[run.problem](load(run.problem), run)
    model = load(run.problem)["ModelNew"](*run.arguments)
    if run.problem == MANY_CHANNELS:
        # PyTorch's kernels are not to be looked at.
        model.smooth = model.norm = model.soft = torch.nn.Identity()
    model = model.to(run.dtype).to("cuda").train(run.training)
    x = torch.randn(run.shape).to(run.dtype)
    old, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, run.allow_tf32
    try:
        with torch.no_grad(), environment(TCONV_KERNEL=run.kernel):
            finite = bool(model(_on_device(x, run.layout)).cpu().isfinite().all())
            if run.dtype == torch.float32:  # beyond fp16's range: the guard and what stands behind
                finite &= bool(model(_on_device(x * 1e6, run.layout)).cpu().isfinite().all())
        # What holds outputs is forward's: the gradients are those of "hopper".
        if run.kernel != "held":
            with environment(TCONV_KERNEL=run.kernel):
                finite &= _gradients_are_finite(run, model, x)
        if run.problem == VOLUME_ONLY and run.kernel == "hopper":
            finite &= _weights_alone_are_finite(load(run.problem), run.dtype)
            finite &= stepped_batch_norm_is_finite(load(run.problem), run.dtype)
        if run.problem == MANY_CHANNELS and run.dtype == torch.float32:
            finite &= _normalised_is_finite(load(run.problem), _on_device(x, run.layout))
    finally:
        torch.backends.cudnn.allow_tf32 = old
    return finite


def _gradients_are_finite(run: Run, model, x: torch.Tensor) -> bool:
    """Of input and parameters, for gradients within the containers' range and beyond it."""
    leaf = _on_device(x, run.layout).requires_grad_()
    y = model(leaf)
    grad = torch.randn(y.shape)
    grads = [grad, torch.where(grad.abs() > 1, grad * 1e9, grad)]
    finite = True
    for given in grads if run.dtype == torch.float32 else grads[:1]:
        try:
            found = torch.autograd.grad(
                y, [leaf, *model.parameters()], given.to(run.dtype).to("cuda"), retain_graph=True
            )
        except RuntimeError as error:
            if "forced by TCONV_KERNEL" not in str(error):
                raise
            return finite  # forward's kernel, but not the gradients'
        finite &= all(bool(g.cpu().isfinite().all()) for g in found)
    return finite


def _weights_alone_are_finite(solution: dict, dtype: torch.dtype) -> bool:
    """The weight's gradient of volumes whose planes have narrow pixels: with all taps in a
    warpgroup, and with those of a row.
    """
    operator = solution["_gradient_library"]().depth_weight_gradient.default
    finite = True
    for kernel in ((2, 3, 3), (3, 2, 4)):
        shape = [size + taps - 1 for size, taps in zip((3, 5, 66), kernel, strict=True)]
        sizes = (1, 24, *shape), (1, 16, 3, 5, 66), (16, 24, *kernel)
        tensors = [torch.rand(size).to(dtype).to("cuda") for size in sizes]
        axes = (1, 1, 1), (0, 0, 0), (0, 0, 0), (1, 1, 1)
        numbers = [number for axis in axes for number in axis]
        finite &= bool(operator(*tensors, None, *numbers, 1, True).cpu().isfinite().all())
    return finite


def _normalised_is_finite(solution: dict, x: torch.Tensor) -> bool:
    """By the kernels of BatchNorm alone, which serve larger images, and every vector there is; and
    the gradients of value, weight and bias.
    """
    vectors = [torch.rand(x.shape[1]).to("cuda") for _ in range(4)]
    counted, grad = torch.tensor(2).to("cuda"), torch.randn(x.shape).to("cuda")
    library = solution["_batch_norm_library"]()
    normalise = library.normalise.default
    found = [normalise(x, *vectors, counted, 0.0, 1e-5, False)]
    found += library.backward.default(grad, x, vectors[0], 1e-5, True, True)
    if x.shape[3] in solution["_SOFTMAX_WIDTHS"]:
        found.append(normalise(x, *vectors, counted, 0.0, 1e-5, True))
    return all(bool(t.cpu().isfinite().all()) for t in (*found, *vectors))


def _on_device(x: torch.Tensor, layout: str) -> torch.Tensor:
    """`x` copied to the GPU; no kernel has a part in it."""
    if layout == "channels_last":
        return x.to(memory_format=torch.channels_last).to("cuda")
    if layout == "offset":  # one element off every alignment
        flat = torch.cat([torch.zeros(1, dtype=x.dtype), x.reshape(-1)])
        return flat.to("cuda")[1:].view(x.shape)
    return x.to("cuda")


# One shape for each compiled Hopper kernel -----------------------------------------------------

_PROBE = r"""
#include <cstdio>
#include "conv_transpose_hopper_plan.h"
using namespace tconv;
int main() {
  for (const auto& s : hopper::kShapes)
    for (int half = 0; half < 2; ++half)  // in fp32, in 16 bits
      if (hopper::serves(s, hopper::Outputs::kAlone, half))
        std::printf("[%d, %d, %d]\n", s.n, s.producer_warps, half);
  long long batch, ci, co, h, w, k, s;
  while (std::scanf("%lld %lld %lld %lld %lld %lld %lld", &batch, &ci, &co, &h, &w, &k, &s) == 7) {
    ConvTransposeLayer p{};
    p.batch = batch, p.in_channels = ci, p.out_channels = co, p.groups = 1;
    p.in_h = h, p.in_w = w, p.out_h = (h - 1) * s + k, p.out_w = (w - 1) * s + k;
    p.x_stride_w = 1, p.x_stride_h = w, p.x_stride_c = h * w;
    p.x_stride_n = ci * h * w;
    p.kernel_h = p.kernel_w = k, p.stride_h = p.stride_w = s, p.dilation_h = p.dilation_w = 1;
    const long long outputs = p.batch * co * p.out_h * p.out_w;
    for (int half = 0; half < 2; ++half) {
      const auto alone = hopper::Outputs::kAlone;
      const hopper::Plan q = hopper::make_plan(p, alone, half, SMEM_LIMIT, NUM_SMS);
      std::printf("[%d, %d, %d, %d, %lld]\n", q.usable, q.n, q.producer_warps, half, outputs);
    }
  }
}
"""


def hopper_shapes() -> dict[tuple, tuple | None]:
    """(n, producer warps, in 16 bits?) of each compiled Hopper kernel -> (arguments, input shape)
    of the smallest candidate for which the plan takes it, or None.
    """
    candidates = [
        (batch, channels, out_channels, *size, kernel, stride)
        for batch in (1, 2, 60, 133, 140, 200, 264)
        for channels in (20, 64)
        for out_channels in (64, 128, 192)
        for size in ((7, 7), (9, 24), (10, 12), (12, 20), (13, 13), (15, 16), (20, 20), (4, 130))
        for kernel in (1, 3, 5)
        for stride in (1, 2)
    ]
    lines = "\n".join(" ".join(map(str, candidate)) for candidate in candidates)
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "probe.cpp", Path(folder) / "probe"
        source.write_text(_PROBE)
        flags = ["-std=c++17", f"-I{ROOT / 'kernels_src' / 'cuda'}"]
        flags += [f"-DSMEM_LIMIT={_SMEM_LIMIT}", f"-DNUM_SMS={_NUM_SMS}"]
        subprocess.run(["c++", *flags, str(source), "-o", str(program)], check=True)
        done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    compiled = [tuple(answer) for answer in answers if len(answer) == 3]
    found: dict[tuple, tuple | None] = dict.fromkeys(compiled)
    plans = [answer for answer in answers if len(answer) == 5]
    asked = [candidate for candidate in candidates for _ in range(2)]
    ordered = sorted(zip(plans, asked, strict=True), key=lambda pair: pair[0][-1])
    for (usable, *kernel, _), candidate in ordered:
        if usable and found[tuple(kernel)] is None:
            batch, channels, out_channels, height, width, size, stride = candidate
            arguments = (channels, out_channels, (size, size), stride)
            found[tuple(kernel)] = (arguments, (batch, channels, height, width))
    return found


def solution_text(problem: str) -> str:
    """Of a problem's number, the committed solution; of a name in tests/references, generated."""
    if not problem.isdigit():
        return generated(REFERENCES / f"{problem}.py")
    path = next(p for p in PROBLEMS if p.stem.startswith(f"{problem}_"))
    return (ROOT / "solutions" / path.parent.name / path.name).read_text()


def main(names: list[str]) -> int:
    """Runs all cases of these kernels and problems, by default of all; returns the exit status."""
    if unknown := set(names) - {*KERNELS, *NUMBERS}:
        allowed = ", ".join((*KERNELS, *NUMBERS))
        print(f"no such kernel or problem: {', '.join(unknown)}; allowed are {allowed}")
        return 2
    kernels = [name for name in names if name in KERNELS]
    numbers = [name for name in names if name in NUMBERS] or NUMBERS
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # read at the first allocation
    loaded = {}

    def load(problem: str) -> dict:
        if problem not in loaded:
            loaded[problem] = load_text(solution_text(problem), f"solution_{problem}")
        return loaded[problem]

    hopper = torch.cuda.get_device_capability() == (9, 0)
    bad = 0
    for run in runs(kernels or (KERNELS if hopper else KERNELS[:2])):
        if run.problem not in numbers:
            continue
        finite = execute(run, load)
        bad += not finite
        print(run, "ok" if finite else "NOT FINITE", flush=True)
    torch.cuda.synchronize()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
