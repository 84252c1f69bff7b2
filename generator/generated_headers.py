"""The headers that a solution's own operations become."""

from generator.fuse import Fused
from generator.step_table import Step, activation_header, epilogue_header, operands_header

HEADERS = ("generated_epilogue.h", "generated_activation.h", "generated_operands.h")
_NO_ACTIVATION = Step("identity", "", "", "")


def generated_headers(fused: list[Fused], whole: bool, masked: bool) -> dict[str, str]:
    """Texts by the names of files in kernels_src that they take the place of. whole: one of the
    kernels reads tensors of its output's shape; masked: the only one leaves a mask.
    """
    headers = [_headers(f, whole, masked) for f in fused]
    if any(f.activation is not None for f in fused):
        # The kernels behind BatchNorm name it in every call's text, which instantiates none.
        for header in headers:
            header.setdefault("generated_activation.h", activation_header(_NO_ACTIVATION))
    return headers[0] if len(fused) == 1 else {name: _chosen(name, headers) for name in HEADERS}


def _headers(fused: Fused, whole: bool, masked: bool) -> dict[str, str]:
    made = {"generated_epilogue.h": epilogue_header(fused.steps, whole, masked)}
    if whole:
        made["generated_operands.h"] = operands_header(fused.whole)
    if fused.activation is not None:
        made["generated_activation.h"] = activation_header(fused.activation)
    return made


def _chosen(name: str, headers: list[dict[str, str]]) -> str:
    """One text for all calls: what each includes, then the part of the call that is built."""
    included: dict[str, None] = {}
    parts = []
    for index, header in enumerate(headers):
        lines = header.get(name, "").splitlines()
        included |= dict.fromkeys(line for line in lines if line.startswith("#include"))
        rest = [line for line in lines if not line.startswith(("#include", "#pragma once"))]
        if any(rest):
            parts += [f"#if TCONV_CALL == {index}", *rest, "#endif"]
    return "\n".join(["#pragma once", *included, *parts, ""])
