"""Writes the text of a solution file."""

import ast
import dataclasses
import hashlib
import re
import textwrap
from pathlib import Path

from generator import static_rules
from generator.calls import LIFTED, METHODS, Modules, modules_of, summary
from generator.checks import Checks, at_call, at_construction, constants_text, same_modes
from generator.errors import Refusal
from generator.explain import explained, shortcuts
from generator.expressions import module_path
from generator.forward_text import body, signature
from generator.kernels import Kernels, digest, sources
from generator.model_class import solution_statements
from generator.operator_layer import runtime_statements
from generator.program import Program, ambient_kept, read_program
from generator.prove import prove
from generator.reference import Reference
from generator.sources import ROOT
from generator.statements import Statement, needed, split
from harness.files import write_files

_LATE = ("_CHAIN", "_ACTIVATION", "_TAIL_CHAINS")  # constants that need what stands above them
_CHECKED = "_checked_at_construction(ModelNew, _require_compiled_in)"
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
GroupNorm that no kernel of the convolution takes along is on Hopper, of large tensors, a library of
its own, too (GROUP_NORM_CUDA_SOURCE, GROUP_NORM_OPERATOR_SOURCE), with its gradients, built when
first called."""
_TAILS = """\
LayerNorm over rows, softmax over channels, pools whose windows stand side by side, GroupNorm and
BatchNorm (in training mode) where steps follow are, each with the element-wise steps behind it, on
Hopper and of large tensors, a library of their own, too (TAIL_CUDA_SOURCE, TAIL_OPERATOR_SOURCE),
and so are their gradients (TAIL_GRADIENT_CUDA_SOURCE, TAIL_GRADIENT_OPERATOR_SOURCE), each built
when first called."""
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


def generate(
    reference_path: Path,
    output_path: Path,
    built: bool = False,
    own_gradients: bool = True,
    cuda_alone: bool = False,
) -> str:
    """The solution's text, with kernels for the convolution's gradients on CUDA
    or without, and with the C++ half or without (`cuda_alone`). Raises Refusal where there is none
    that computes what the reference does: it is proved (prove.py) with its C++ half, which is
    built for that (`built`), or with PyTorch's functions in the place of kernels.
    """
    with ambient_kept():
        program = read_program(reference_path)
        text = solution_text(program, output_path, own_gradients, cuda_alone)
        prove(program, text, built and not cuda_alone)
    return text


def solution_text(
    program: Program, output_path: Path, own_gradients: bool = True, cuda_alone: bool = False
) -> str:
    """The text of what was decided. Raises Refusal where the reference's own text cannot be carried
    over.
    """
    text = ""
    for without_forwards in (False, True):
        kernels = sources(program, own_gradients, cuda_alone)
        text = _solution_text(program, output_path, without_forwards, kernels)
        if not _broken_rules(program, text):
            break
    _check(program, text)
    return text


def _solution_text(
    program: Program, output_path: Path, without_forwards: bool, kernels: Kernels
) -> str:
    reference = program.reference
    constants = kernels.constants
    if kernels.all:
        constants = {"_SLUG": repr(_slug(reference.path))} | constants
    made, forward, checked = _forward(program, kernels)
    late = constants_text(made)
    written = "\n".join([*constants.values(), *late.values(), forward, checked])
    own = runtime_statements(kernels, f"{written}\n{_CHECKED if checked else ''}")
    if kernels.all:
        constants["_DIGEST"] = repr(_digest(own, constants | late))
    theirs = solution_statements(reference, signature(reference), forward, without_forwards)
    _refuse_clashes(reference, own, theirs)
    return "\n".join(
        [
            _docstring(program, output_path, kernels),
            _imports(own, theirs),
            "",
            *_operator_layer(kernels, constants, own),
            *(f"{name} = {value}" for name, value in late.items()),
            _join([statement for statement in theirs if not statement.is_import]),
            *(["", "", checked, "", "", _CHECKED] if checked else []),
            "",
        ]
    )


def _operator_layer(kernels: Kernels, constants: dict[str, str], own: list[Statement]) -> list[str]:
    """Sources, constants and Python half of the operators, as pieces of text."""
    is_late = {name: name.startswith(_LATE) for name in constants}
    early = [f"{name} = {value}" for name, value in constants.items() if not is_late[name]]
    late = [f"{name} = {value}" for name, value in constants.items() if is_late[name]]
    parts = [statement for statement in own if not statement.is_import]
    of_gradients = _texts(kernels.gradient_sources | kernels.other_sources)
    if len(kernels.all) < 2:
        return [*_texts(kernels.sources), *of_gradients, *early, _join(parts), "", "", *late]
    # Chains stand above what is registered of them, the repetition of sources above all.
    ahead = needed(parts, {"_for_each_call"})
    steps = needed(parts, set(re.findall(r"\b_\w+", " ".join(late))))
    rest = [s for s in parts if s not in ahead and s not in steps]
    texts = [
        f'{name} = _for_each_call(\n    r"""\n{_raw(text)}"""\n)\n'
        for name, text in kernels.sources.items()
    ]
    texts += of_gradients
    return [*early, _join(ahead), "", "", *texts, _join(steps), "", "", *late, _join(rest), "", ""]


def _texts(sources: dict[str, str]) -> list[str]:
    return [f'{name} = r"""\n{_raw(text)}"""\n' for name, text in sources.items()]


def _forward(program: Program, kernels: Kernels) -> tuple[Checks, str, str]:
    """(what is checked, the body of ModelNew.forward, the function that checks a constructed
    model)
    """
    reference = program.reference
    taken = set(reference.namespace) | set(reference.bound_arguments()) | {"self", "torch"}
    modules = Modules(taken)
    for plan in program.plans:
        for fused in plan.fused:
            modules_of(fused, modules)
    training, evaluation = (
        body(reference, plan, kernels, modules, taken, program.folds_of(plan))
        for plan in program.plans
    )
    lines = [f"{name} = {module_path(path)}" for path, name in modules.names.items()]
    made = dataclasses.replace(program.checks, constants=list(program.checks.constants))
    if training != evaluation:
        made.constants += same_modes(program.watch)
    lines += at_call(made, modules)
    if training == evaluation:
        lines.append(training)
    else:
        flag = f"{module_path(min(program.watch.modes, default=''))}.training"
        lines += [f"if {flag}:", textwrap.indent(training, "    "), evaluation]
    return made, "\n".join(lines), at_construction(made)


def write(text: str, path: Path) -> None:
    """Writes the file as a whole or not at all. Raises UsageError where it cannot be written."""
    write_files({path: text.encode()})


def _slug(path: Path) -> str:
    """A name that C++, file systems and linkers take."""
    return re.sub(r"[^a-z0-9_]+", "_", path.stem.lower()).strip("_")[:_LONGEST] or "reference"


def _shown(path: Path) -> str:
    """A path as text that does not depend on where the checkout is."""
    path = path.resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def _docstring(program: Program, output: Path, kernels: Kernels) -> str:
    command = f"python -m generator {_shown(program.reference.path)} -o {_shown(output)}"
    command += " --pytorch-gradients" * (not kernels.own_gradients)
    command += " --device cuda" * kernels.cuda_alone
    parts = [f"{_slug(program.reference.path)}: {_title(program)}."]
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
            *([_TAILS] if kernels.tails else []),
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


def _digest(own: list[Statement], constants: dict[str, str]) -> str:
    """Of the Python half of the operator: formulas of gradients, shapes, constants of the chain."""
    parts = [statement.text for statement in own]
    parts += [f"{name} = {value}" for name, value in constants.items()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _raw(source: str) -> str:
    if '"""' in source:
        raise Refusal("a kernel source holds three double quotes in a row")
    return source


