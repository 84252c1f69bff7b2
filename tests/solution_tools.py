"""What the tests of generator and operator share: references, loading, parameter grids, error
bounds.
"""

import contextlib
import dataclasses
import functools
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from generator.emit import solution_text
from generator.program import Program, ambient_kept, read_program
from generator.prove import prove

ROOT = Path(__file__).resolve().parent.parent
PROBLEMS = sorted((ROOT / "harness" / "problems").glob("level*/*.py"))
REFERENCES = Path(__file__).resolve().parent / "references"


@functools.cache
def generated(path: Path, own_gradients: bool = True) -> str:
    """The solution of a reference that no test changes, traced and proved once a session."""
    program = program_of(path)
    text = solution_text(program, path, own_gradients)
    with ambient_kept():
        prove(program, text)
    return text


@functools.cache
def program_of(path: Path) -> Program:
    """What is decided about such a reference, likewise."""
    with ambient_kept():
        return read_program(path)


def load_text(text: str, name: str = "solution") -> dict:
    """Executes a source as KernelBench does: from a string, without __file__."""
    namespace = {"__name__": name}
    exec(compile(text, f"<{name}>", "exec"), namespace)
    return namespace


@contextlib.contextmanager
def environment(**values):
    """Sets environment variables for a while; None removes one."""
    old = {name: os.environ.get(name) for name in values}
    try:
        for name, value in values.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = str(value)
        yield
    finally:
        for name, value in old.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@dataclasses.dataclass
class Loaded:
    """A reference and the solution generated from it, as namespaces."""

    reference: dict
    solution: dict
    text: str

    def pair(self, *arguments, seed: int = 0, **options):
        """(Model, ModelNew) of the same arguments and seed; without arguments, of
        get_init_inputs().
        """
        arguments = arguments or (() if options else self.reference["get_init_inputs"]())
        models = []
        for factory in (self.reference["Model"], self.solution["ModelNew"]):
            torch.manual_seed(seed)
            models.append(factory(*arguments, **options))
        return tuple(models)


