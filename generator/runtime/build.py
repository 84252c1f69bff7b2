"""Builds and loads the shared library: C++ always, CUDA where this PyTorch and an nvcc can serve
it.
"""

import ctypes as _ctypes
import fcntl as _fcntl
import hashlib as _hashlib
import os as _os

import torch
import torch.utils.cpp_extension as _cpp_extension

from generator.runtime.problem import _SLUG, CPU_SOURCE, CUDA_SOURCE

_CPU_FLAGS = ("-std=c++17", "-O3", "-fopenmp", "-fvisibility=hidden", "-fno-gnu-unique")
# Always the same architectures, whether or not a GPU is visible: machine code for sm_80 and sm_90a,
# and PTX of
# compute_80 for every other one.
_CUDA_FLAGS = (
    "-std=c++17",
    "-O3",
    "-gencode=arch=compute_80,code=[compute_80,sm_80]",
    "-gencode=arch=compute_90a,code=sm_90a",
    "-Xcompiler=-fvisibility=hidden,-fno-gnu-unique",
    # Build time: architectures side by side, and the functions of each over all cores.
    "--threads=2",
    "--split-compile=0",
    # PyTorch's flags switch the arithmetic types' own conversions off; these sources use them.
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
)
_LINK_FLAGS = ("-fopenmp",)


def _can_build_cuda() -> bool:
    home = _cpp_extension.CUDA_HOME
    if torch.version.cuda is None or home is None:
        return False
    return _os.path.isfile(_os.path.join(home, "bin", "nvcc"))


def _load_library():
    """Builds once per source and build directory (TORCH_EXTENSIONS_DIR), and loads the result.

    Raises RuntimeError with the compiler's output where the build fails.
    """
    with_cuda = _can_build_cuda()
    parts = [CPU_SOURCE, *_CPU_FLAGS, *_LINK_FLAGS]
    if with_cuda:
        parts += [CUDA_SOURCE, *_CUDA_FLAGS, torch.version.cuda]
    digest = _hashlib.sha256("\0".join(parts).encode()).hexdigest()
    name = f"tconv_{_SLUG}_{digest[:12]}"
    root = _os.environ.get("TORCH_EXTENSIONS_DIR") or _cpp_extension.get_default_build_root()
    directory = _os.path.join(root, name)
    _os.makedirs(directory, exist_ok=True)
    # The kernel drops this lock when its holder dies, so a `lock` file seen while holding it was
    # left behind by a
    # build that was killed; PyTorch would wait for it for ever.
    with open(_os.path.join(directory, "flock"), "w") as guard:
        _fcntl.flock(guard, _fcntl.LOCK_EX)
        leftover = _os.path.join(directory, "lock")
        if _os.path.exists(leftover):
            _os.unlink(leftover)
        path = _cpp_extension.load_inline(
            name=name,
            cpp_sources=[CPU_SOURCE],
            cuda_sources=[CUDA_SOURCE] if with_cuda else None,
            extra_cflags=list(_CPU_FLAGS),
            extra_cuda_cflags=list(_CUDA_FLAGS),
            extra_ldflags=list(_LINK_FLAGS),
            build_directory=directory,
            with_cuda=with_cuda,
            is_python_module=False,
            no_implicit_headers=True,
        )
    library = _ctypes.CDLL(path)
    for device in ("cpu", "cuda") if with_cuda else ("cpu",):
        for suffix in ("workspace_bytes", "run"):
            function = getattr(library, f"tconv_{device}_{suffix}")
            function.restype = _ctypes.c_int64
            function.argtypes = [_ctypes.c_void_p]
    if with_cuda:
        library.tconv_cuda_error_string.restype = _ctypes.c_char_p
        library.tconv_cuda_error_string.argtypes = [_ctypes.c_int64]
    library.has_cuda = with_cuda
    return library
