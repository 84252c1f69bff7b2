"""fp16 and bf16 on the CPU: computed in fp32, rounded once at the end."""

import torch


def _is_low_precision_on_cpu(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.float16, torch.bfloat16) and tensor.device.type == "cpu"


def _widen(tensor):
    return None if tensor is None else tensor.to(torch.float32)


def _narrow(tensor, dtype: torch.dtype):
    return tensor if tensor is None or tensor.dtype == dtype else tensor.to(dtype)
