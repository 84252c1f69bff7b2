"""Models that train with solutions as they train with PyTorch: the losses of some hundred steps."""

import pytest
import torch

from tests.gpu_tools import tf32
from tests.sweeps import swept
from tests.training_curves import gan_losses, unet_losses

# Of a reference: the arguments of its Model, what trains it, and that one's other arguments.
KINDS = {
    "dcgan_generator": ({"latent": 32, "width": 16}, gan_losses, {"batch": 16, "latent": 32}),
    "unet": ({"width": 16}, unet_losses, {"batch": 4, "size": 16}),
}


def losses(shelf, name: str, ours: bool, steps: int, device: str) -> torch.Tensor:
    arguments, train, others = KINDS[name]
    model = shelf[name].pair(**arguments)[ours]
    return train(model, steps, device=device, **others)


@pytest.mark.parametrize("name", swept(list(KINDS), (0,)))
def test_on_a_cpu(shelf, name):
    """The same losses but for rounding, and they fall."""
    ours, theirs = (losses(shelf, name, kind, 30, "cpu") for kind in (True, False))
    assert bool(ours.isfinite().all())
    assert float((ours - theirs).abs().max()) <= 2e-3
    if name == "unet":
        assert ours[-5:].mean() < ours[:5].mean()


@pytest.mark.gpu
@pytest.mark.parametrize("name", KINDS)
def test_no_further_from_pytorch_than_its_own_settings(shelf, name):
    """Over 300 steps the curve lies no further from eager's than eager's without TF32 does."""
    with tf32(True):
        ours, theirs = (losses(shelf, name, kind, 300, "cuda") for kind in (True, False))
    with tf32(False):
        strict = losses(shelf, name, False, 300, "cuda")
    assert bool(ours.isfinite().all())
    assert float((ours - theirs).abs().mean()) <= float((strict - theirs).abs().mean())
