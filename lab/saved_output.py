"""2/19's training step with the convolution's output computed again by backward, as the solution
does it, and with the output saved by a forward of two passes: ms and peak bytes on this GPU.

python -m lab.saved_output
"""

import statistics
from collections.abc import Callable

import torch

from tests.solution_tools import ROOT, environment, load_text

ROUNDS, CALLS = 12, 4
PROBLEM = "level2/19_conv_transpose_gelu_group_norm.py"


def ways(dtype: torch.dtype) -> tuple[dict[str, Callable[[], object]], int]:
    """(a step each, bytes of the output that lies there in both); both have the same gradients but
    for rounding, which is checked here.
    """
    reference = load_text((ROOT / "harness/problems" / PROBLEM).read_text())
    solution = load_text((ROOT / "solutions" / PROBLEM).read_text())
    torch.manual_seed(0)
    model = solution["ModelNew"](*reference["get_init_inputs"]()).to("cuda", dtype)
    x = reference["get_inputs"]()[0].to("cuda", dtype).requires_grad_()
    layer, norm = model.conv_transpose, model.group_norm
    tensors = x, layer.weight, layer.bias
    conv = solution["_Conv"](*solution["_make_conv"]((1, 1), (0, 0), (0, 0), (1, 1), 1))
    with torch.no_grad():
        value = torch.nn.functional.conv_transpose2d(*tensors)
        grad = torch.randn_like(value)

    def again():
        return torch.autograd.grad(model(x), [*tensors, norm.weight, norm.bias], grad)

    @torch.no_grad()
    def saved():
        # Convolution, then the rest: its output is at hand.
        with environment(TCONV_KERNEL="hopper"):
            model(x)
        of_norm = norm.weight, norm.num_groups, norm.eps
        found, of_norm, _ = solution["_kernel_chained_gradients"](
            *(grad, tensors, conv, (True,) * 3, of_norm, (True,) * 2, []),
            *(solution["_CHAIN_NUMBER"], value),
        )
        return *found, *of_norm

    for mine, other in zip(again(), saved(), strict=True):
        distance = (mine.double() - other.double()).norm() / other.double().norm()
        assert float(distance) < 2e-2, distance
    return {"computed again": again, "saved": saved}, value.nbytes


def measured(ways: dict[str, Callable[[], object]]) -> dict[str, tuple[float, int]]:
    """(median ms of a step, peak bytes), in turns."""
    times, peaks = {name: [] for name in ways}, {}
    for _ in range(ROUNDS):
        for name, step in ways.items():
            step()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(CALLS):
                step()
            end.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(end) / CALLS)
            peaks[name] = torch.cuda.max_memory_allocated()
    return {name: (statistics.median(times[name]), peaks[name]) for name in ways}


if __name__ == "__main__":
    for dtype in (torch.float32, torch.float16):
        steps, held = ways(dtype)
        for name, (ms, peak) in measured(steps).items():
            own = peak if name == "saved" else peak - held
            print(f"{dtype} {name}: {ms:.2f} ms, {own / 1e9:.2f} GB")
