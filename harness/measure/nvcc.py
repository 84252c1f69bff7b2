"""The CUDA compiler that solutions are built with."""

import functools
import os
import re
import shutil
import subprocess


def nvcc() -> str | None:
    """The compiler that PyTorch takes for extensions; None where there is none."""
    from torch.utils.cpp_extension import CUDA_HOME

    beside = [os.path.join(CUDA_HOME, "bin", "nvcc")] if CUDA_HOME else []
    return next((path for path in beside if os.path.isfile(path)), shutil.which("nvcc"))


@functools.cache
def compiler() -> str | None:
    """Version and build of nvcc as it names them, "cuda_13.0.r13.0/compiler.36424714_0"."""
    path = nvcc()
    if path is None:
        return None
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"^Build (\S+)", said.stdout, re.MULTILINE)
    return found[1] if found else None