class SolutionShelf:
    """Solutions generated, built and loaded once; builds are kept in TORCH_EXTENSIONS_DIR where the
    environment has it.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._build = os.environ.get("TORCH_EXTENSIONS_DIR") or folder / "build"
        self._loaded: dict[str, Loaded] = {}

    def build_folder(self):
        """The environment in which everything on this shelf is built."""
        return environment(TORCH_EXTENSIONS_DIR=self._build)

    def build_ahead(self, names) -> None:
        """Builds those of `names` that are references side by side, each by a process that executes
        the solution. A failure shows when the solution is used.
        """
        known = [path.stem for path in _references()]
        names = [n for n in names if any(k == n or k.startswith(f"{n}_") for k in known)]
        paths = []
        for name in names:
            paths.append(self._folder / f"build_{name}.py")
            paths[-1].write_text(self.text(name))
        with self.build_folder(), ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
            list(pool.map(_execute, paths))

    def __getitem__(self, name: str) -> Loaded:
        """`name` is a file of tests/references or the number of a problem, without .py; with
        " pytorch_gradients" behind it of a solution that has no kernels for gradients."""
        if name not in self._loaded:
            text = self.text(name)
            with self.build_folder():
                solution = load_text(text, name)
            self._loaded[name] = Loaded(self.reference(name), solution, text)
        return self._loaded[name]

    def reference(self, name: str) -> dict:
        """The reference, loaded."""
        return load_text(_reference(name.partition(" ")[0]).read_text(), name)

    def text(self, name: str) -> str:
        """The generated solution."""
        name_of_reference, _, gradients = name.partition(" ")
        return generated(_reference(name_of_reference), gradients != "pytorch_gradients")


def _references() -> list[Path]:
    return [*PROBLEMS, *sorted(REFERENCES.glob("*.py"))]


def _reference(name: str) -> Path:
    return next(p for p in _references() if p.stem == name or p.stem.startswith(f"{name}_"))


def _execute(path: Path) -> None:
    subprocess.run([sys.executable, str(path)], cwd=ROOT, capture_output=True)


@dataclasses.dataclass(frozen=True)
class Case:
    """A transposed convolution: shapes and parameters."""

    batch: int | None = 2
    in_channels: int = 4
    out_channels: int = 6
    size: tuple = (7, 9)
    kernel: tuple = (3, 3)
    stride: tuple = (1, 1)
    padding: tuple = (0, 0)
    output_padding: tuple = (0, 0)
    dilation: tuple = (1, 1)
    groups: int = 1
    bias: bool = True

    def __str__(self):
        changed = [
            f"{field.name}={getattr(self, field.name)}".replace(" ", "")
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        ]
        return ",".join(changed) or "default"

    @property
    def parameters(self) -> tuple:
        return self.stride, self.padding, self.output_padding, self.dilation, self.groups

    @property
    def output_size(self) -> tuple[int, int]:
        """Height and width of the output. Source: documentation of torch.nn.ConvTranspose2d."""
        height, width = (
            (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + more + 1
            for size, stride, padding, dilation, kernel, more in zip(
                self.size,
                self.stride,
                self.padding,
                self.dilation,
                self.kernel,
                self.output_padding,
                strict=True,
            )
        )
        return height, width

    @property
    def reduction(self) -> int:
        """Products summed into one output, at most."""
        return self.in_channels // self.groups * math.prod(self.kernel)

    def tensors(self, dtype=torch.float32, device="cpu", seed=0):
        """Zero-mean (x, weight, bias) of this case; bias is None where there is none."""
        generator = torch.Generator().manual_seed(seed)
        shape = (self.in_channels, *self.size)
        if self.batch is not None:
            shape = (self.batch, *shape)
        weight = (self.in_channels, self.out_channels // self.groups, *self.kernel)
        made = [
            torch.randn(s, generator=generator, dtype=torch.float64).to(device, dtype)
            for s in (shape, weight, (self.out_channels,))
        ]
        return made[0], made[1], made[2] if self.bias else None

    def reference(self, x, weight, bias):
        """PyTorch's answer in float64, on the operands' device; on CUDA without cuDNN, so that what
        is compared with cuDNN is not judged by it.
        """
        wide = [None if t is None else t.detach().double() for t in (x, weight, bias)]
        enabled, torch.backends.cudnn.enabled = torch.backends.cudnn.enabled, False
        try:
            return torch.conv_transpose2d(
                *wide, self.stride, self.padding, self.output_padding, self.groups, self.dilation
            )
        finally:
            torch.backends.cudnn.enabled = enabled


# The fastest first; where the machine lacks what one is compiled for, a lesser one runs.
CPU_KERNELS = ["auto", "avx2", "portable", "plain"]

GRID = [
    Case(),
    Case(bias=False),
    Case(batch=None),
    Case(batch=0),
    Case(batch=1, in_channels=1, out_channels=1, size=(1, 1), kernel=(1, 1)),
    Case(kernel=(3, 7)),
    Case(kernel=(3, 5), in_channels=8, out_channels=16, size=(16, 40)),
    Case(kernel=(1, 1), stride=(2, 2)),
    Case(kernel=(2, 4), stride=(2, 3), padding=(1, 0)),
    Case(kernel=(4, 4), stride=(2, 2), padding=(1, 1)),
    Case(kernel=(5, 5), padding=(1, 1), out_channels=12),
    Case(kernel=(3, 3), stride=(3, 2), output_padding=(2, 1)),
    Case(kernel=(3, 2), stride=(1, 2), dilation=(2, 3), output_padding=(1, 2)),
    Case(kernel=(3, 3), stride=(4, 6), dilation=(2, 4), padding=(2, 3)),
    Case(kernel=(2, 2), stride=(5, 5)),
    Case(kernel=(3, 3), padding=(4, 5), size=(9, 9)),
    Case(groups=2, kernel=(3, 3), stride=(2, 1)),
    Case(groups=4, in_channels=4, out_channels=8, kernel=(3, 2)),
    Case(in_channels=17, out_channels=19, kernel=(3, 3), size=(5, 33)),
    Case(in_channels=64, out_channels=64, kernel=(3, 7), size=(10, 70), batch=1),
    Case(in_channels=33, out_channels=130, kernel=(2, 3), size=(6, 18), batch=3),
    Case(in_channels=3, out_channels=5, kernel=(7, 1), size=(1, 64)),
    Case(in_channels=2, out_channels=3, kernel=(11, 9), size=(3, 3), padding=(5, 4)),
]


def conv_bound(case: Case, x, weight, bias, out_dtype, *, tf32: bool = False) -> torch.Tensor:
    """Element-wise bound on |y - exact| for any order of summation, in float64.

    gamma * (|x| * |w| + |bias|) with gamma = (K + 2) * u of the accumulator (Higham, "Accuracy and
    Stability of Numerical Algorithms", section 3.1), tensor cores truncating (2 u); TF32 adds
    2**-11 per rounded operand; storing adds half an ulp of the output's dtype.
    """
    absolute = case.reference(x.abs(), weight.abs(), None if bias is None else bias.abs())
    gamma = bound_factor(case.reduction, x.dtype, out_dtype, tf32=tf32)
    return gamma * absolute + torch.finfo(out_dtype).tiny


def bound_factor(products: int, dtype, out_dtype, *, tf32: bool = False) -> float:
    """conv_bound's gamma for sums of so many products of operands of `dtype`."""
    accumulator = torch.float64 if dtype == torch.float64 else torch.float32
    gamma = (products + 2) * torch.finfo(accumulator).eps
    if tf32:
        gamma += 2 * 2.0**-11 + 2.0**-20
    if torch.finfo(out_dtype).bits < 32:
        gamma += torch.finfo(out_dtype).eps
    return gamma


def assert_within(y: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> None:
    """Fails on NaN too, naming the worst element."""
    assert y.shape == exact.shape, f"shape {tuple(y.shape)}, expected {tuple(exact.shape)}"
    error = (y.detach().double() - exact).abs()
    good = error <= bound
    if not bool(good.all()):
        first = tuple((~good).nonzero()[0].tolist())
        raise AssertionError(
            f"{int((~good).sum())} of {good.numel()} outside the bound; first at {first}: got "
            f"{y[first].item()!r}, "
            f"expected {exact[first].item()!r}, allowed {bound[first].item()!r}"
        )


def relative_error(y: torch.Tensor, exact: torch.Tensor) -> float:
    """||y - exact|| / ||exact||, in float64 on the device of both."""
    y, exact = y.detach().double(), exact.detach().double()
    return float((y - exact).norm() / exact.norm())
