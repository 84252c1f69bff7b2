"""What BatchNorm2d keeps between calls, updated as PyTorch does."""

import torch

from generator.runtime.dispatch import _as_operator, _transformed


def _update_running_statistics(norm, batch_mean, batch_var, count) -> None:
    """Moves the running statistics of `norm` towards a batch of `count` values per channel.

    batch_var is the biased variance; the running one is unbiased. momentum None means the
    cumulative average, 1 / num_batches_tracked. An empty batch changes nothing.
    """
    if count == 0:
        return
    with torch.no_grad():
        # As PyTorch's own update, this one is no change that autograd must know of.
        compiling = _as_operator() or _transformed()
        running = [s if compiling else s.data for s in (norm.running_mean, norm.running_var)]
        batch = [batch_mean, batch_var * (count / (count - 1))]
        batch = [new.to(old.dtype) for new, old in zip(batch, running, strict=True)]
        if norm.momentum is not None and not _transformed():
            torch._foreach_lerp_(running, batch, norm.momentum)  # one launch for both
            return
        for old, new in zip(running, batch, strict=True):
            weight = norm.momentum
            if weight is None:
                weight = 1.0 / norm.num_batches_tracked.to(old.dtype)
            old.lerp_(new, weight)
