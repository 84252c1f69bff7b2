"""A small GAN and a small U-Net, trained as users do: AdamW, clipped gradients; the losses step by
step.
"""

import torch
import torch.nn.functional as F
from torch import nn


def _step(loss: torch.Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.5, 0.999))


def gan_losses(
    generator: nn.Module, steps: int, batch: int, latent: int, device, seed: int = 1
) -> torch.Tensor:
    """Of the generator [steps], whose images have 3 channels of 16 x 16; what is real are waves."""
    torch.manual_seed(seed)
    judge = nn.Sequential(
        *(nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 64, 4, 2, 1)),
        *(nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(64 * 16, 1)),
    ).to(device)
    generator = generator.to(device).train()
    optimizers = _adamw(generator), _adamw(judge)
    draws, losses = torch.Generator().manual_seed(seed + 1), []
    places = torch.arange(16.0) / 16
    for _ in range(steps):
        phases = torch.rand(batch, 3, 1, 1, generator=draws)
        real = torch.sin(6.2832 * (places.view(16, 1) + 2 * places + phases)).to(device)
        fake = generator(torch.randn(batch, latent, 1, 1, generator=draws).to(device))
        wrong = F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()
        _step(wrong, judge, optimizers[1])
        loss = F.softplus(-judge(fake)).mean()
        _step(loss, generator, optimizers[0])
        losses.append(loss.detach())
    return torch.stack(losses).cpu()


def unet_losses(
    model: nn.Module, steps: int, batch: int, size: int, device, seed: int = 1
) -> torch.Tensor:
    """[steps]: it marks the brighter pixels of noisy images [batch, 3, size, size]."""
    model = model.to(device).train()
    optimizer = _adamw(model)
    draws, losses = torch.Generator().manual_seed(seed + 1), []
    for _ in range(steps):
        x = torch.randn(batch, 3, size, size, generator=draws)
        marks = (F.avg_pool2d(x.mean(1, keepdim=True), 3, 1, 1)[:, 0] > 0).long()
        loss = F.cross_entropy(model(x.to(device)), marks.to(device))
        _step(loss, model, optimizer)
        losses.append(loss.detach())
    return torch.stack(losses).cpu()
