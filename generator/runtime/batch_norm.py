"""What BatchNorm2d keeps between calls, updated as PyTorch does."""

import torch


def _update_running_statistics(norm, batch_mean, batch_var, count) -> None:
    """Moves the running statistics of `norm` towards a batch of `count` values per channel.

    batch_var is the biased variance; the running one is unbiased. momentum None means the
    cumulative average, 1 / num_batches_tracked. An empty batch changes nothing.
    """
    if count == 0:
        return
    with torch.no_grad():
        # As PyTorch's own update, this one is no change that autograd must know of.
        compiling = torch.compiler.is_compiling()
        running = [s if compiling else s.data for s in (norm.running_mean, norm.running_var)]
        batch = [batch_mean, batch_var * (count / (count - 1))]
        batch = [new.to(old.dtype) for new, old in zip(batch, running, strict=True)]
        if norm.momentum is not None:
            torch._foreach_lerp_(running, batch, norm.momentum)  # one launch for both
            return
        for old, new in zip(running, batch, strict=True):
            old.lerp_(new, 1.0 / norm.num_batches_tracked.to(old.dtype))
