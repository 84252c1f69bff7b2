"""Builds and loads the shared library: C++ always, CUDA where this PyTorch and an nvcc can serve
it.
"""

import fcntl as _fcntl
import hashlib as _hashlib
import os as _os
import re as _re
import shlex as _shlex
import shutil as _shutil
import tempfile as _tempfile

import torch
import torch.utils.cpp_extension as _cpp_extension

from generator.runtime.generated import _DIGEST, _SLUG, CPU_SOURCE, CUDA_SOURCE, OPERATOR_SOURCE

_CPU_FLAGS = (
    "-std=c++17",
    # What the kernels' loops need of -O3; its other passes only take build time.
    "-O2",
    "-ftree-vectorize",
    "-fvect-cost-model=dynamic",
    "-fpeel-loops",
    "-fopenmp",
    "-fvisibility=hidden",
    "-fno-gnu-unique",
)
# Always the same architectures, whether or not a GPU is visible: machine code for sm_80 and sm_90a,
# and PTX of
# compute_80 for every other one.
_CUDA_FLAGS = (
    "-std=c++17",
    # Of the host's code alone, whose calls are no slower by it; -O3 takes a second or two more.
    "-O1",
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
# The parts of a CUDA source (kernels_src/cuda/dtype_parts.h): each dtype's type, and in how many
# parts more its Hopper kernels are (hopper_part.cuh). The first one has the functions that the
# operator calls; it hands calls over to those of the other dtypes.
_PARTS = {"fp32": ("float", 2), "fp16": ("__half", 1), "bf16": ("__nv_bfloat16", 1)}
_PART_NAMES = (
    *("tconv", "tconv_cuda_error_string", "tconv_cuda_workspace_bytes", "tconv_cuda_run"),
    "tconv_cuda_hopper",
)


def _short_digest(*parts: str) -> str:
    return _hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


# Of all that the operator does, so that two texts share a name only where they do the same.
_NAMESPACE = f"tconv_{_SLUG}_{_short_digest(_DIGEST, CUDA_SOURCE, CPU_SOURCE, OPERATOR_SOURCE)}"


def _can_build_cuda() -> bool:
    home = _cpp_extension.CUDA_HOME
    if torch.version.cuda is None or home is None:
        return False
    return _os.path.isfile(_os.path.join(home, "bin", "nvcc"))


def _require_compiler() -> None:
    """One sentence instead of a build's log where there is no compiler to be started."""
    compiler = _cpp_extension.get_cxx_compiler()
    if _shutil.which(_shlex.split(compiler)[0]) is None:
        raise RuntimeError(
            "this solution must be compiled once, and there is no C++ compiler: "
            f"{compiler!r} is not on PATH; install g++ or clang++, or name one in CXX"
        )


def _file_digest(path: str) -> str:
    with open(path, "rb") as file:
        return _hashlib.file_digest(file, "sha256").hexdigest()


def _is_whole(library: str) -> bool:
    """Whether a library is there as it was built: beside it lies its digest. A torn one would kill
    the process that loads it.
    """
    digest = library + ".sha256"
    if not (_os.path.isfile(library) and _os.path.isfile(digest)):
        return False
    with open(digest) as file:
        return file.read() == _file_digest(library)


def _parts(cuda_source: str) -> dict[str, str]:
    """The source of each part of a CUDA source, by name."""
    # Of several operators each has names of its own already: _repeated of several_calls.py.
    names = _re.findall(r"^#define tconv\w* (tconv\w*)$", cuda_source, _re.MULTILINE) or _PART_NAMES
    made = {}

    def add(part: str, left_out: list[str], defined: list[str], renamed: list[str]) -> None:
        lines = [f"TCONV_WITHOUT_{dtype.upper()}" for dtype in left_out] + defined
        lines += [f"{name} {name}_{part}" for name in renamed]
        made[part] = "\n".join([*(f"#define {line}" for line in lines), cuda_source])

    for dtype, (storage, num_hopper) in _PARTS.items():
        others = [other for other in _PARTS if other != dtype]
        hopper = [f"TCONV_HOPPER_PARTS {num_hopper}"]
        own = [name for name in names if dtype != "fp32" or "hopper" in name]
        add(dtype, others, hopper, own)
        for index in range(num_hopper):
            this = [f"TCONV_HOPPER_PART {index}", f"TCONV_HOPPER_STORAGE {storage}"]
            add(f"{dtype}_{index}", list(_PARTS), hopper + this, names)
    return made


def _build(
    name: str, scratch: str, cpp_sources: tuple, cuda_source: str, in_parts: bool, **options
):
    """The library's path; `cuda_source` may be empty."""
    if not (in_parts and cuda_source):
        return _cpp_extension.load_inline(
            name=name,
            cpp_sources=list(cpp_sources),
            cuda_sources=[cuda_source] if cuda_source else None,
            build_directory=scratch,
            no_implicit_headers=True,
            **options,
        )
    # load_inline takes one file of CUDA, so files are written here.
    texts = {"main.cpp": "\n".join(cpp_sources)}
    texts |= {f"{part}.cu": text for part, text in _parts(cuda_source).items()}
    for file_name, text in texts.items():
        with open(_os.path.join(scratch, file_name), "w") as file:
            file.write(text)
    paths = [_os.path.join(scratch, file_name) for file_name in texts]
    return _cpp_extension.load(name=name, sources=paths, build_directory=scratch, **options)


def _load_library(
    namespace: str, cpp_sources: tuple, cuda_source: str, in_parts: bool = False
) -> None:
    """Builds once per source, flags, PyTorch and build directory (TORCH_EXTENSIONS_DIR), and loads
    the result, which registers its operators in torch.ops.<namespace>; its name says the sources.
    `in_parts`: the CUDA source compiles in parts, side by side as far as MAX_JOBS lets them.

    Raises RuntimeError with the compiler's output where the build fails, or without a compiler.
    """
    with_cuda = _can_build_cuda()
    cpu_flags = [*_CPU_FLAGS, f"-DTCONV_NAMESPACE={namespace}"]
    parts = [*cpu_flags, *_LINK_FLAGS, torch.__version__]
    if with_cuda:
        cpu_flags += ["-DTCONV_WITH_CUDA", "-DUSE_CUDA"]
        parts += [*_CUDA_FLAGS, torch.version.cuda]
    name = f"{namespace}_{_short_digest(*parts)}"
    root = _os.environ.get("TORCH_EXTENSIONS_DIR") or _cpp_extension.get_default_build_root()
    directory = _os.path.join(root, name)
    library = _os.path.join(directory, f"{name}.so")
    if _is_whole(library):  # nothing is written: the directory may be read-only
        torch.ops.load_library(library)
        return
    _require_compiler()
    _os.makedirs(directory, exist_ok=True)
    # The kernel drops this lock when its holder dies, so a build that was killed blocks nobody.
    with open(_os.path.join(directory, "flock"), "w") as guard:
        _fcntl.flock(guard, _fcntl.LOCK_EX)
        if _is_whole(library):
            torch.ops.load_library(library)
            return
        # Built, and loaded, under a name of its own, then renamed when it is whole.
        with _tempfile.TemporaryDirectory(prefix="build.", dir=directory) as scratch:
            built = _build(
                name,
                scratch,
                cpp_sources,
                cuda_source if with_cuda else "",
                in_parts,
                extra_cflags=cpu_flags,
                extra_cuda_cflags=list(_CUDA_FLAGS),
                extra_ldflags=list(_LINK_FLAGS),
                with_cuda=with_cuda,
                is_python_module=False,
            )
            digest = _os.path.join(scratch, "digest")
            with open(digest, "w") as file:
                file.write(_file_digest(built))
            _os.replace(digest, library + ".sha256")
            _os.replace(built, library)
