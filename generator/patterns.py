"""The chains that have kernels, and what a solution of each is made of."""

import dataclasses

from generator import step_table
from generator.call_arguments import module_path
from generator.chain import Chain, Operation
from generator.errors import Refusal
from generator.reference import Reference

PATTERNS = """the generator knows these chains:
  ConvTranspose2d, then element-wise operations
  ConvTranspose2d, then element-wise operations, GroupNorm
  ConvTranspose2d, BatchNorm2d, a rising activation, MaxPool2d, GroupNorm"""


@dataclasses.dataclass
class Match:
    """A recognised chain. `forward` is the body of ModelNew.forward."""

    entry: str  # kernels_src/<device>/entry_<entry>.*, generator/runtime/<entry>.py
    headers: dict[str, str]  # generated headers by file name
    constants: dict[str, str]  # what stands in for generator/runtime/generated.py
    forward: str
    summary: str  # the chain in words
    method: str  # what the kernels do


def match(reference: Reference, chain: Chain) -> Match:
    """Picks the pattern of a chain. Raises Refusal naming the first operation out of place."""
    operations = chain.operations
    kinds = [operation.kind for operation in operations]
    if not operations:
        raise Refusal(f"{reference.path}: forward does nothing; {PATTERNS}")
    if kinds[0] != "conv":
        _refuse(reference, operations[0], "is not the ConvTranspose2d that a chain begins with")
    num_steps = next((i for i, kind in enumerate(kinds[1:]) if kind != "step"), len(kinds) - 1)
    elementwise, rest = operations[1 : 1 + num_steps], operations[1 + num_steps :]
    if not rest:
        return _conv(chain, operations[0], elementwise)
    if rest[0].kind == "group_norm":
        if len(rest) > 1:
            _refuse(reference, rest[1], "comes after GroupNorm, which must be the last operation")
        return _conv_group_norm(chain, operations[0], elementwise, rest[0])
    if rest[0].kind != "batch_norm":
        _refuse(reference, rest[0], "cannot follow here")
    if elementwise:
        _refuse(reference, elementwise[0], "stands between ConvTranspose2d and BatchNorm2d")
    return _conv_batch_norm_pool_group_norm(reference, chain, operations[0], rest)


def _refuse(reference: Reference, operation: Operation, why: str) -> None:
    raise Refusal(f"{reference.path}:{operation.line}: {operation.label} {why}; {PATTERNS}")


def _lines(*arguments: str) -> str:
    return "".join(f"            {argument},\n" for argument in arguments)


def _call(function: str, *arguments: str) -> str:
    return f"{function}(\n{_lines(*arguments)}        )"


def _forward(chain: Chain, operations: list[Operation], result: str) -> str:
    """The body of ModelNew.forward: modules looked up once, they and constants checked, then the
    call.
    """
    local = {
        path: name
        for name, path in (o.values["module"] for o in operations if "module" in o.values)
    }
    lines = [f"{name} = {path}" for path, name in local.items()]
    if chain.inner:
        paths = [module_path(name) for name, _ in chain.inner]
        inner = [local.get(path, path) for path in paths]
        lines.append(_call("_require_inner_modules", "_INNER", *inner))
    if chain.constants:
        given = [expression for _, expression, _ in chain.constants]
        for path, name in local.items():
            given = [expression.replace(f"{path}.", f"{name}.") for expression in given]
        lines.append(_call("_require_constants", "_COMPILED_NAMES", "_COMPILED_IN", *given))
    return "\n".join(f"        {line}" for line in [*lines, f"return {result}"])


def _checked(chain: Chain) -> dict[str, str]:
    """The constants that the generated forward compares the model with."""
    made = {}
    if chain.inner:
        rows = [(step_table.literal(name), kind) for name, kind in chain.inner]
        inner = "".join(f"    ({name}, {kind}),\n" for name, kind in rows)
        made["_INNER"] = f"(\n{inner})"
    if chain.constants:
        values = [step_table.literal(value) for _, _, value in chain.constants]
        names = [step_table.literal(name) for name, _, _ in chain.constants]
        made["_COMPILED_NAMES"] = f"({', '.join(names)},)"
        made["_COMPILED_IN"] = f"({', '.join(values)},)"
    return made


