"""PyTorch's own error where the operator finds no memory."""

import re as _re

import torch


class _Allocation:
    """The stable ABI does not say why an allocation failed: it is tried again from here, and raises
    what PyTorch raises (torch.OutOfMemoryError, or an earlier kernel's error).
    """

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is RuntimeError:
            failed = _re.search(r"cannot allocate (\d+) bytes on (\S+)", str(error))
            if failed:
                torch.empty(int(failed[1]), dtype=torch.uint8, device=failed[2])
        return False


_ALLOCATION = _Allocation()
