"""Records of activations."""

import math

from torch import nn

from generator.ops.record import Unary
from generator.step_table import Step, literal, number

_PIECEWISE = "elementwise/piecewise.h"
# Constants of nn.SELU's documentation.
_SELU = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def _relu() -> Step:
    return Step("relu", "v = elementwise::relu(v);", "_Relu()", monotone=True)


def _hardtanh(min_val: float = -1.0, max_val: float = 1.0) -> Step:
    if min_val > max_val:
        raise ValueError(f"needs min_val <= max_val, got {min_val!r} and {max_val!r}")
    device = f"v = elementwise::clamp(v, {number(min_val)}, {number(max_val)});"
    python = f"_Hardtanh({literal(min_val)}, {literal(max_val)})"
    return Step("hardtanh", device, python, monotone=True)


def _relu6(min_val: float = 0.0, max_val: float = 6.0) -> Step:
    return _hardtanh(min_val, max_val)


def _gelu(approximate: str = "none") -> Step:
    forms = {"none": ("gelu_erf<Storage>", None), "tanh": ("gelu_tanh", "gelu_tanh.h")}
    if approximate not in forms:
        raise ValueError(f"knows the forms 'none' and 'tanh', got approximate={approximate!r}")
    function, header = forms[approximate]
    device = f"v = elementwise::{function}(v);"
    return Step("gelu", device, f'_Gelu("{approximate}")', header=header)


def _tanh() -> Step:
    return Step("tanh", "v = elementwise::tanh_(v);", "_Tanh()", monotone=True)


def _sigmoid() -> Step:
    return Step("sigmoid", "v = elementwise::sigmoid(v);", "_Sigmoid()", monotone=True)


def _leaky_relu(negative_slope: float = 0.01) -> Step:
    device = f"v = elementwise::leaky_relu(v, {number(negative_slope)});"
    python = f"_LeakyRelu({literal(negative_slope)})"
    return Step("leaky_relu", device, python, 0 < negative_slope < math.inf, _PIECEWISE)


def _any_elu(kind: str, alpha: float, scale: float, input_scale: float) -> Step:
    """scale * v above 0, scale * alpha * (exp(input_scale * v) - 1) below."""
    factors = f"{number(alpha)} * {number(scale)}, {number(scale)}, {number(input_scale)}"
    device = f"v = elementwise::elu(v, {factors});"
    python = f"_Elu({literal(alpha)}, {literal(scale)}, {literal(input_scale)})"
    rises = all(0 < factor < math.inf for factor in (alpha, scale, input_scale))
    return Step(kind, device, python, rises, "elementwise/elu.h")


def _elu(alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Step:
    return _any_elu("elu", alpha, scale, input_scale)


def _selu() -> Step:
    return _any_elu("selu", *_SELU, 1.0)


def _celu(alpha: float = 1.0) -> Step:
    if alpha == 0:
        raise ValueError("needs an alpha other than 0")
    return _any_elu("celu", alpha, 1.0, 1 / alpha)


def _silu() -> Step:
    return Step("silu", "v = elementwise::silu(v);", "_Silu()", header="elementwise/silu.h")


def _mish() -> Step:
    return Step("mish", "v = elementwise::mish(v);", "_Mish()", header="elementwise/mish.h")


def _hardswish() -> Step:
    return Step("hardswish", "v = elementwise::hardswish(v);", "_Hardswish()", header=_PIECEWISE)


def _hardsigmoid() -> Step:
    device = "v = elementwise::hardsigmoid(v);"
    return Step("hardsigmoid", device, "_Hardsigmoid()", True, _PIECEWISE)


def _softplus(beta: float = 1.0, threshold: float = 20.0) -> Step:
    device = f"v = elementwise::softplus(v, {number(beta)}, {number(threshold)});"
    python = f"_Softplus({literal(beta)}, {literal(threshold)})"
    return Step("softplus", device, python, header="elementwise/softplus.h")


def _softsign() -> Step:
    return Step("softsign", "v = elementwise::softsign(v);", "_Softsign()", header=_PIECEWISE)


def _threshold(threshold: float, value: float) -> Step:
    device = f"v = elementwise::threshold(v, {number(threshold)}, {number(value)});"
    python = f"_Threshold({literal(threshold)}, {literal(value)})"
    return Step("threshold", device, python, header=_PIECEWISE)


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