def _chain_constants(chain: Chain, elementwise: list[Operation]) -> dict[str, str]:
    made = [operation.values["step"].python for operation in elementwise]
    return {
        "_CHAIN": f"({', '.join(made)}{',' if made else ''})",
        "_NUM_VECTORS": str(len(chain.vectors)),
    }


def _epilogue(elementwise: list[Operation]) -> dict[str, str]:
    made = [operation.values["step"] for operation in elementwise]
    return {"generated_epilogue.h": step_table.epilogue_header(made)}


def _summary(operations: list[Operation]) -> str:
    return " -> ".join(operation.label for operation in operations)


def _conv(chain: Chain, conv: Operation, elementwise: list[Operation]) -> Match:
    call = _call(
        "_operator",
        chain.input_name,
        *conv.values["arguments"],
        *conv.values["parameters"],
        *chain.vectors,
    )
    if chain.adds_batch_dimension:
        call = f"_with_batch_dimension({call})"
    return Match(
        entry="conv",
        headers=_epilogue(elementwise),
        constants=_chain_constants(chain, elementwise) | _checked(chain),
        forward=_forward(chain, [conv], call),
        summary=_summary([conv, *elementwise]),
        method=(
            "One kernel walks a tap table: outputs with the same residue modulo the stride share "
            "their taps, so every "
            "phase is a dense sliding product and no multiplication by an inserted zero is done. "
            "Bias and element-wise "
            "operations are applied to the accumulator before its only store."
        ),
    )


def _conv_group_norm(
    chain: Chain, conv: Operation, elementwise: list[Operation], norm: Operation
) -> Match:
    call = _call(
        "_operator",
        chain.input_name,
        *conv.values["arguments"],
        *conv.values["parameters"],
        *norm.values["arguments"],
        *chain.vectors,
    )
    return Match(
        entry="conv_group_norm",
        headers=_epilogue(elementwise),
        constants=_chain_constants(chain, elementwise) | _checked(chain),
        forward=_forward(chain, [conv, norm], call),
        summary=_summary([conv, *elementwise, norm]),
        method=(
            "The convolution walks a tap table (outputs with the same residue modulo the stride "
            "share their taps); bias, "
            "element-wise operations and the moments that GroupNorm needs are computed while a "
            "tile is on chip, so the "
            "statistics cost no read of the output. Normalisation reads the moments and rewrites "
            "the output once."
        ),
    )


def _conv_batch_norm_pool_group_norm(
    reference: Reference, chain: Chain, conv: Operation, rest: list[Operation]
) -> Match:
    expected = ("batch_norm", "step", "max_pool", "group_norm")
    for operation, kind in zip(rest, expected, strict=False):
        activation = operation.values.get("step")
        if operation.kind != kind or (activation is not None and not activation.monotone):
            _refuse(reference, operation, "cannot follow here")
    if len(rest) < len(expected):
        _refuse(reference, rest[-1], "cannot be the last operation")
    if len(rest) > len(expected):
        _refuse(reference, rest[4], "comes after GroupNorm, which must be the last operation")
    norm, activation, pool, group_norm = rest
    step = activation.values["step"]
    arguments = [
        norm.values["module"][0],
        chain.input_name,
        *conv.values["arguments"],
        f"({', '.join(conv.values['parameters'])})",
        f"({', '.join(pool.values['arguments'])})",
        f"({', '.join(group_norm.values['arguments'])})",
    ]
    return Match(
        entry="conv_batch_norm_pool_group_norm",
        headers={
            "generated_epilogue.h": step_table.epilogue_header([]),
            "generated_activation.h": step_table.activation_header(step),
        },
        constants={"_ACTIVATION": step.python} | _checked(chain),
        forward=_forward(chain, [conv, *rest], _call("_forward_and_track", *arguments)),
        summary=_summary([conv, *rest]),
        method=(
            "The convolution walks a tap table and gathers the moments of every channel for "
            "BatchNorm. BatchNorm is "
            "affine per channel and the activation never decreases, so max-pooling can come first "
            "(the minimum where the "
            "scale is negative): BatchNorm, activation and GroupNorm then work on the pooled "
            "image only."
        ),
    )
