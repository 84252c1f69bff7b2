"""What a solution shares with everybody in its process and must leave as it is.

The readers are bound here, before any solution is imported.
"""

import hashlib
import random
import sys

import torch

_DENORMAL = torch.full((1,), 2.0**-140, device="cpu")


def _flushes_denormals(add=torch.add) -> bool:
    return float(add(_DENORMAL, _DENORMAL)) == 0.0


_FLAGS = {
    "grad mode": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "anomaly mode": torch.is_anomaly_enabled,
    "default dtype": torch.get_default_dtype,
    "default device": torch.get_default_device,
    "deterministic mode": torch.get_deterministic_debug_mode,
    "filling of fresh memory": lambda: torch.utils.deterministic.fill_uninitialized_memory,
    "number of threads": torch.get_num_threads,
    "flushing of denormals": _flushes_denormals,
}
_CUDA_FLAGS = {
    "current device": torch.cuda.current_device,
    "current stream": lambda: torch.cuda.current_stream().cuda_stream,
    "TF32 in convolutions": lambda: torch.backends.cudnn.allow_tf32,
    "TF32 in matrix products": lambda: torch.backends.cuda.matmul.allow_tf32,
}


def flags(device: torch.device) -> dict:
    """PyTorch's process-wide switches; those of CUDA only on CUDA."""
    readers = {**_FLAGS, **_CUDA_FLAGS} if device.type == "cuda" else _FLAGS
    return {name: str(read()) for name, read in readers.items()}


def random_states(
    device: torch.device, cpu=torch.get_rng_state, cuda=torch.cuda.get_rng_state
) -> dict:
    """A digest of every global random state: PyTorch's, Python's, NumPy's where it is loaded."""
    states = {"PyTorch": cpu().numpy().tobytes(), "Python": repr(random.getstate()).encode()}
    if device.type == "cuda":
        states["CUDA"] = cuda(device).numpy().tobytes()
    if "numpy" in sys.modules:
        states["NumPy"] = repr(sys.modules["numpy"].random.get_state(legacy=False)).encode()
    return {name: hashlib.sha256(data).hexdigest() for name, data in states.items()}


def changed(before: dict, after: dict) -> list[str]:
    """Names of what differs, as far as both know it."""
    return [name for name in before if name in after and before[name] != after[name]]
