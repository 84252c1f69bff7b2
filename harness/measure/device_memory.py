"""How much memory of the GPU the solution's processes hold, as the harness sees it."""

import torch

from harness.errors import Rejected

_MOST = 0.9  # of what was free at the start
_MUCH = 0.5  # enough to be blamed when the harness itself runs out of it


class DeviceMemory:
    """Watches a GPU that only the harness and one solution use; on the CPU there is nothing to see.

    What the solution holds is what has gone since the start and is not the harness's own. It does
    not matter how it was allocated.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.at_start = self._within_reach()

    def _within_reach(self) -> int:
        if self.device.type != "cuda":
            return 0
        return torch.cuda.mem_get_info(self.device)[0] + torch.cuda.memory_reserved(self.device)

    def held(self) -> int:
        """Bytes that the solution's processes hold."""
        return max(0, self.at_start - self._within_reach())

    def require_room(self) -> None:
        """Raise Rejected when the solution holds more than nine tenths of what there was."""
        self._require_at_most(_MOST)

    def blame(self) -> None:
        """The harness has run out of device memory: raise Rejected if the solution holds most."""
        self._require_at_most(_MUCH)

    def _require_at_most(self, share: float) -> None:
        held = self.held()
        if held > share * self.at_start:
            raise Rejected(
                "out_of_memory",
                f"the solution's processes hold {held >> 20} MiB of the device's memory, of "
                f"{self.at_start >> 20} MiB that were free",
            )
