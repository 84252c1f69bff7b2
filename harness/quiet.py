"""Whether a GPU works for somebody else, found out from outside: fixed work then takes longer."""

import time

import torch

from harness import clock
from harness.errors import Rejected

_BYTES, _PASSES = 64 << 20, 50
_SLOWER = 1.5  # two processes that share a GPU take turns: twice the time
_TRIES, _PAUSE_S = 12, 0.05


class QuietProbe:
    """Knows how long some copying takes while nothing of a solution runs; no-op on the CPU.

    Stopping a solution's processes does not stop what they have queued on the GPU, and the driver's
    own figures are too coarse to show it.
    """

    def __init__(self, device: torch.device):
        self.device = device
        if device.type == "cuda":
            self._buffer = torch.zeros(_BYTES // 4, device=device)
            self.alone_ms = min(self.milliseconds() for _ in range(6))

    def milliseconds(self) -> float:
        """How long the fixed work takes now."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(_PASSES):
            self._buffer.add_(1.0)
        end.record()
        clock.synchronize(self.device)
        return begin.elapsed_time(end)

    def require_quiet(self) -> None:
        """Raise Rejected when the GPU is busy although nothing has been asked of the solution."""
        if self.device.type != "cuda":
            return
        best = float("inf")
        for _ in range(_TRIES):
            best = min(best, self.milliseconds())
            if best <= _SLOWER * self.alone_ms:
                return
            time.sleep(_PAUSE_S)
        raise Rejected(
            "background_work",
            f"the GPU works on although nothing was asked for: {best:.3g} ms for what takes "
            f"{self.alone_ms:.3g} ms on an idle one",
        )
