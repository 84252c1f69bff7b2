"""Writes the text of a solution file."""

import ast
import dataclasses
import hashlib
import re
import textwrap
from pathlib import Path

from generator import build_text, static_rules
from generator.calls import Modules, modules_of
from generator.checks import Checks, at_call, at_construction, constants_text, same_modes
from generator.docstring import docstring, slug
from generator.errors import Refusal
from generator.expressions import module_path
from generator.forward_text import body, signature
from generator.kernels import Kernels, sources
from generator.model_class import solution_statements
from generator.operator_layer import runtime_statements
from generator.program import Program, ambient_kept, read_program
from generator.prove import prove
from generator.reference import Reference
from generator.statements import Statement, needed, split
from harness.files import write_files

_LATE = ("_CHAIN", "_ACTIVATION", "_TAIL_CHAINS")  # constants that need what stands above them
_CHECKED = "_checked_at_construction(ModelNew, _require_compiled_in)"


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
        constants = {"_SLUG": repr(slug(reference.path))} | constants
    made, forward, checked = _forward(program, kernels)
    late = constants_text(made)
    written = "\n".join([*constants.values(), *late.values(), forward, checked])
    own = runtime_statements(kernels, f"{written}\n{_CHECKED if checked else ''}")
    builds = build_text.build_text(own, len(kernels.folds))
    if kernels.all:
        constants["_DIGEST"] = repr(_digest(own, constants | late))
    theirs = solution_statements(reference, signature(reference), forward, without_forwards)
    _refuse_clashes(reference, own, theirs)
    return "\n".join(
        [
            docstring(program, output_path, kernels),
            _imports(own, theirs),
            "",
            *_operator_layer(kernels, constants, own),
            *(f"{name} = {value}" for name, value in late.items()),
            _join([statement for statement in theirs if not statement.is_import]),
            *(["", "", checked, "", "", _CHECKED] if checked else []),
            *(["", "", builds] if builds else [""]),
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
        "_CHAIN",
        "_CHAIN_NUMBER",
        "_KEEPS_RESULT",
        "_RESULT_CHAINS",
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
        build_text.NAME,
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
