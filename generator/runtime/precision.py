"""PyTorch's switch for TF32 in convolutions."""

import torch

_SWITCHES = torch.backends.cudnn.conv  # looked up once: each lookup costs as much as reading it


def _tf32_allowed() -> bool:
    """Whether fp32 convolutions may round operands to TF32, read at every call.

    This reading is what cuDNN convolutions obey: PyTorch resolves the old switch (cudnn.allow_tf32)
    and the new ones (cudnn.conv, cudnn, then torch.backends) into it, and it never raises, however
    they were set.
    """
    return _SWITCHES.fp32_precision == "tf32"
