"""How far a reference's gradient jumps where rounding decides which way it goes.

A maximum, a clamp or a ReLU passes its gradient on or not by a comparison. Where the values that it
compares differ by less than any fp32 sum rounds, an honest solution may decide otherwise than
float64, and one decision may be most of a gradient.
"""

from dataclasses import replace

import torch

from harness.judge.cases import Case, generator
from harness.judge.check import rms
from harness.judge.truth import Expected, exact_gradients

SAMPLES = 8
_NEAR = 4.0  # times the relative bound: further than an honest solution's rounding
_JUMP = 50.0  # times what a smooth gradient could change by then


def allowed_by_jumps(
    answer: Expected, index: int, error: float, relative: float, size: float
) -> float:
    """The largest root-mean-square error that gradient `index` may have because it jumps, in its
    own unit; 0 where it does not.

    The true gradient is computed at up to SAMPLES points near the case's, inputs and weights each
    changed by normal noise of four times `relative`, the rounding bound. A change of more than 50
    times as much of `size` (the gradient's own rms and its layer's) is a jump, and twice the
    largest is allowed. It ends as soon as `error` is.
    """
    allowed = 0.0
    for sample in range(SAMPLES):
        near = exact_gradients(answer, _moved(answer.case, _NEAR * relative, sample))[index]
        change = rms(near, answer.gradients[index])
        if change > _JUMP * _NEAR * relative * size:
            allowed = max(allowed, 2 * change)
        if error <= allowed:
            break
    return allowed


def _moved(case: Case, noise: float, sample: int) -> Case:
    """The case in float64, every floating-point number times one plus normal noise."""

    def moved(value):
        if not (torch.is_tensor(value) and value.is_floating_point()):
            return value
        source = generator(value.device, case.seed + 100 + sample)
        draw = torch.randn(value.shape, generator=source, device=value.device, dtype=torch.float64)
        return value.double() * (1 + noise * draw)

    state = {name: moved(value) for name, value in case.state.items()}
    return replace(case, inputs=[moved(value) for value in case.inputs], state=state)