def _imports(*groups: list[Statement]) -> str:
    lines = {statement.text for group in groups for statement in group if statement.is_import}
    lines |= {"import torch"}
    text = "\n".join(sorted(lines, key=lambda line: ("torch" in line, line)))
    if (
        re.search(r"\bnn\.", "\n".join(s.text for s in groups[1]))
        and "import torch.nn as nn" not in lines
    ):
        if not any("nn" in s.defines for s in groups[1]):
            text += "\nimport torch.nn as nn"
    return text


def _join(statements: list[Statement]) -> str:
    """Two blank lines around functions and classes, none between plain lines."""
    parts: list[str] = []
    previous_block = True
    for statement in statements:
        block = isinstance(statement.node, ast.FunctionDef | ast.ClassDef)
        parts.append(("\n\n" if block or previous_block else "") + statement.text)
        previous_block = block
    return "\n".join(parts)


def _refuse_clashes(reference: Reference, own: list[Statement], theirs: list[Statement]) -> None:
    """Solution and reference share one namespace, so no name may mean two things in it."""
    ours = {name for statement in own for name in statement.defines}
    ours |= {
        "CUDA_SOURCE",
        "CPU_SOURCE",
        "OPERATOR_SOURCE",
        "GRADIENT_CUDA_SOURCE",
        "GRADIENT_OPERATOR_SOURCE",
        "NORM_GRADIENT_CUDA_SOURCE",
        "NORM_GRADIENT_OPERATOR_SOURCE",
        "POOL_GRADIENT_CUDA_SOURCE",
        "POOL_GRADIENT_OPERATOR_SOURCE",
        "BATCH_NORM_CUDA_SOURCE",
        "BATCH_NORM_OPERATOR_SOURCE",
        "GROUP_NORM_CUDA_SOURCE",
        "GROUP_NORM_OPERATOR_SOURCE",
        "TAIL_CUDA_SOURCE",
        "TAIL_OPERATOR_SOURCE",
        "TAIL_GRADIENT_CUDA_SOURCE",
        "TAIL_GRADIENT_OPERATOR_SOURCE",
        "_SLUG",
        "_DIGEST",
        *("_CHAIN", "_CHAIN_NUMBER", "_KEEPS_RESULT", "_RESULT_CHAINS"),
        "_ACTIVATION",
        "_TENSORS",
        "_TAILS",
        "_TAIL_CHAINS",
        "_FOLDED_NORMS",
        "_INNER",
        "_COMPILED_IN",
        "_COMPILED_NAMES",
        "_SIZES",
        "_require_compiled_in",
    }
    for statement in split(reference.source, reference.tree):
        shared = statement.defines & ours
        if statement.is_import and statement.text == "import torch":
            continue
        if "torch" in statement.defines and not isinstance(statement.node, ast.Import):
            shared |= {"torch"}
        shared -= {"torch"} if isinstance(statement.node, ast.Import) else set()
        if shared:
            raise Refusal(
                f"{reference.path}:{statement.node.lineno}: the name {sorted(shared)[0]} is one "
                "that solutions use "
                "themselves; rename it"
            )


def _broken_rules(program: Program, text: str) -> list[str]:
    return static_rules.violations(text, with_kernels=bool(program.kernels))


def _check(program: Program, text: str) -> None:
    """Raises Refusal where a text checker of the benchmark would not take the solution; it may warn
    of what comes from the reference's own text.
    """
    broken = static_rules.rejections(text)
    if broken:
        raise Refusal(
            f"{program.reference.path}: its text holds what KernelBench's checker takes for "
            f"cheating, so its solution would be rejected: {'; '.join(broken)}"
        )
    compile(text, "<solution>", "exec")
