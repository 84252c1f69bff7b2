"""Memory of one call: how much it takes, and whether it reads what was never written."""

import contextlib
from pathlib import Path

import torch

from harness.measure import clock


@contextlib.contextmanager
def poisoned_memory(wanted: bool):
    """While wanted, memory that PyTorch hands out is filled with NaN, so that leaving it shows."""
    if not wanted:
        yield
        return
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode("default")


class MemoryMeter:
    """Peak bytes of one call: what is there before (inputs, weights) and what it adds.

    CUDA: PyTorch's allocator. CPU: growth of the process's peak resident size; None where the
    kernel does not let the process reset that peak.
    """

    def __init__(self, device: torch.device, present: list):
        self.device = device
        self.present_bytes = sum(value.nbytes for value in present if torch.is_tensor(value))

    def start(self) -> None:
        """Begin; on the CPU the process's peak is reset."""
        if self.device.type == "cuda":
            clock.release_memory(self.device)
        self.before = 0
        self.go_on()
        if self.device.type == "cpu" and self.before is not None:
            self.before = _status_bytes("VmRSS")

    def go_on(self) -> None:
        """Forget the peak so far; what is held since `start` still counts."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            self.before = None

    def stop(self) -> int | None:
        """The peak since `start` or `go_on`, in bytes."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        if self.before is None:
            return None
        return self.present_bytes + max(_status_bytes("VmHWM") - self.before, 0)


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field} in /proc/self/status")
