"""Writes the docstring of a solution file: what the file holds, what it left out, and why."""

import re
import textwrap
from pathlib import Path

from generator.calls import LIFTED, METHODS, summary
from generator.explain import explained, shortcuts
from generator.kernels import Kernels, digest
from generator.program import Program
from generator.sources import ROOT
from generator.tails import CENTRED

_LONGEST = 60  # characters of a name

_KERNELS = """\
On a CUDA tensor the CUDA kernels run (CUDA_SOURCE), on a CPU tensor the C++ ones (CPU_SOURCE);
OPERATOR_SOURCE checks the arguments and calls them, through PyTorch's stable ABI. CUDA_SOURCE
compiles as seven parts side by side (fp32 and fp64, fp16, bf16; the Hopper kernels of each apart,
fp32's in two): nvcc's front end is serial."""
_CUDA_KERNELS = """\
The CUDA kernels run (CUDA_SOURCE); OPERATOR_SOURCE checks the arguments and calls them, through
PyTorch's stable ABI. The C++ ones are left out (--device cuda), so a CPU tensor is refused: without
that argument the generator writes a file that has them. CUDA_SOURCE compiles as seven parts side by
side (fp32 and fp64, fp16, bf16; the Hopper kernels of each apart, fp32's in two): nvcc's front end
is serial."""
_GRADIENTS = """\
The convolution's gradients on CUDA are a library of their own (GRADIENT_CUDA_SOURCE,
GRADIENT_OPERATOR_SOURCE), built when the first one is asked for; on the CPU, and with
create_graph=True, they are PyTorch's."""
_NORM_GRADIENTS = """\
Those through element-wise steps and GroupNorm are another one (NORM_GRADIENT_CUDA_SOURCE,
NORM_GRADIENT_OPERATOR_SOURCE)."""
_CHAIN_GRADIENTS = """\
Those through element-wise steps are in it, too."""
_PACKED_VOLUMES = """\
Where it packs volumes for both of the convolution's, those through element-wise steps are formed in
that, the output's gradient itself is not in memory."""
_FROM_RESULT = """\
Where PyTorch forms the gradient of the last step from its result (relu, tanh, sigmoid, exp, sqrt,
rsqrt, reciprocal), forward keeps that, as PyTorch does; backward computes no convolution again."""
_TENSOR_OPERANDS = """\
Where a chain reads tensors of the output's shape, what follows the first one runs over the outputs
by a kernel of its own on CUDA, to which 16-bit outputs are rounded as PyTorch rounds them; their
gradients are formed together with the convolution's output's."""
_POOL_GRADIENTS = """\
Those through BatchNorm, activation, max-pool and GroupNorm are another one
(POOL_GRADIENT_CUDA_SOURCE, POOL_GRADIENT_OPERATOR_SOURCE)."""
_BATCH_NORM = """\
BatchNorm in training mode that no kernel of the convolution takes along is on Hopper, of large
tensors, a library of its own, too (BATCH_NORM_CUDA_SOURCE, BATCH_NORM_OPERATOR_SOURCE), with its
gradients, built when first called; where no gradient is wanted it takes along a softmax over an
image's rows that alone reads the norm."""
_GROUP_NORM = """\
GroupNorm or InstanceNorm that no kernel of the convolution takes along is on Hopper, of large
tensors, a library of its own, too (GROUP_NORM_CUDA_SOURCE, GROUP_NORM_OPERATOR_SOURCE), with its
gradients, built when first called."""
_TAILS = """\
LayerNorm over rows, softmax over channels, pools whose windows stand side by side, GroupNorm,
InstanceNorm and BatchNorm (in training mode) where steps follow are, each with the element-wise
steps behind it, on Hopper and of large tensors, a library of their own, too (TAIL_CUDA_SOURCE,
TAIL_OPERATOR_SOURCE), and so are their gradients (TAIL_GRADIENT_CUDA_SOURCE,
TAIL_GRADIENT_OPERATOR_SOURCE), each built when first called."""
_CENTRED = """\
So is BatchNorm, in training mode, together with a subtraction of each plane's mean behind it."""
_FOLDED = """\
In eval mode, where no gradient is wanted, BatchNorm that alone reads a convolution is with the
steps behind it a part of the convolution's kernel. Each such chain is a library of its own, of the
same sources, built when first called."""
_EXTREMUM = """\
Where the Hopper kernel runs, it forms a minimum or maximum over channels that alone reads its
outputs, and does not store them; for gradients backward computes them again."""
_COMPILED = """\
Numbers in the chain (scales, bounds of clamps) are compiled in, as get_init_inputs() sets them (a
model with others is refused); everything else is read from the modules at each call. Layers inside
the model are never called: one that was replaced, or that has hooks, is refused by name."""
_COMPILED_AND_LEFT = """\
Numbers in the chains (scales, bounds of clamps) and what forward decides by are compiled in, as
get_init_inputs() sets them (a model with others is refused); everything else is read from the
modules at each call. Modules that forward walks past are never called: one of them that was
replaced, or that has hooks, is refused by name."""
_PRECISION = """\
Precision. fp32 on CUDA follows PyTorch's switches at every call (torch.backends.cudnn.allow_tf32
and the fp32_precision settings). TF32 allowed means operands rounded to nearest to 11 significant
bits, what TF32 keeps, and products summed in fp32; the tensor cores read those operands as fp16
numbers, scaled by powers of two that are undone exactly, and where fp16's range cannot hold them to
TF32's accuracy a guard on the device has a strict fp32 kernel compute the outputs instead. TF32
forbidden means an fp32 answer. fp16 and bf16 are read as they are, summed in fp32, rounded once at
the end. fp64 is computed in fp64. On the CPU, fp32 is computed in
fp32."""


