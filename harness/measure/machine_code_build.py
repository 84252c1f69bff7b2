"""Compiles a solution's CUDA source as the solution itself does, for sm_90a alone: its machine
code, and a program that makes its calls without a GPU.
"""

import ast
import hashlib
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from generator.runtime.library_sources import _with_shared_lines
from harness.errors import EnvironmentUnfit, UsageError
from harness.measure.machine_code_cubin import Cubin, read_cubin, sha256
from harness.measure.nvcc import compiler, nvcc

_HERE = Path(__file__).resolve().parent
_DRIVER, _RUNTIME = _HERE / "machine_code_driver.h", _HERE / "machine_code_runtime.cpp"
_ARCHITECTURE = "-gencode=arch=compute_90a,code=sm_90a"
# A few kernels come out otherwise without --split-compile. How many threads it gets makes no
# difference, as long as there are more than one: 0, which solutions say, means all of a machine.
_THREADS = ("--threads=2", "--split-compile=2")
_HOST_FLAGS = ("-cudart", "none")
# What only CUDA calls: the libraries beside the forward's, and who loads them.
_OF_LIBRARIES = re.compile(
    r"\b_?(?:NORM_|POOL_)?GRADIENT_(?:CUDA|OPERATOR|NAMESPACE)|\b_(?:NORM|POOL)_GRADIENTS\b"
    r"|\b_(?:with_shared_lines|whole_library|load_operators)\b|\bdef build_libraries\b"
)


@dataclass(frozen=True)
class Built:
    """Machine code of a solution, and the program of machine_code_driver.h."""

    cubin: Cubin
    driver: Path


def cuda_source(text: str) -> str:
    """CUDA_SOURCE of a solution's text. Raises UsageError where there is none."""
    found = re.search(r'^CUDA_SOURCE = r"""(.*?)"""', text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise UsageError('the solution has no CUDA_SOURCE = r"""..."""')
    return found[1]


def gradients_sha256(text: str) -> str | None:
    """Of a solution's sources of the gradients' libraries, without comments and white space, which
    make no machine code; None where there is none.
    """
    found = re.findall(
        r'^((?:NORM_|POOL_)?GRADIENT_CUDA_SOURCE) = r"""(.*?)"""', text, re.DOTALL | re.MULTILINE
    )
    if not found:
        return None
    whole, parts = {"CUDA_SOURCE": cuda_source(text)}, []
    for name, source in found:
        whole[name] = _with_shared_lines(source, whole)
        parts.append(whole[name])
    code = "".join(line.partition("//")[0] for line in "\n".join(parts).splitlines())
    return hashlib.sha256("".join(code.split()).encode()).hexdigest()


def cpu_text_sha256(text: str) -> str:
    """Of what of a solution's text runs on a CPU: all but its docstring, what is CUDA's alone (its
    sources, nvcc's flags, how they compile in parts, how libraries of gradients are loaded), and
    the digest of the rest that its operator is called by.
    """
    text = re.sub(r'\A""".*?"""\n', "", text, flags=re.DOTALL)
    libraries = "(?:NORM_|POOL_)?GRADIENT|BATCH_NORM|GROUP_NORM"
    names = f"(?:(?:{libraries})_(?:CUDA|OPERATOR)|CUDA)_SOURCE"
    text = re.sub(rf'^{names} = r""".*?"""\n', "", text, flags=re.DOTALL | re.MULTILINE)
    lines = r"(?:#.*\n)*(?:_PARTS|_PART_NAMES|_CUDA_FLAGS) = .*\n(?:[ )].*\n)*"
    text = re.sub(rf"^{lines}|^def _parts\(.*\n(?: .*\n|\n(?= ))*\n*", "", text, flags=re.MULTILINE)
    text = re.sub(r"^_DIGEST = .*\n", "", text, flags=re.MULTILINE)
    text = _without_statements(text, _OF_LIBRARIES).rstrip() + "\n"
    return hashlib.sha256(text.encode()).hexdigest()


def _without_statements(text: str, names: re.Pattern) -> str:
    """Without the module's functions and assignments that mention one of the names."""
    lines = text.splitlines(keepends=True)
    for node in reversed(ast.parse(text).body):
        own = lines[node.lineno - 1 : node.end_lineno]
        if isinstance(node, ast.FunctionDef | ast.Assign) and names.search("".join(own)):
            del lines[node.lineno - 1 : node.end_lineno]
            while node.lineno <= len(lines) and not lines[node.lineno - 1].strip():
                del lines[node.lineno - 1]  # blank lines go with it
    return "".join(lines)


def cuda_flags(text: str) -> tuple[str, ...]:
    """The flags that the solution's _CUDA_FLAGS give nvcc. Raises UsageError where it has none."""
    found = re.search(r"^_CUDA_FLAGS = (\(.*?^\))", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise UsageError("the solution has no _CUDA_FLAGS = (...)")
    return ast.literal_eval(found[1])


def compile_flags(flags: tuple[str, ...]) -> list[str]:
    """Those of a solution and PyTorch's, for sm_90a alone; without -O, which only the host compiler
    heeds, so that host code takes a second.
    """
    from torch.utils.cpp_extension import COMMON_NVCC_FLAGS

    dropped = ("-gencode", "--threads", "--split-compile")
    own = [f for f in flags if not f.startswith(dropped) and not re.fullmatch(r"-O\d", f)]
    return [*COMMON_NVCC_FLAGS, *own, _ARCHITECTURE, *_THREADS]


def cache_folder() -> Path:
    """Where builds are kept: XDG_CACHE_HOME or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "tconv" / "machine_code"


def build(source: str, flags: tuple[str, ...], cache: Path | None = None) -> Built:
    """Compile a CUDA source, or take what is kept of an earlier time.

    `cache`: a folder; by default cache_folder(). Raises EnvironmentUnfit without nvcc, UsageError
    with the compiler's words where the source does not compile.
    """
    if compiler() is None:
        raise EnvironmentUnfit("machine code cannot be compared: no nvcc on this machine")
    cache = cache or cache_folder()
    program = _DRIVER.read_text(), _RUNTIME.read_text()
    key = sha256(source, compile_flags(flags), _HOST_FLAGS, compiler(), program)
    folder = cache / key[:32]
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".") as made:
            _compile(source, flags, Path(made))
            done = Path(made) / "done"
            done.mkdir()
            for name in ("driver", "code.cubin"):
                os.replace(Path(made) / name, done / name)
            try:
                os.replace(done, folder)
            except OSError:  # another process was faster
                if not folder.is_dir():
                    raise
    return Built(read_cubin((folder / "code.cubin").read_bytes()), folder / "driver")


def _compile(source: str, flags: tuple[str, ...], folder: Path) -> None:
    (folder / "code.cu").write_text(f'{source}\n#include "{_DRIVER}"\n')
    command = [nvcc(), *compile_flags(flags), *_HOST_FLAGS, "--keep", "--keep-dir", str(folder)]
    command += [str(folder / "code.cu"), str(_RUNTIME), "-o", str(folder / "driver")]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise UsageError(f"the CUDA source does not compile: {(run.stdout + run.stderr)[-4000:]}")
