"""The polynomial of kernels_src/cuda/branch_free_math.cuh that neither a CPU nor the emulator runs,
as exact numbers: that of 2 Phi(-a) in the gradients through chains.
"""

import re

import torch

from generator.sources import KERNELS


def test_normal_cdf_beside_the_density():
    """2 Phi(-a) = e^(-a^2 / 2) t P(t), within the relative error that the source states."""
    text = (KERNELS / "cuda" / "branch_free_math.cuh").read_text()
    text = text[text.index("#ifdef TCONV_GRADIENT_CHAINS") : text.index("#else")]
    number = r"(-?\d+\.\d+(?:e-?\d+)?)"
    (slope,) = re.findall(rf"reciprocal\(fmaf\({number}f", text)
    (first,) = re.findall(rf"float p = {number}f;", text)
    others = re.findall(rf"p = fmaf\(p, t, {number}f\);", text)
    stated, below = re.search(r"relative error ([\d.e-]+) for a < (\d+)", text).groups()
    assert len(others) == 7

    a = torch.linspace(0, float(below), 200_001, dtype=torch.float64)
    t = 1 / (1 + float(slope) * a)
    p = torch.full_like(a, float(first))
    for coefficient in others:
        p = p * t + float(coefficient)
    exact = torch.special.erfcx(a / 2**0.5)
    assert float(((t * p - exact) / exact).abs().max()) < float(stated)
