"""Errors of a random layer's output and gradients, and of PyTorch's, against float64."""

import contextlib
import dataclasses

import torch
import torch.nn.functional as F

from tests.gpu_tools import tf32
from tests.random_layers import RandomLayer
from tests.solution_tools import Case, bound_factor

_MOST_COLUMNS = 2**26  # elements of the float64 reference's largest intermediate result, about
_NAMES = ("output", "gradient of x", "gradient of weight", "gradient of bias")


def exact_conv(case: Case, x, weight, bias) -> torch.Tensor:
    """The layer in the dtype of its operands, here float64: one product of matrices, whose columns
    are added up where they belong. No cuDNN, and no loop over groups or, for small samples, over
    samples, which PyTorch's own needs without cuDNN.
    """
    batch, groups = x.shape[0], case.groups
    columns_per_sample = weight[0].numel() * groups * x[0, 0].numel()
    at_once = max(1, _MOST_COLUMNS // columns_per_sample)
    by_group = weight.unflatten(0, (groups, -1)).flatten(2).transpose(1, 2)
    whole = tuple(
        (n - 1) * s + d * (k - 1) + 1
        for n, s, d, k in zip(case.size, case.stride, case.dilation, case.kernel, strict=True)
    )
    parts = []
    for samples in x.split(at_once):
        columns = by_group @ samples.unflatten(1, (groups, -1)).flatten(3)
        columns = columns.reshape(len(samples), -1, columns.shape[-1])
        parts.append(F.fold(columns, whole, case.kernel, case.dilation, 0, case.stride))
    y = torch.cat(parts) if batch > at_once else parts[0]
    (above, left), (below, right) = case.padding, case.output_padding
    y = F.pad(y, (-left, right - left, -above, below - above))
    return y if bias is None else y + bias[:, None, None]


@dataclasses.dataclass
class Errors:
    """The largest of |y - exact| / allowed for the output and, where the layer asks for them, the
    gradients of x, weight and bias; ours, then PyTorch's.
    """

    layer: RandomLayer
    ours: torch.Tensor
    torch: torch.Tensor  # NaN where PyTorch itself refuses

    def failures(self) -> list[str]:
        """What is wrong, in words; empty where nothing is.

        Outputs obey the bound. So do gradients on CUDA; on a CPU they are PyTorch's own
        convolution_backward, whose algorithms (Winograd, FFT) obey none: where PyTorch's own
        gradient oversteps it too, ours may err twice as much.
        """
        found = []
        for index, (ours, torchs) in enumerate(
            zip(self.ours.tolist(), self.torch.tolist(), strict=True)
        ):
            allowed = 1.0 if index == 0 or not torchs > 1.0 else 2 * torchs
            if not ours <= allowed:  # NaN too
                found.append(
                    f"{_NAMES[index]} {ours:.3g} of what is allowed (PyTorch {torchs:.3g})"
                )
        return found


def errors_of(operator, layer: RandomLayer, device="cpu", *, rounds=False, compare=True) -> Errors:
    """The layer's errors, on `device`, without waiting for them.

    operator: as (x, weight, bias, stride, padding, output_padding, dilation, groups).
    rounds: operands in fp32 are rounded to TF32 where the layer allows it, as on CUDA.
    compare: PyTorch's errors too. Raises AssertionError for a wrong shape, dtype or layout.
    """
    case = layer.case
    operands = layer.tensors(device)
    with tf32(layer.allow_tf32):
        ours = _outputs(lambda *o: operator(*o, *case.parameters), operands, layer)
        theirs = None
        if compare:
            with contextlib.suppress(RuntimeError):  # where it has no algorithm
                theirs = _outputs(lambda *o: _pytorch(case, *o), operands, layer)
    wide = [None if t is None else t.double() for t in operands]
    exact = _outputs(lambda *o: exact_conv(case, *o), wide, layer)
    sizes = [None if t is None else t.abs() for t in wide]
    absolute = _outputs(lambda *o: exact_conv(case, *o), sizes, layer, positive=True)
    rounded = rounds and layer.allow_tf32 and layer.dtype == torch.float32
    allowed = [
        bound_factor(count, layer.dtype, layer.dtype, tf32=rounded) * a
        + torch.finfo(layer.dtype).tiny
        for a, count in zip(absolute, _sums(case), strict=False)
    ]
    found = []
    for given in (ours, theirs):
        if given is None:
            found.append(torch.full((len(exact),), float("nan"), dtype=torch.float64))
            continue
        for y, e in zip(given, exact, strict=True):
            assert y.shape == e.shape, f"shape {tuple(y.shape)}, expected {tuple(e.shape)}"
            assert y.dtype == layer.dtype, f"dtype {y.dtype}, expected {layer.dtype}"
        found.append(
            torch.stack(
                [
                    ((y.double() - e).abs() / a).amax()
                    for y, e, a in zip(given, exact, allowed, strict=True)
                ]
            )
        )
    return Errors(layer, *found)


def _pytorch(case: Case, x, weight, bias) -> torch.Tensor:
    return F.conv_transpose2d(
        x, weight, bias, case.stride, case.padding, case.output_padding, case.groups, case.dilation
    )


def _outputs(conv, operands, layer: RandomLayer, positive=False) -> list[torch.Tensor]:
    """[output], or with the gradients of the operands that there are, for one random gradient of
    the output, the same in every call but for its sign.
    """
    if not layer.gradients:
        with torch.no_grad():
            return [conv(*operands)]
    if operands[0].device.type == "cpu" and layer.layout == "channels_last":
        # PyTorch 2.13's own gradient of a strided 1x1 layer's weight overwrites memory on a CPU
        # where x is channels_last and the gradient contiguous (oneDNN): it crashes or never ends,
        # at (seed 77, index 1229, medium) for one.
        operands = [operands[0].contiguous(), *operands[1:]]
    leaves = [None if t is None else t.detach().requires_grad_() for t in operands]
    y = conv(*leaves)
    generator = torch.Generator(y.device).manual_seed(layer.index)
    grad = torch.randn(y.shape, generator=generator, device=y.device).to(layer.dtype).to(y.dtype)
    wanted = [t for t in leaves if t is not None]
    return [y.detach(), *torch.autograd.grad(y, wanted, grad.abs() if positive else grad)]


def _sums(case: Case) -> tuple[int, int, int, int]:
    """How many products are summed, at most, into an output and into each gradient."""
    taps = case.kernel[0] * case.kernel[1]
    inputs = case.batch * case.size[0] * case.size[1]
    outputs = case.batch * case.output_size[0] * case.output_size[1]
    return case.reduction, case.out_channels // case.groups * taps, inputs, outputs
