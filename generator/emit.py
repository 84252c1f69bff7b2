"""Writes the text of a solution file."""

import ast
import hashlib
import re
import textwrap
from pathlib import Path

from generator import static_rules
from generator.chain import read_chain
from generator.errors import Refusal
from generator.model_class import solution_statements
from generator.patterns import Match, match
from generator.reference import Reference, load_reference, trace
from generator.sources import (
    ROOT,
    cpu_source,
    cuda_source,
    gradient_cuda_source,
    gradient_operator_source,
    operator_source,
    without_shared_lines,
)
from generator.statements import Statement, needed, split
from harness.files import write_files

RUNTIME = Path(__file__).resolve().parent / "runtime"

_LATE = ("_CHAIN", "_ACTIVATION", "_INNER")  # constants that need what stands above them

_PRECISION = """\
Precision. fp32 on CUDA follows PyTorch's switches at every call (torch.backends.cudnn.allow_tf32
and the fp32_precision settings). TF32 allowed means operands rounded to nearest to 11 significant
bits, what TF32 keeps, and products summed in fp32; the tensor cores read those operands as fp16
numbers, scaled by powers of two that are undone exactly, and where fp16's range cannot hold them to
TF32's accuracy a guard on the device has a strict fp32 kernel compute the outputs instead. TF32
forbidden means an fp32 answer. fp16 and bf16 are read as they are, summed in fp32, rounded once at
the end. fp64 is computed in fp64. On the CPU, fp32 is computed in
fp32."""


def generate(reference_path: Path, output_path: Path) -> str:
    """The solution's text. Raises Refusal where the reference is of no known pattern."""
    reference = load_reference(reference_path)
    chain = read_chain(reference, trace(reference))
    matched = match(reference, chain)
    cuda = cuda_source(matched.entry, matched.headers)
    cpu = cpu_source(matched.entry, matched.headers)
    operator = operator_source(matched.entry)
    shorter = without_shared_lines(gradient_cuda_source(), f"\n{cuda}")
    gradients = shorter, gradient_operator_source()
    slug = _slug(reference_path)
    constants = {"_SLUG": repr(slug), **matched.constants}
    own = _runtime_statements(matched, constants)
    constants["_DIGEST"] = repr(_digest(own, constants))
    theirs = solution_statements(reference, chain.input_name, matched.forward)
    _refuse_clashes(reference, own, theirs)
    text = "\n".join(
        [
            _docstring(reference, matched, output_path, cuda, cpu, operator, *gradients),
            _imports(own, theirs),
            "",
            f'CUDA_SOURCE = r"""\n{_raw(cuda)}"""',
            "",
            f'CPU_SOURCE = r"""\n{_raw(cpu)}"""',
            "",
            f'OPERATOR_SOURCE = r"""\n{_raw(operator)}"""',
            "",
            f'GRADIENT_CUDA_SOURCE = r"""\n{_raw(gradients[0])}"""',
            "",
            f'GRADIENT_OPERATOR_SOURCE = r"""\n{_raw(gradients[1])}"""',
            "",
            *(f"{name} = {value}" for name, value in constants.items() if name not in _LATE),
            _join([statement for statement in own if not statement.is_import]),
            "",
            "",
            *(f"{name} = {value}" for name, value in constants.items() if name in _LATE),
            _join([statement for statement in theirs if not statement.is_import]),
            "",
        ]
    )
    _check(reference, text)
    return text


def write(text: str, path: Path) -> None:
    """Writes the file as a whole or not at all. Raises UsageError where it cannot be written."""
    write_files({path: text.encode()})


def _slug(path: Path) -> str:
    return re.sub(r"\W+", "_", path.stem.lower()).strip("_")


def _shown(path: Path) -> str:
    """A path as text that does not depend on where the checkout is."""
    path = path.resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def _docstring(
    reference: Reference,
    matched: Match,
    output: Path,
    cuda: str,
    cpu: str,
    operator: str,
    gradient_cuda: str,
    gradient_operator: str,
) -> str:
    command = f"python -m generator {_shown(reference.path)} -o {_shown(output)}"
    return f'''"""{_slug(reference.path)}: {matched.summary}.

{textwrap.fill(matched.method, 98, break_on_hyphens=False)}

On a CUDA tensor the CUDA kernels run (CUDA_SOURCE), on a CPU tensor the C++ ones (CPU_SOURCE);
OPERATOR_SOURCE checks the arguments and calls them, through PyTorch's stable ABI. The convolution's
gradients on CUDA are a library of their own (GRADIENT_CUDA_SOURCE, GRADIENT_OPERATOR_SOURCE), built
when the first one is asked for; on the CPU, and with create_graph=True, they are PyTorch's.

{_PRECISION}

Numbers in the chain (scales, bounds of clamps) are compiled in, as get_init_inputs() sets them (a
model with others is refused); everything else is read from the modules at each call. Layers inside
the model are never called: one that was replaced, or that has hooks, is refused by name.

Generated, do not edit:
    {command}
sha256 of CUDA_SOURCE:     {_sha256(cuda)}
sha256 of CPU_SOURCE:      {_sha256(cpu)}
sha256 of OPERATOR_SOURCE: {_sha256(operator)}
sha256 of GRADIENT_CUDA_SOURCE:     {_sha256(gradient_cuda)}
sha256 of GRADIENT_OPERATOR_SOURCE: {_sha256(gradient_operator)}
"""
'''


def _sha256(source: str) -> str:
    """Of the string as the solution holds it: a newline, then the source."""
    return hashlib.sha256(f"\n{source}".encode()).hexdigest()


def _digest(own: list[Statement], constants: dict[str, str]) -> str:
    """Of the Python half of the operator: formulas of gradients, shapes, constants of the chain."""
    parts = [statement.text for statement in own]
    parts += [f"{name} = {value}" for name, value in constants.items()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _raw(source: str) -> str:
    if '"""' in source:
        raise Refusal("a kernel source holds three double quotes in a row")
    return source


def _runtime_statements(matched: Match, constants: dict[str, str]) -> list[Statement]:
    """The operator layer of this pattern, pruned to what is reached, in an order that Python can
    execute.
    """
    statements: list[Statement] = []
    seen: set[str] = set()

    def collect(module: str) -> None:
        if module in seen:
            return
        seen.add(module)
        own = split((RUNTIME / f"{module}.py").read_text(encoding="utf-8"))
        for statement in own:
            if isinstance(statement.node, ast.ImportFrom) and statement.node.module:
                prefix, _, name = statement.node.module.rpartition(".")
                if prefix == "generator.runtime":
                    if name != "generated":
                        collect(name)
                    continue
            statements.append(statement)

    steps = ("step_gradients", "activation_gradients")
    for module in (*steps, "forward", "inner_modules", matched.entry, "build"):
        collect(module)
    written = " ".join([*constants.values(), matched.forward])
    roots = set(re.findall(r"\b_\w+", written)) | {"_operator"}
    return needed(statements, roots)


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
        "_SLUG",
        "_DIGEST",
        "_CHAIN",
        "_ACTIVATION",
        "_INNER",
        "_COMPILED_IN",
        "_COMPILED_NAMES",
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


def _check(reference: Reference, text: str) -> None:
    broken = static_rules.violations(text)
    if broken:
        raise Refusal(
            f"{reference.path}: the solution would break a rule of the benchmark: "
            f"{'; '.join(broken)}"
        )
    compile(text, "<solution>", "exec")
