"""The device of an evaluation, its precision switches, and what it is called."""

import contextlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from harness.errors import EnvironmentUnfit, UsageError
from harness.measure.nvcc import compiler


def resolve_device(text: str | None) -> torch.device:
    """The device for "cpu", "cuda" or "cuda:1"; None means CUDA if there is one, else the CPU."""
    if text is None:
        text = "cuda" if torch.cuda.is_available() else "cpu"
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", text)
    if not match:
        raise UsageError(f"--device {text!r}: allowed are cpu, cuda and cuda:<index>")
    if text == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = int(match[1] or 0)
    if index >= count:
        raise EnvironmentUnfit(f"--device {text!r}: PyTorch sees {count} CUDA device(s) here")
    return torch.device("cuda", index)


@dataclass(frozen=True)
class Slot:
    """A place where one evaluation at a time runs: its --device and its extra environment."""

    name: str
    device: str
    environment: dict[str, str] = field(default_factory=dict)


def slots(text: str | None) -> list[Slot]:
    """One slot for each GPU ("cuda" or None), for the one GPU of "cuda:1", or for the CPU.

    A GPU's slot shows its processes that GPU alone. Raises as `resolve_device` does.
    """
    device = resolve_device(text)
    if device.type == "cpu":
        return [Slot("cpu", "cpu")]
    one = text is not None and ":" in text
    indices = [device.index] if one else range(torch.cuda.device_count())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else []
    return [
        Slot(f"cuda:{i}", "cuda:0", {"CUDA_VISIBLE_DEVICES": names[i] if names else str(i)})
        for i in indices
    ]


def architecture_list(device: torch.device) -> str:
    """What TORCH_CUDA_ARCH_LIST has to be for a build without the GPU to equal one with it."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"{major}.{minor}+PTX"


def device_name(device: torch.device) -> str:
    """The marketing name of the GPU or CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def device_slug(device: torch.device) -> str:
    """Name of the folder under results/: "nvidia-h200", "nvidia-h100" (without the size of its
    memory), "cpu".
    """
    if device.type == "cpu":
        return "cpu"
    return slug_of(device_name(device))


def slug_of(name: str) -> str:
    """The slug of a GPU's name."""
    without_memory = re.sub(r"\b\d+gb\b( hbm\w*)?", "", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", without_memory).strip("-")


@contextlib.contextmanager
def tf32(setting: str) -> Iterator[None]:
    """Set PyTorch's TF32 switches to "allow" or "forbid" and put them back afterwards.

    Both switches are set, for convolutions and for matrix products, through the interface that
    every supported PyTorch has.
    """
    convolution, product = torch.backends.cudnn, torch.backends.cuda.matmul
    before = convolution.allow_tf32, product.allow_tf32
    convolution.allow_tf32 = product.allow_tf32 = setting == "allow"
    try:
        yield
    finally:
        convolution.allow_tf32, product.allow_tf32 = before


def default_tf32(device: torch.device) -> str:
    """PyTorch's own default for convolutions on CUDA; a CPU has no TF32."""
    return "allow" if device.type == "cuda" else "forbid"


def precision_name(device: torch.device, dtype: torch.dtype, tf32_setting: str) -> str:
    """The precision in which products are formed: float64, float32, tf32, float16 or bfloat16."""
    name = str(dtype).removeprefix("torch.")
    if name == "float32" and device.type == "cuda" and tf32_setting == "allow":
        return "tf32" if torch.cuda.get_device_capability(device) >= (8, 0) else "float32"
    return name


def require_build_tools(source: str, device: torch.device) -> None:
    """Raise EnvironmentUnfit when a solution builds an extension and the tools for it are missing.

    A C++ compiler and ninja for any extension, nvcc for one with CUDA sources on a CUDA device.
    """
    if "cpp_extension" not in source:
        return
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    compiler = os.environ.get("CXX", "c++")
    missing = []
    if not (shutil.which(compiler, path=path) or shutil.which("g++", path=path)):
        missing.append(f"C++ compiler ({compiler})")
    if not shutil.which("ninja", path=path):
        missing.append("ninja")
    if device.type == "cuda" and "cuda_sources" in source:
        from torch.utils.cpp_extension import CUDA_HOME

        if CUDA_HOME is None:
            missing.append("CUDA toolkit (nvcc)")
    if missing:
        raise EnvironmentUnfit(
            f"the solution builds an extension, and this machine has no {' and no '.join(missing)}"
        )


def environment(device: torch.device) -> dict:
    """Versions and hardware for the record."""
    facts = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": device_name(torch.device("cpu")),
        "cpu_threads": torch.get_num_threads(),
        "gpu": None,
        "driver": None,
        "cuda": torch.version.cuda,
        "nvcc": None,
        "cudnn": None,
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["cudnn"] = torch.backends.cudnn.version()
        facts["driver"] = _driver_version()
        facts["nvcc"] = compiler()
    return facts


def _driver_version() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.split()
    return lines[0] if lines else None
