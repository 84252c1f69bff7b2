"""Models that train with solutions as they train with PyTorch: the losses of some hundred steps."""

import json
import math
import os
import statistics
from pathlib import Path

import pytest
import torch

from tests.gpu_tools import tf32
from tests.sweeps import swept
from tests.training_curves import gan_losses, unet_losses

SEEDS = 5
# Of a reference: the arguments of its Model, what trains it, and that one's other arguments.
KINDS = {
    "dcgan_generator": ({"latent": 32, "width": 16}, gan_losses, {"batch": 16, "latent": 32}),
    "unet": ({"width": 16}, unet_losses, {"batch": 4, "size": 16}),
}


def losses(
    shelf, name: str, ours: bool, steps: int, device: str, seed: int = 1, **options
) -> torch.Tensor:
    arguments, train, others = KINDS[name]
    model = shelf[name].pair(seed=seed, **arguments)[ours]
    return train(model, steps, device=device, seed=seed, **others, **options)


@pytest.mark.parametrize("name", swept(list(KINDS), ()))
def test_on_a_cpu(shelf, name):
    """The same losses but for rounding, and they fall."""
    ours, theirs = (losses(shelf, name, kind, 30, "cpu") for kind in (True, False))
    assert bool(ours.isfinite().all())
    assert float((ours - theirs).abs().max()) <= 2e-3
    if name == "unet":
        assert ours[-5:].mean() < ours[:5].mean()


@pytest.mark.gpu
@pytest.mark.parametrize("name", KINDS)
def test_no_further_from_pytorch_than_its_own_settings(shelf, name, record_curves):
    """Over 300 steps ours, with TF32, lies no further from eager's curve without TF32 than eager's
    own with TF32 does. What rounding does to such runs grows and is chance in each, so five seeds
    are compared: by the mean of the distances' logarithms, up to two of its standard errors, and
    never beyond twice eager's distance, however much they scatter.
    """
    ratios = []
    for seed in range(1, SEEDS + 1):
        with tf32(True):
            ours, theirs = (losses(shelf, name, kind, 300, "cuda", seed) for kind in (True, False))
        with tf32(False):
            strict = losses(shelf, name, False, 300, "cuda", seed)
        assert bool(ours.isfinite().all())
        distances = [float((curve - strict).abs().mean()) for curve in (ours, theirs)]
        ratios.append(math.log(distances[0] / distances[1]))
        record_curves(name, seed, {"ours": ours, "eager": theirs, "eager without TF32": strict})
    error = statistics.stdev(ratios) / SEEDS**0.5
    assert statistics.mean(ratios) <= min(2 * error, math.log(2)), [math.exp(r) for r in ratios]


@pytest.fixture
def record_curves():
    """Keeps the losses for a picture, in the folder that TCONV_CURVES names, if it does."""
    folder = os.environ.get("TCONV_CURVES")

    def record(name: str, seed: int, curves: dict[str, torch.Tensor]) -> None:
        if folder:
            path = Path(folder) / f"{name}_{seed}.json"
            path.write_text(json.dumps({key: c.tolist() for key, c in curves.items()}))

    return record
