"""Which way a call takes: straight to the kernels, through autograd, or as an operator that
compilers see.
"""

import torch
import torch.autograd.forward_ad as _forward_ad


def _wants_autograd(*tensors) -> bool:
    """Whether a gradient or a transform of torch.func looks on."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return torch._C._are_functorch_transforms_active() or _forward_ad._current_level >= 0
