"""Records of arithmetic, powers, logarithm and bounds."""

import math
import operator

from generator.ops.record import Binary, Number, Operand, Unary
from generator.step_table import Step, literal, number

_PIECEWISE = "elementwise/piecewise.h"


def _negate() -> Step:
    return Step("neg", "v = -v;", "_Negate()", gradient="grad = -grad;")


def _absolute() -> Step:
    gradient = "grad = grad * elementwise::sign(before);"
    return Step("abs", "v = std::fabs(v);", "_Absolute()", gradient=gradient)


def _square() -> Step:
    gradient = "grad = grad * (Acc(2) * before);"
    return Step("square", "v = v * v;", "_Power(2)", gradient=gradient)


def _sqrt() -> Step:
    gradient = "grad = grad / (Acc(2) * after);"
    return Step("sqrt", "v = std::sqrt(v);", "_Sqrt()", gradient, keeps_result=True)


def _rsqrt() -> Step:
    gradient = "grad = Acc(-0.5) * grad * (after * after * after);"
    return Step("rsqrt", "v = Acc(1) / std::sqrt(v);", "_Rsqrt()", gradient, keeps_result=True)


def _reciprocal() -> Step:
    gradient = "grad = grad * -(after * after);"
    return Step("reciprocal", "v = Acc(1) / v;", "_Reciprocal()", gradient, keeps_result=True)


def _exp() -> Step:
    device, gradient = "v = math::exp(v);", "grad = grad * after;"
    return Step("exp", device, "_Exp()", gradient, monotone=True, keeps_result=True)


def _log() -> Step:
    device, header = "v = elementwise::log_(v);", "elementwise/logarithm.h"
    return Step("log", device, "_Log()", header=header, gradient="grad = grad / before;")


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
    inner = _POWERS.get(float(exponent) - 1, f"v = std::pow(v, {number(exponent - 1)});")
    gradient = f"Acc v = before; {inner} grad = grad * ({number(exponent)} * v);"
    if exponent == 0:
        gradient = "grad = Acc(0);"
    return Step("pow", device, f"_Power({literal(exponent)})", gradient=gradient)


def _clamp(min: float | None = None, max: float | None = None) -> Step:  # PyTorch's names
    if min is None and max is None:
        raise ValueError("needs min or max")
    low, high = number(-math.inf if min is None else min), number(math.inf if max is None else max)
    device = f"v = elementwise::clamp(v, {low}, {high});"
    python = f"_Clamp({literal(min)}, {literal(max)})"
    within = f"before >= {low} && before <= {high}"
    gradient = f"grad = {within} ? grad : Acc(0);"
    return Step("clamp", device, python, gradient, monotone=True, condition=within)


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
    device, python = f"v = v + {operand.device};", f"_Add({operand.python}, 1, 1)"
    return Step("add", device, python, operand.take("grad"), monotone=_is_finite(operand))


def _subtract(operand: Operand, swapped: bool) -> Step:
    if swapped:
        device, python = f"v = {operand.device} - v;", f"_Add({operand.python}, -1, 1)"
        return Step("sub", device, python, f"{operand.take('grad')} grad = -grad;")
    device, python = f"v = v - {operand.device};", f"_Add({operand.python}, 1, -1)"
    return Step("sub", device, python, operand.take("-grad"), monotone=_is_finite(operand))


def _multiply(operand: Operand, swapped: bool) -> Step:
    device, python = f"v = v * {operand.device};", f"_Multiply({operand.python})"
    gradient = f"{operand.take('grad * before')} grad = grad * {operand.device};"
    return Step("mul", device, python, gradient)


def _reciprocal_of(operand: Operand) -> float | None:
    """What a division by `operand` multiplies by, as PyTorch's on a GPU does: a division is some
    ten instructions and a branch. None by powers of two, which compilers see, and where it would
    leave the range of normal numbers.
    """
    if not _is_finite(operand):
        return None
    fraction, exponent = math.frexp(operand.value)
    return 1 / operand.value if abs(fraction) > 0.5 and abs(exponent) < 100 else None


def _divide(operand: Operand, swapped: bool) -> Step:
    if not swapped:
        reciprocal = _reciprocal_of(operand)
        by = f"/ {operand.device}" if reciprocal is None else f"* {number(reciprocal)}"
        take = operand.take(f"-grad * (after {by})")
        python = f"_Divide({operand.python})"
        return Step("div", f"v = v {by};", python, f"{take} grad = grad {by};")
    # PyTorch multiplies the reciprocal by a number, and divides a tensor.
    device = "Acc(1) / v * {}" if _is_number(operand) else "{} / v"
    device, python = f"v = {device.format(operand.device)};", f"_DivideInto({operand.python})"
    gradient = f"{operand.take('grad / before')} grad = -grad * (after / before);"
    return Step("div", device, python, gradient)


def _bound(kind: str, operand: Operand, beyond: str, within: str) -> Step:
    """min or max: v gets no gradient where it is `beyond` the operand, which gets none where v is
    `within`, and each gets half of it where they are equal.
    """
    other = operand.device
    function = {"min": "minimum", "max": "maximum"}[kind]
    share = f"grad = before == {other} ? grad / Acc(2) : grad;"
    take = operand.take(f"before {within} {other} ? Acc(0) : grad")
    gradient = f"{share} {take} grad = before {beyond} {other} ? Acc(0) : grad;"
    device = f"v = elementwise::{function}(v, {other});"
    python = f"_{function.capitalize()}({operand.python})"
    return Step(kind, device, python, gradient, _is_number(operand), _PIECEWISE)


def _minimum(operand: Operand, swapped: bool) -> Step:
    return _bound("min", operand, ">", "<")


def _maximum(operand: Operand, swapped: bool) -> Step:
    return _bound("max", operand, "<", ">")


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
