"""Element-wise steps: one table from a step to its device code and to its class in
generator/runtime/step_gradients.py.
"""

import dataclasses
import math
from typing import Any


@dataclasses.dataclass(frozen=True)
class Step:
    """One element-wise step. `device` is C++ that changes `v`; `python` constructs the step for the
    backward. `header`: of kernels_src, with what `device` calls beside elementwise.h.
    """

    kind: str
    device: str
    python: str
    monotone: bool = False
    header: str | None = None


def number(value: float) -> str:
    """A C++ expression of type Acc for a Python number."""
    value = float(value)
    if math.isinf(value):
        return "Acc(INFINITY)" if value > 0 else "-Acc(INFINITY)"
    return f"Acc({value!r})"


def literal(value: Any) -> str:
    """The same value as Python source, which has no name for infinity."""
    if isinstance(value, float) and math.isinf(value):
        return f'float("{value}")'
    return repr(value)


def relu() -> Step:
    return Step("relu", "v = elementwise::relu(v);", "_Relu()", monotone=True)


def gelu(approximate: str) -> Step:
    function, header = {
        "none": ("gelu_erf<Storage>", None),
        "tanh": ("gelu_tanh", "gelu_tanh.h"),
    }[approximate]
    device = f"v = elementwise::{function}(v);"
    return Step("gelu", device, f'_Gelu("{approximate}")', header=header)


def tanh() -> Step:
    return Step("tanh", "v = elementwise::tanh_(v);", "_Tanh()", monotone=True)


def sigmoid() -> Step:
    return Step("sigmoid", "v = elementwise::sigmoid(v);", "_Sigmoid()", monotone=True)


def hardtanh(low: float, high: float) -> Step:
    device = f"v = elementwise::clamp(v, {number(low)}, {number(high)});"
    return Step("hardtanh", device, f"_Hardtanh({literal(low)}, {literal(high)})")


def clamp(low: float | None, high: float | None) -> Step:
    bounds = number(-math.inf if low is None else low), number(math.inf if high is None else high)
    device = f"v = elementwise::clamp(v, {bounds[0]}, {bounds[1]});"
    return Step("clamp", device, f"_Clamp({literal(low)}, {literal(high)})")


def add(value: float) -> Step:
    return Step("add", f"v = v + {number(value)};", f"_Affine(1, {literal(value)})")


def subtract_from(value: float) -> Step:
    """value - v"""
    return Step("sub", f"v = {number(value)} - v;", f"_Affine(-1, {literal(value)})")


def multiply(value: float) -> Step:
    return Step("mul", f"v = v * {number(value)};", f"_Affine({literal(value)}, 0)")


def divide(value: float) -> Step:
    return Step("div", f"v = v / {number(value)};", f"_Divide({literal(value)})")


def _vector(index: int) -> str:
    return f"static_cast<Acc>(args.channel_vectors[{index}][channel])"


def add_vector(index: int, v_sign: int = 1, vector_sign: int = 1) -> Step:
    """v_sign * v + vector_sign * vector; at least one sign is +1."""
    vector = _vector(index)
    if vector_sign < 0:
        device = f"v = v - {vector};"
    elif v_sign < 0:
        device = f"v = {vector} - v;"
    else:
        device = f"v = v + {vector};"
    return Step("add", device, f"_AddVector({index}, {v_sign}, {vector_sign})")


def multiply_vector(index: int) -> Step:
    return Step("mul", f"v = v * {_vector(index)};", f"_MultiplyVector({index})")


def divide_vector(index: int) -> Step:
    return Step("div", f"v = v / {_vector(index)};", f"_DivideVector({index})")


def epilogue_header(steps: list[Step]) -> str:
    """The text that takes the place of kernels_src/generated_epilogue.h."""
    body = "".join(f"    {step.device}\n" for step in steps)
    headers = sorted({step.header for step in steps if step.header})
    included = "".join(f'#include "{header}"\n' for header in headers)
    return f"""#pragma once
{included}
namespace tconv {{

struct Epilogue {{
  template <typename Acc, typename Storage>
  static TCONV_HD Acc apply(Acc v, const EpilogueArgs<Storage>& args, int64_t channel) {{
    (void)args;
    (void)channel;
{body}    return v;
  }}
}};

}}  // namespace tconv
"""


def activation_header(step: Step) -> str:
    """The text that takes the place of kernels_src/generated_activation.h."""
    return f"""#pragma once

#include "elementwise.h"

namespace tconv {{

struct Activation {{
  template <typename Acc>
  static TCONV_HD Acc apply(Acc v) {{
    {step.device}
    return v;
  }}
}};

}}  // namespace tconv
"""
