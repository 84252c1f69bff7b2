"""Whether a GPU works for somebody else, found out from outside: fixed work then takes longer."""

import math
import time

import torch

from harness.errors import Rejected
from harness.measure import clock

_BYTES = 64 << 20
_LEAST_MS = 30.0  # much longer than the time slices by which processes share a GPU
_WARM_UP_S = 0.2
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
            self._passes = 100
            deadline = time.monotonic() + _WARM_UP_S
            while time.monotonic() < deadline:  # until the clocks have risen
                one_ms = self.milliseconds() / self._passes
            self._passes = math.ceil(_LEAST_MS / one_ms)
            self.alone_ms = min(self.milliseconds() for _ in range(3))

    def milliseconds(self) -> float:
        """How long the fixed work takes now."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(self._passes):
            self._buffer.add_(1.0)
        end.record()
        clock.synchronize(self.device)
        return begin.elapsed_time(end)

    def require_quiet(self) -> None:
        """Raise Rejected when the GPU is busy although nothing has been asked of the solution."""
        if not self.is_quiet():
            raise Rejected(
                "background_work",
                "the GPU works on although nothing was asked for: what takes "
                f"{self.alone_ms:.3g} ms on an idle one takes {_SLOWER:g} times as long",
            )

    def is_quiet(self) -> bool:
        """Whether the fixed work, in the best of some tries, takes as long as ever."""
        if self.device.type != "cuda":
            return True
        for _ in range(_TRIES):
            if self.milliseconds() <= _SLOWER * self.alone_ms:
                return True
            time.sleep(_PAUSE_S)
        return False
