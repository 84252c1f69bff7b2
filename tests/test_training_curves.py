"""Models that train with solutions as they train with PyTorch: the losses of some hundred steps."""

import pytest
import torch

from tests.gpu_tools import tf32
from tests.sweeps import swept
from tests.training_curves import gan_losses, unet_losses

# Of a reference: its options, and what trains it for so many steps on a device.
KINDS = {
    "dcgan_generator": lambda model, steps, latent, device: gan_losses(
        model, steps, 16, latent, device
    ),
    "unet": lambda model, steps, _, device: unet_losses(model, steps, 4, 16, device),
}
OPTIONS = {"dcgan_generator": {"latent": 32, "width": 16}, "unet": {"width": 16}}


def losses(shelf, name: str, ours: bool, steps: int, device: str) -> torch.Tensor:
    model = shelf[name].pair(**OPTIONS[name])[ours]
    return KINDS[name](model, steps, 32, device)


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