def slug(path: Path) -> str:
    """A name that C++, file systems and linkers take."""
    return re.sub(r"[^a-z0-9_]+", "_", path.stem.lower()).strip("_")[:_LONGEST] or "reference"


def _shown(path: Path) -> str:
    """A path as text that does not depend on where the checkout is."""
    path = path.resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def docstring(program: Program, output: Path, kernels: Kernels) -> str:
    """That of the file `output`, as source: what it computes, how, what it leaves, its digests."""
    command = f"python -m generator {_shown(program.reference.path)} -o {_shown(output)}"
    command += " --pytorch-gradients" * (not kernels.own_gradients)
    command += " --device cuda" * kernels.cuda_alone
    parts = [f"{slug(program.reference.path)}: {_title(program)}."]
    parts += [_filled(METHODS[entry]) for entry in kernels.entries]
    dimensions = {fused.dimensions for plan in program.plans for fused in plan.fused}
    parts += [_filled(LIFTED[count]) for count in sorted(dimensions) if count in LIFTED]
    left = [line.text for line in explained(program, kernels.norms, kernels.tails) if line.is_left]
    if kernels.all:
        parts += [
            _CUDA_KERNELS if kernels.cuda_alone else _KERNELS,
            *([_gradients(kernels)] if kernels.gradient_sources else []),
            *([_BATCH_NORM] if "batch_norm" in kernels.norms else []),
            *([_GROUP_NORM] if "group_norm" in kernels.norms else []),
            *([_tails(kernels)] if kernels.tails else []),
            *([_FOLDED] if kernels.folds else []),
            *([_TENSOR_OPERANDS] if kernels.whole else []),
            *([_EXTREMUM] if kernels.reduced else []),
            _PRECISION,
            _COMPILED_AND_LEFT if left else _COMPILED,
        ]
    if left:
        rows = "\n".join(_filled(text, "    ") for text in left)
        parts.append(f"Left to PyTorch, in the reference's order:\n{rows}")
    parts += [_filled(sentence) for sentence in shortcuts(program)]
    rows = [f"{f'sha256 of {name}:':<26} {value}" for name, value in _digests(kernels).items()]
    parts.append("\n".join([f"Generated, do not edit:\n    {command}", *rows]))
    text = "\n\n".join(parts).replace("\\", "/").replace('"', "'")
    return f'"""{text}\n"""\n'


def _gradients(kernels: Kernels) -> str:
    parts = [_GRADIENTS, *[_CHAIN_GRADIENTS] * kernels.chained]
    parts += [_PACKED_VOLUMES] * kernels.packs_volumes
    from_result = any(kernel.keeps_result for kernel in kernels.all)
    parts += [_FROM_RESULT] * ((kernels.chained or kernels.volumes) and from_result)
    for prefix, said in (("NORM_", _NORM_GRADIENTS), ("POOL_", _POOL_GRADIENTS)):
        parts += [said] if f"{prefix}GRADIENT_CUDA_SOURCE" in kernels.gradient_sources else []
    return "\n".join(parts)


def _tails(kernels: Kernels) -> str:
    centred = any(tail.entry == CENTRED for tail in kernels.tails.values())
    return "\n".join([_TAILS, *[_CENTRED] * centred])


def _title(program: Program) -> str:
    if not program.kernels:
        return "no kernel of ours, everything is left to PyTorch"
    return "; ".join(dict.fromkeys(summary(f) for plan in program.plans for f in plan.fused))


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, 98, break_on_hyphens=False, initial_indent=indent, subsequent_indent=indent * 2
    )


def _digests(kernels: Kernels) -> dict[str, str]:
    """SHA-256 of the sources as the solution's module holds them."""
    made = {name: digest(kernels.held(name)) for name in kernels.sources}
    others = kernels.gradient_sources | kernels.other_sources
    return made | {name: digest(f"\n{text}") for name, text in others.items()}
