"""Records of activations."""

import math

from torch import nn

from generator.ops.record import Unary
from generator.step_table import Step, literal, number

_PIECEWISE = "elementwise/piecewise.h"
_TIMES = "grad = grad * elementwise::{};".format
_WHERE = "grad = {} ? {} : {};".format
# Constants of nn.SELU's documentation.
_SELU = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def _relu() -> Step:
    gradient = _WHERE("after <= Acc(0)", "Acc(0)", "grad")
    device = "v = elementwise::relu(v);"
    return Step("relu", device, "_Relu()", gradient, monotone=True, keeps_result=True)


def _hardtanh(min_val: float = -1.0, max_val: float = 1.0) -> Step:
    if min_val > max_val:
        raise ValueError(f"needs min_val <= max_val, got {min_val!r} and {max_val!r}")
    low, high = number(min_val), number(max_val)
    device = f"v = elementwise::clamp(v, {low}, {high});"
    python = f"_Hardtanh({literal(min_val)}, {literal(max_val)})"
    beyond = f"before <= {low} || before >= {high}"
    gradient = _WHERE(beyond, "Acc(0)", "grad")
    return Step("hardtanh", device, python, gradient, monotone=True, condition=beyond)


def _relu6(min_val: float = 0.0, max_val: float = 6.0) -> Step:
    return _hardtanh(min_val, max_val)


def _gelu(approximate: str = "none") -> Step:
    forms = {
        "none": ("gelu_erf<Storage>", None, "gelu_erf_slope<Storage>(before)"),
        "tanh": ("gelu_tanh", "gelu_tanh.h", "gelu_tanh_slope(before)"),
    }
    if approximate not in forms:
        raise ValueError(f"knows the forms 'none' and 'tanh', got approximate={approximate!r}")
    function, header, slope = forms[approximate]
    device, python = f"v = elementwise::{function}(v);", f'_Gelu("{approximate}")'
    return Step("gelu", device, python, header=header, gradient=_TIMES(slope))


def _tanh() -> Step:
    gradient = "grad = grad * (Acc(1) - after * after);"
    device = "v = elementwise::tanh_(v);"
    return Step("tanh", device, "_Tanh()", gradient, monotone=True, keeps_result=True)


def _sigmoid() -> Step:
    gradient = "grad = grad * ((Acc(1) - after) * after);"
    device = "v = elementwise::sigmoid(v);"
    return Step("sigmoid", device, "_Sigmoid()", gradient, monotone=True, keeps_result=True)


def _leaky_relu(negative_slope: float = 0.01) -> Step:
    device = f"v = elementwise::leaky_relu(v, {number(negative_slope)});"
    python = f"_LeakyRelu({literal(negative_slope)})"
    above = "before > Acc(0)"
    gradient = _WHERE(above, "grad", f"grad * {number(negative_slope)}")
    rises = 0 < negative_slope < math.inf
    return Step("leaky_relu", device, python, gradient, rises, _PIECEWISE, condition=above)


def _any_elu(kind: str, alpha: float, scale: float, input_scale: float) -> Step:
    """scale * v above 0, scale * alpha * (exp(input_scale * v) - 1) below."""
    factors = f"{number(alpha)} * {number(scale)}, {number(scale)}, {number(input_scale)}"
    device = f"v = elementwise::elu(v, {factors});"
    python = f"_Elu({literal(alpha)}, {literal(scale)}, {literal(input_scale)})"
    rises = all(0 < factor < math.inf for factor in (alpha, scale, input_scale))
    below = (
        f"{number(alpha * scale * input_scale)} * Acc(math::exp(before * {number(input_scale)}))"
    )
    gradient = f"grad = grad * (before <= Acc(0) ? {below} : {number(scale)});"
    return Step(kind, device, python, gradient, rises, "elementwise/elu.h")


