"""Solutions whose CUDA source runs on the CPU, thread by thread: the kernels' answers and their
synchronisation can be checked without a GPU.

What is not emulated: time, memory-bank conflicts, the memory model's weaknesses outside of shared
memory, the tensor cores' own rounding of sums.
"""

import contextlib
import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from unittest import mock

import torch
import torch.utils.cpp_extension as cpp_extension

from generator.sources import KERNELS, gradient_call_header, gradient_operator, resolve
from tests.cuda_emulator.translate import HERE, translate

HOPPER, AMPERE, FULL_HOPPER, TURING = range(4)  # runtime.h's devices
# Device code, CUDA's headers too, reads words as other types.
_FLAGS = "-std=c++17 -w -fPIC -march=native -fno-strict-aliasing -fno-gnu-unique".split()
# What the operator calls, in place of the CPU half: the emulated CUDA half (translate.py).
_HALF = """
#define TCONV_EXPORT extern "C"
TCONV_EXPORT int64_t tconv_cpu_computes_in(int64_t dtype);
TCONV_EXPORT const char* tconv_cpu_error_string(int64_t status);
TCONV_EXPORT int64_t tconv_cpu_workspace_bytes(const void* call);
TCONV_EXPORT int64_t tconv_cpu_run(const void* call);
"""
# Memory is allocated full of ones, and none on the host's side.
# In the place of generated_tail.h, for an operator with all there are.
_EVERY_TAIL = "TailKind::kCentredBatchNorm;"
_ALLOCATIONS = {
    """           device.name());
  return Tensor(handle);
""": """           device.name());
  void* data = nullptr;
  aoti_torch_get_data_ptr(handle, &data);
  if (elements > 0 && data != nullptr)
    std::memset(data, 0xFF, elements * static_cast<int64_t>(aoti_torch_dtype_element_size(dtype)));
  return Tensor(handle);
""",
    "device.is_cpu() && bytes <= kSmallWorkspace": "false",
}
_loaded: dict[str, ctypes.CDLL] = {}  # by the operator's namespace


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


def _compile(command: list, what: str) -> None:
    """By g++, into the last argument; what TCONV_EMULATED_DIR has of the same arguments and files
    is taken from there, and what it lacks is left there, for other sessions on this machine.
    """
    *arguments, target = command
    kept = _kept(arguments)
    if kept is not None and kept.is_file():
        shutil.copyfile(kept, target)
        return
    run = subprocess.run(["g++", *map(str, command)], capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"{what} does not compile: {run.stderr[:4000]}")
    if kept is not None:  # whole, or not there: sessions side by side build the same
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
            os.replace(shutil.copy(target, scratch), kept)


def _kept(arguments: list) -> Path | None:
    """Where the result of compiling by these is kept: of files their contents count."""
    folder = os.environ.get("TCONV_EMULATED_DIR")
    if not folder:
        return None
    files = [*sorted(HERE.glob("*.h")), *(a for a in arguments if isinstance(a, Path))]
    words = [str(a) for a in arguments if not isinstance(a, Path)]
    parts = [*(file.read_bytes() for file in files), *(word.encode() for word in words)]
    digests = b"".join(hashlib.sha256(part).digest() for part in parts)
    return Path(folder) / hashlib.sha256(digests).hexdigest()


def build(text: str, folder: Path, optimise: str = "-O2") -> Path:
    """Compile the CUDA source of a solution's text for the CPU; the object file."""
    source = re.search(r'CUDA_SOURCE = r"""(.*?)"""', text, re.DOTALL)[1]
    return build_source(source, folder, optimise)


def build_source(source: str, folder: Path, optimise: str = "-O2", exports: bool = True) -> Path:
    """Compile a CUDA source for the CPU; the object file. `exports`: as translate has it."""
    path = folder / "emulated.cpp"
    path.write_text(translate(source, exports))
    target = path.with_suffix(".o")
    include = [f"-I{HERE}", f"-I{cuda_headers()}"]
    _compile([optimise, *_FLAGS, *include, "-c", path, "-o", target], "the emulated kernels")
    return target


def _link(
    kernels: Path, operator: str, flags: list[str], call: str = "call.h", volumes: bool = False
) -> Path:
    """Compile the operator's source and link it with the emulated kernels; a shared library.

    call: the header of its argument block, which the CPU half would have brought; volumes: it is of
    solutions with three dimensions, also where the operator does not tell.
    """
    source = kernels.with_name("operator.cpp")
    contents = {"volumes": volumes or "run_depth" in operator}
    contents["chained"] = "struct ChainInputs" in operator or "DepthChainInputs" in operator
    contents |= {"tensors": "kTensorOperands" in operator, "reduced": "run_extremum" in operator}
    contents |= {"keeps_mask": "wants_mask" in operator, "reads_mask": "reads_mask" in operator}
    contents |= {"chain_tensors": "struct TensorGradients" in operator}
    tails = {"generated_tail.h": _EVERY_TAIL if "kCentredBatchNorm" in operator else ""}
    header = resolve(KERNELS / call, tails, **contents)
    header = header.replace("#define TCONV_EXPORT", "#define TCONV_UNUSED")
    # What a call means on a CPU is asked of its tensors; these stand for a GPU's.
    for device in ("inputs.device", "device_of(x)"):
        operator = operator.replace(f"{device}.is_cpu()", "false")
    # Memory that nobody wrote is full of NaN, so that results show what reads it.
    for given, emulated in _ALLOCATIONS.items():
        assert operator.count(given) == 1
        operator = operator.replace(given, emulated)
    source.write_text(header + _HALF + operator)
    include = [f"-I{path}" for path in cpp_extension.include_paths()]
    places = [part for p in cpp_extension.library_paths() for part in (f"-L{p}", f"-Wl,-rpath,{p}")]
    names = [flag for flag in flags if flag.startswith("-DTCONV_NAMESPACE=")]
    library = kernels.with_suffix(".so")
    command = ["-O1", *_FLAGS, "-fpermissive", *names, *include, source, kernels]
    command += ["-shared", *places, "-ltorch_cpu", "-lc10", "-o", library]
    _compile(command, "the operator")
    return library


