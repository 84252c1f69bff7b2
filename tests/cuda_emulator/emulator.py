"""Solutions whose CUDA source runs on the CPU, thread by thread: the kernels' answers and their
synchronisation can be checked without a GPU.

What is not emulated: time, memory-bank conflicts, the memory model's weaknesses outside of shared
memory, the tensor cores' own rounding of sums.
"""

import contextlib
import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from unittest import mock

import torch.utils.cpp_extension as cpp_extension

from tests.cuda_emulator.translate import HERE, translate

HOPPER, AMPERE, FULL_HOPPER = 0, 1, 2  # runtime.h's devices
# Device code, CUDA's headers too, reads words as other types.
_FLAGS = "-std=c++17 -w -fPIC -shared -march=native -fno-strict-aliasing".split()


def cuda_headers() -> Path | None:
    """The folder of CUDA's headers, beside nvcc; None where there is none."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return None
    said = subprocess.run([nvcc, "--dryrun", "-c", "x.cu"], capture_output=True, text=True).stderr
    for found in re.finditer(r'INCLUDES=.*?"?-I([^"\s]+)', said):
        if (Path(found[1]) / "cuda_fp16.h").is_file():
            return Path(found[1])
    return None


def build(text: str, folder: Path, optimise: str = "-O2") -> Path:
    """Compile the CUDA source of a solution's text for the CPU; the shared library."""
    source = re.search(r'CUDA_SOURCE = r"""(.*?)"""', text, re.DOTALL)[1]
    path = folder / "emulated.cpp"
    path.write_text(translate(source))
    library = path.with_suffix(".so")
    include = [f"-I{HERE}", f"-I{cuda_headers()}"]
    command = ["g++", optimise, *_FLAGS, *include, str(path), "-o", str(library)]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"the emulated kernels do not compile: {run.stderr[:4000]}")
    return library


class Emulated:
    """A solution whose operator calls the emulated kernels for tensors on the CPU."""

    def __init__(self, text: str, library: Path):
        with mock.patch.object(cpp_extension, "load_inline", lambda **_: str(library)):
            self.solution = {"__name__": "emulated"}
            exec(compile(text, "<emulated>", "exec"), self.solution)
        # The CPU kernels want tensors in 16 bits widened; these take them as they are.
        self.solution["_is_low_precision_on_cpu"] = lambda x: False
        self.solution["_raise_failure"] = self._raise_failure
        self._messages = self.solution["_STATUS_MESSAGES"]
        self._library = ctypes.CDLL(str(library))
        self._library.tconv_cuda_error_string.restype = ctypes.c_char_p
        self._library.emulator_races.restype = ctypes.c_int64
        self._library.emulator_launches.restype = ctypes.c_int64
        self._library.emulator_first_races.restype = ctypes.c_char_p
        self._library.emulator_set.argtypes = [ctypes.c_int64] * 4

    @property
    def operator(self):
        """The solution's operator, as it is registered with PyTorch."""
        return self.solution["_operator"]

    @contextlib.contextmanager
    def on(
        self,
        device: int = HOPPER,
        seed: int = 0,
        detect_races: bool = False,
        together: bool = False,
    ):
        """Calls within run on `device`; `seed` shuffles the order in which warps take turns.

        together: cooperative launches are accepted, though blocks run one after the other.
        """
        self._library.emulator_set(device, seed, detect_races, together)
        yield self

    def _raise_failure(self, library, status: int) -> None:
        text = self._library.tconv_cuda_error_string(status).decode()
        raise RuntimeError(self._messages.get(status, text))

    def launches(self) -> int:
        """How many kernels were launched since `on`."""
        return self._library.emulator_launches()

    def races(self) -> list[str]:
        """Descriptions of the first unordered accesses to shared memory since `on`."""
        if not self._library.emulator_races():
            return []
        return self._library.emulator_first_races().decode().splitlines()