def _elu(alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Step:
    return _any_elu("elu", alpha, scale, input_scale)


def _selu() -> Step:
    return _any_elu("selu", *_SELU, 1.0)


def _celu(alpha: float = 1.0) -> Step:
    if alpha == 0:
        raise ValueError("needs an alpha other than 0")
    return _any_elu("celu", alpha, 1.0, 1 / alpha)


def _silu() -> Step:
    gradient = _TIMES("silu_slope(before)")
    return Step(
        "silu", "v = elementwise::silu(v);", "_Silu()", gradient, header="elementwise/silu.h"
    )


def _mish() -> Step:
    gradient = _TIMES("mish_slope(before)")
    return Step(
        "mish", "v = elementwise::mish(v);", "_Mish()", gradient, header="elementwise/mish.h"
    )


def _hardswish() -> Step:
    device = "v = elementwise::hardswish(v);"
    inner = _WHERE("before < Acc(3)", "grad * (before * Acc(1.0 / 3) + Acc(0.5))", "grad")
    gradient = f"{inner} {_WHERE('before <= Acc(-3)', 'Acc(0)', 'grad')}"
    return Step("hardswish", device, "_Hardswish()", gradient, header=_PIECEWISE)


def _hardsigmoid() -> Step:
    device = "v = elementwise::hardsigmoid(v);"
    within = "before > Acc(-3) && before < Acc(3)"
    gradient = _WHERE(within, "grad * Acc(1.0 / 6)", "Acc(0)")
    python = "_Hardsigmoid()"
    return Step("hardsigmoid", device, python, gradient, True, _PIECEWISE, condition=within)


def _softplus(beta: float = 1.0, threshold: float = 20.0) -> Step:
    numbers = f"{number(beta)}, {number(threshold)}"
    device = f"v = elementwise::softplus(v, {numbers});"
    python = f"_Softplus({literal(beta)}, {literal(threshold)})"
    gradient = _TIMES(f"softplus_slope(before, {numbers})")
    return Step("softplus", device, python, gradient, header="elementwise/softplus.h")


def _softsign() -> Step:
    size = "(std::fabs(before) + Acc(1))"
    gradient = (
        f"grad = grad / {size} - grad * (before / {size}) / {size} * elementwise::sign(before);"
    )
    device = "v = elementwise::softsign(v);"
    return Step("softsign", device, "_Softsign()", gradient, header=_PIECEWISE)


def _threshold(threshold: float, value: float) -> Step:
    device = f"v = elementwise::threshold(v, {number(threshold)}, {number(value)});"
    python = f"_Threshold({literal(threshold)}, {literal(value)})"
    below = f"before <= {number(threshold)}"
    gradient = _WHERE(below, "Acc(0)", "grad")
    return Step("threshold", device, python, gradient, header=_PIECEWISE, condition=below)


ACTIVATIONS = (
    Unary("relu", _relu, ("relu.default",), ("relu",), ("relu",), module=nn.ReLU),
    Unary(
        "hardtanh",
        _hardtanh,
        ("hardtanh.default",),
        functional=("hardtanh",),
        module=nn.Hardtanh,
        attributes=("min_val", "max_val"),
    ),
    Unary(
        "relu6",
        _relu6,
        ("relu6.default",),
        functional=("relu6",),
        module=nn.ReLU6,
        attributes=("min_val", "max_val"),
    ),
    Unary(
        "gelu",
        _gelu,
        ("gelu.default",),
        functional=("gelu",),
        module=nn.GELU,
        attributes=("approximate",),
    ),
    Unary("tanh", _tanh, ("tanh.default",), ("tanh",), ("tanh",), module=nn.Tanh),
    Unary("sigmoid", _sigmoid, ("sigmoid.default",), ("sigmoid",), ("sigmoid",), module=nn.Sigmoid),
    Unary(
        "leaky_relu",
        _leaky_relu,
        ("leaky_relu.default",),
        functional=("leaky_relu",),
        module=nn.LeakyReLU,
        attributes=("negative_slope",),
    ),
    Unary(
        "elu",
        _elu,
        ("elu.default",),
        functional=("elu",),
        module=nn.ELU,
        attributes=("alpha",),
    ),
    Unary("selu", _selu, ("selu.default",), ("selu",), ("selu",), module=nn.SELU),
    Unary(
        "celu",
        _celu,
        ("celu.default",),
        ("celu",),
        ("celu",),
        module=nn.CELU,
        attributes=("alpha",),
    ),
    Unary("silu", _silu, ("silu.default",), functional=("silu",), module=nn.SiLU),
    Unary("mish", _mish, ("mish.default",), functional=("mish",), module=nn.Mish),
    Unary(
        "hardswish",
        _hardswish,
        ("hardswish.default",),
        functional=("hardswish",),
        module=nn.Hardswish,
    ),
    Unary(
        "hardsigmoid",
        _hardsigmoid,
        ("hardsigmoid.default",),
        functional=("hardsigmoid",),
        module=nn.Hardsigmoid,
    ),
    Unary(
        "softplus",
        _softplus,
        ("softplus.default",),
        functional=("softplus",),
        module=nn.Softplus,
        attributes=("beta", "threshold"),
    ),
    # ATen has no overload of its own: v / (|v| + 1)
    Unary("softsign", _softsign, (), functional=("softsign",), module=nn.Softsign),
    Unary(
        "threshold",
        _threshold,
        ("threshold.default",),
        ("threshold",),
        ("threshold",),
        module=nn.Threshold,
        attributes=("threshold", "value"),
    ),
)
