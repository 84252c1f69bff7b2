"""Records of arithmetic, powers, logarithm and bounds."""

import math
import operator

from generator.ops.record import Binary, Number, Operand, Unary
from generator.step_table import Step, literal, number

_PIECEWISE = "elementwise/piecewise.h"


def _negate() -> Step:
    return Step("neg", "v = -v;", "_Negate()")


def _absolute() -> Step:
    return Step("abs", "v = std::fabs(v);", "_Absolute()")


def _square() -> Step:
    return Step("square", "v = v * v;", "_Power(2)")


def _sqrt() -> Step:
    return Step("sqrt", "v = std::sqrt(v);", "_Sqrt()")


def _rsqrt() -> Step:
    return Step("rsqrt", "v = Acc(1) / std::sqrt(v);", "_Rsqrt()")


def _reciprocal() -> Step:
    return Step("reciprocal", "v = Acc(1) / v;", "_Reciprocal()")


def _exp() -> Step:
    return Step("exp", "v = math::exp(v);", "_Exp()", monotone=True)


def _log() -> Step:
    return Step("log", "v = elementwise::log_(v);", "_Log()", header="elementwise/logarithm.h")


# What PyTorch computes by other functions than pow, which answer otherwise at -0 and -Inf.
_POWERS = {
    0.0: "v = Acc(1);",
    1.0: "",
    2.0: "v = v * v;",
    3.0: "v = v * v * v;",
    0.5: "v = std::sqrt(v);",
    -0.5: "v = Acc(1) / std::sqrt(v);",
    -1.0: "v = Acc(1) / v;",
    -2.0: "v = Acc(1) / (v * v);",
}


def _power(exponent: float) -> Step:
    device = _POWERS.get(float(exponent), f"v = std::pow(v, {number(exponent)});")
    return Step("pow", device, f"_Power({literal(exponent)})")


def _clamp(min: float | None = None, max: float | None = None) -> Step:  # PyTorch's names
    if min is None and max is None:
        raise ValueError("needs min or max")
    low, high = number(-math.inf if min is None else min), number(math.inf if max is None else max)
    device = f"v = elementwise::clamp(v, {low}, {high});"
    return Step("clamp", device, f"_Clamp({literal(min)}, {literal(max)})", monotone=True)


ARITHMETIC = (
    Unary("neg", _negate, ("neg.default",), ("neg", "negative"), operators=(operator.neg,)),
    Unary("abs", _absolute, ("abs.default",), ("abs", "absolute"), operators=(operator.abs,)),
    Unary("square", _square, ("square.default",), ("square",)),
    Unary("sqrt", _sqrt, ("sqrt.default",), ("sqrt",)),
    Unary("rsqrt", _rsqrt, ("rsqrt.default",), ("rsqrt",)),
    Unary("reciprocal", _reciprocal, ("reciprocal.default",), ("reciprocal",)),
    Unary("exp", _exp, ("exp.default",), ("exp",)),
    Unary("log", _log, ("log.default",), ("log",)),
    Unary(
        "pow",
        _power,
        ("pow.Tensor_Scalar", "pow_.Scalar"),
        ("pow",),
        operators=(operator.pow, operator.ipow),
    ),
    Unary("clamp", _clamp, ("clamp.default", "clip.default"), ("clamp", "clip")),
    Unary("clamp_min", lambda min: _clamp(min, None), ("clamp_min.default",), ("clamp_min",)),
    Unary("clamp_max", lambda max: _clamp(None, max), ("clamp_max.default",), ("clamp_max",)),
)


def _is_number(operand: Operand) -> bool:
    return isinstance(operand, Number)


def _is_finite(operand: Operand) -> bool:
    return isinstance(operand, Number) and math.isfinite(operand.value)


def _add(operand: Operand, swapped: bool) -> Step:
    device = f"v = v + {operand.device};"
    return Step("add", device, f"_Add({operand.python}, 1, 1)", monotone=_is_finite(operand))


def _subtract(operand: Operand, swapped: bool) -> Step:
    if swapped:
        return Step("sub", f"v = {operand.device} - v;", f"_Add({operand.python}, -1, 1)")
    device = f"v = v - {operand.device};"
    return Step("sub", device, f"_Add({operand.python}, 1, -1)", monotone=_is_finite(operand))


def _multiply(operand: Operand, swapped: bool) -> Step:
    return Step("mul", f"v = v * {operand.device};", f"_Multiply({operand.python})")


def _divide(operand: Operand, swapped: bool) -> Step:
    if not swapped:
        return Step("div", f"v = v / {operand.device};", f"_Divide({operand.python})")
    # PyTorch multiplies the reciprocal by a number, and divides a tensor.
    device = "Acc(1) / v * {}" if _is_number(operand) else "{} / v"
    device = f"v = {device.format(operand.device)};"
    return Step("div", device, f"_DivideInto({operand.python})")


def _minimum(operand: Operand, swapped: bool) -> Step:
    device = f"v = elementwise::minimum(v, {operand.device});"
    return Step("min", device, f"_Minimum({operand.python})", _is_number(operand), _PIECEWISE)


def _maximum(operand: Operand, swapped: bool) -> Step:
    device = f"v = elementwise::maximum(v, {operand.device});"
    return Step("max", device, f"_Maximum({operand.python})", _is_number(operand), _PIECEWISE)


BINARY = (
    Binary(
        "add",
        _add,
        ("add.Tensor", "add.Scalar"),
        methods=("add",),
        operators=(operator.add, operator.iadd),
    ),
    Binary(
        "sub",
        _subtract,
        ("sub.Tensor", "sub.Scalar", "subtract.Tensor", "subtract.Scalar"),
        reversed_overloads=("rsub.Tensor", "rsub.Scalar"),
        methods=("sub", "subtract"),
        operators=(operator.sub, operator.isub),
    ),
    Binary(
        "mul",
        _multiply,
        ("mul.Tensor", "mul.Scalar", "multiply.Tensor", "multiply.Scalar"),
        methods=("mul", "multiply"),
        operators=(operator.mul, operator.imul),
    ),
    Binary(
        "div",
        _divide,
        (
            "div.Tensor",
            "div.Scalar",
            "divide.Tensor",
            "divide.Scalar",
            "true_divide.Tensor",
            "true_divide.Scalar",
        ),
        methods=("div", "divide", "true_divide"),
        operators=(operator.truediv, operator.itruediv),
    ),
    Binary(
        "min",
        _minimum,
        ("minimum.default", "min.other"),
        methods=("minimum", "min"),
        takes_numbers=False,
    ),
    Binary(
        "max",
        _maximum,
        ("maximum.default", "max.other"),
        methods=("maximum", "max"),
        takes_numbers=False,
    ),
)