class EmulatedLibrary:
    """Emulated kernels behind an operator, which tensors on the CPU reach."""

    def __init__(self, library: ctypes.CDLL):
        self._library = library
        self._library.emulator_races.restype = ctypes.c_int64
        self._library.emulator_launches.restype = ctypes.c_int64
        self._library.emulator_launches_of.restype = ctypes.c_int64
        self._library.emulator_first_races.restype = ctypes.c_char_p
        self._library.emulator_set.argtypes = [ctypes.c_int64] * 4

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

    def launches(self) -> int:
        """How many kernels were launched since `on`."""
        return self._library.emulator_launches()

    def launches_of(self, part: str) -> int:
        """How many of them have `part` in their name."""
        return self._library.emulator_launches_of(part.encode())

    def races(self) -> list[str]:
        """Descriptions of the first unordered accesses to shared memory since `on`."""
        if not self._library.emulator_races():
            return []
        return self._library.emulator_first_races().decode().splitlines()


class EmulatedGradients(EmulatedLibrary):
    """A library of gradients on its own: the convolution's ("gradients"), whose operators are
    `backward` and `convolve`, or one through norms ("group_norm_gradient",
    "batch_norm_pool_gradient"), which has the first; or that of a norm alone ("batch_norm",
    "group_norm"), whose operators are `normalise` and `backward`; or that of tails ("tail") or of
    their gradients ("tail_gradient"), with an operator for each.
    volumes: of a solution with layers of three dimensions. chained: with gradients through chains,
    whose operator is `chain_backward`; sliced: another library of those.
    gathered: of a solution with the gathered kernel. tensors: with operands of the output's shape.
    named: tells another library's name from the fixture's. masked: with chains that read a mask.
    """

    def __init__(
        self,
        kernels: Path,
        entry: str = "gradients",
        volumes: bool = False,
        chained: bool = False,
        gathered: bool = False,
        sliced: bool = False,
        tensors: bool = False,
        named: str = "",
        masked: bool = False,
    ):
        form = named + "volume_" * volumes + "chain_" * chained + "gathered_" * gathered
        form += "sliced_" * sliced + "tensors_" * tensors
        name = f"tconv_emulated_{form}{entry}"
        header = gradient_call_header(entry)
        flags = [f"-DTCONV_NAMESPACE={name}"]
        tails = _EVERY_TAIL if entry.startswith("tail") else ""
        operator = gradient_operator(entry, volumes, chained, tensors, tails, masked)
        path = _link(kernels, operator, flags, header, volumes)
        torch.ops.load_library(path)
        super().__init__(ctypes.CDLL(path))
        self.namespace = getattr(torch.ops, name)
        if entry == "tail":
            self.layer_norm = self.namespace.layer_norm.default
            self.softmax = self.namespace.softmax.default
            self.plane_softmax = self.namespace.plane_softmax.default
            self.pool = self.namespace.pool.default
            self.group_norm = self.namespace.group_norm.default
            self.batch_norm = self.namespace.batch_norm.default
            self.centred_batch_norm = self.namespace.centred_batch_norm.default
            return
        if entry == "tail_gradient":
            norms = "layer_norm", "group_norm", "batch_norm", "centred_batch_norm"
            for name in (*norms, "softmax", "plane_softmax", "pool"):
                setattr(self, name, getattr(self.namespace, f"{name}_backward").default)
            return
        if entry in ("batch_norm", "group_norm"):
            self.normalise = self.namespace.normalise.default
        self.backward = self.namespace.backward.default
        if entry == "gradients":
            self.convolve = self.namespace.convolve.default
        if chained and not volumes:
            self.chain_backward = self.namespace.chain_backward.default


class Emulated(EmulatedLibrary):
    """A solution whose operator calls the emulated kernels for tensors on the CPU."""

    def __init__(self, text: str, kernels: Path):
        # Another name than that of the solution's own operator, which this process may have, too.
        text = re.sub(r"^_DIGEST = ", "_DIGEST = 'emulated' ", text, flags=re.MULTILINE)

        def load(cpp_sources, extra_cflags, build_directory, **_):
            library = shutil.copy(_link(kernels, cpp_sources[1], extra_cflags), build_directory)
            torch.ops.load_library(library)
            _loaded[namespace["_NAMESPACE"]] = ctypes.CDLL(library)
            return library

        self.solution = namespace = {"__name__": "emulated"}
        with (
            mock.patch.object(cpp_extension, "load_inline", load),
            tempfile.TemporaryDirectory() as folder,
            mock.patch.dict(os.environ, TORCH_EXTENSIONS_DIR=folder),
        ):
            exec(compile(text, "<emulated>", "exec"), namespace)
        self.kernels = kernels  # the object file
        super().__init__(_loaded[namespace["_NAMESPACE"]])

    @property
    def operator(self):
        """The solution's operator, as it is registered with PyTorch."""
        return self.solution["_operator"]
