"""The random layers, the errors taken of them, and a few hundred on the CPU."""

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests import fuzz_operator
from tests.layer_errors import errors_of, exact_conv
from tests.random_layers import SIZES, random_layer, random_layers
from tests.solution_tools import CPU_KERNELS, assert_within, conv_bound, environment
from tests.sweeps import swept


def options(**changed):
    given = dict(seed=0, first=0, count=4, device="cpu", kernel="auto", sizes="medium")
    given |= dict(wait=False, pytorch=True, gradients=True, minutes=None)
    return SimpleNamespace(**given | changed)


# The layers --------------------------------------------------------------------------------------


def test_a_layer_is_the_same_everywhere():
    """Written down: a failure reported by its seed and index must mean the same layer tomorrow."""
    assert str(random_layer(1, 1)) == (
        "nn.ConvTranspose2d(48, 255, (1, 3), output_padding=(1, 0), dilation=(2, 4), groups=3), "
        "float64, input (9, 48, 63, 79) channels_last"
    )
    layer = random_layer(7, 5, "small")
    assert layer == random_layer(7, 5, "small") != random_layer(7, 6, "small")
    for one, two in zip(layer.tensors(), layer.tensors(), strict=True):
        assert one is two is None or torch.equal(one, two) and one.stride() == two.stride()


@pytest.mark.parametrize("sizes", SIZES)
def test_layers_are_modules_of_pytorch_with_bounded_work(sizes):
    most = SIZES[sizes]
    for layer in random_layers(2, 500, sizes):
        case = layer.case
        module = eval(layer.call, {"nn": nn})
        with torch.device("meta"):
            y = module.to("meta")(torch.empty(case.batch, case.in_channels, *case.size))
        assert y.shape == (case.batch, case.out_channels, *case.output_size) and y.numel() > 0
        assert (module.bias is not None) == case.bias
        assert str(layer).startswith(layer.call) and "\n" not in str(layer)
        assert max(case.in_channels, case.out_channels) <= most.channels
        assert max(case.kernel) <= 9 and max(case.stride) <= 4 and max(case.dilation) <= 4
        assert max(case.size) <= most.extent and case.batch <= most.batch
        pixels = case.batch * math.prod(case.size)
        products = pixels * case.out_channels * case.reduction
        assert products <= most.products
        assert max(pixels * case.in_channels, y.numel()) <= most.elements


@pytest.mark.parametrize("sizes", SIZES)
def test_layers_reach_every_kind(sizes):
    layers = list(random_layers(3, 1000, sizes))
    cases = [layer.case for layer in layers]
    by_layout = {layer.layout for layer in layers}
    assert len(by_layout) == 12
    assert {layer.dtype for layer in layers} == {
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
    }
    strict = [layer for layer in layers if not layer.allow_tf32 and layer.dtype == torch.float32]
    counts = {
        "strict": len(strict),
        "gradients": sum(layer.gradients for layer in layers) - 200,
        "groups": sum(case.groups > 1 for case in cases) - 200,
        "depthwise": sum(1 < case.groups == case.in_channels for case in cases),
        "output padding": sum(case.output_padding != (0, 0) for case in cases) - 200,
        "no bias": sum(not case.bias for case in cases),
        "large kernels": sum(max(case.kernel) >= 7 for case in cases),
        "phases without outputs": sum(
            any(o < s for o, s in zip(case.output_size, case.stride, strict=True)) for case in cases
        ),
        "one row or column": sum(min(case.size) == 1 for case in cases),
    }
    assert min(counts.values()) >= 30, counts


# Their errors ------------------------------------------------------------------------------------


def test_the_float64_reference_is_pytorchs():
    for layer in random_layers(4, 30, "medium"):
        operands = [None if t is None else t.double() for t in layer.tensors()]
        exact = layer.case.reference(*operands)
        bound = conv_bound(layer.case, *operands, torch.float64)
        assert_within(exact_conv(layer.case, *operands), exact, bound)


def test_the_float64_reference_in_parts(monkeypatch):
    layer = next(x for x in random_layers(4, 60, "medium") if x.case.batch > 2)
    operands = [None if t is None else t.double() for t in layer.tensors()]
    whole = exact_conv(layer.case, *operands)
    monkeypatch.setattr("tests.layer_errors._MOST_COLUMNS", 1)
    torch.testing.assert_close(exact_conv(layer.case, *operands), whole)


def first_with(gradients: bool):
    chosen = (x for x in random_layers(5, 100, "medium") if x.gradients == gradients)
    return next(x for x in chosen if x.dtype == torch.float32 and x.case.bias)


def pytorch(x, weight, bias, stride, padding, output_padding, dilation, groups):
    return torch.conv_transpose2d(
        x, weight, bias, stride, padding, output_padding, groups, dilation
    )


class Spoilt(torch.autograd.Function):
    """`y` with its last element off by a little, or its gradient."""

    @staticmethod
    def forward(ctx, y, off, off_backward):
        ctx.off = off_backward
        y = y.clone()
        y[-1, -1, -1, -1] += off
        return y

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        grad[-1, -1, -1, -1] += ctx.off
        return grad, None, None


@pytest.mark.parametrize("off", [1e-2, float("nan"), float("inf")])
def test_one_wrong_number_fails(off):
    layer = first_with(gradients=False)
    assert errors_of(pytorch, layer).failures() == []
    (said,) = errors_of(lambda *given: Spoilt.apply(pytorch(*given), off, 0.0), layer).failures()
    assert said.startswith("output ")


def test_a_wrong_gradient_fails():
    layer = first_with(gradients=True)
    assert errors_of(pytorch, layer).failures() == []
    found = errors_of(lambda *given: Spoilt.apply(pytorch(*given), 0.0, 0.5), layer).failures()
    assert found and all(said.startswith("gradient of ") for said in found)


def test_a_wrong_shape_or_dtype_fails():
    layer = first_with(gradients=False)
    with pytest.raises(AssertionError, match="shape"):
        errors_of(lambda *given: pytorch(*given)[..., 1:], layer)
    with pytest.raises(AssertionError, match="dtype"):
        errors_of(lambda *given: pytorch(*given).double(), layer)


# The operator on the CPU -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", swept(range(3)))
def test_random_layers_on_the_cpu(shelf, seed):
    operator = shelf["69"].solution["_operator"]
    summary = fuzz_operator.Summary()
    count = 100 if seed == 0 else 200
    fuzz_operator.run(operator, options(seed=seed, count=count), summary)
    assert summary.layers == count and summary.failures == []
    assert 0.01 < summary.error <= 1


@pytest.mark.parametrize("kernel", CPU_KERNELS[1:])
def test_random_layers_by_kernel(shelf, kernel):
    operator = shelf["69"].solution["_operator"]
    summary = fuzz_operator.Summary()
    given = options(seed=10, count=40, kernel=kernel, pytorch=False)
    with environment(TCONV_KERNEL=kernel):
        fuzz_operator.run(operator, given, summary)
    assert summary.layers == 40 and summary.failures == [] and summary.refused == 0


# The command -------------------------------------------------------------------------------------

WRONG = """
import torch

def _operator(x, weight, bias, stride, padding, output_padding, dilation, groups):
    if groups == 8:
        raise RuntimeError("groups of 8")
    y = torch.conv_transpose2d(x, weight, bias, stride, padding, output_padding, groups, dilation)
    return y * 2 if groups == 4 else y.double().to(y.dtype)
"""


def test_the_command_goes_on_after_failures(tmp_path, capsys):
    solution, summary = tmp_path / "wrong.py", tmp_path / "summary.json"
    solution.write_text(WRONG)
    command = ["--seed", "3", "--count", "40", "--device", "cpu", "--sizes", "small"]
    command += ["--solution", str(solution), "--json", str(summary), "--no-gradients"]
    assert fuzz_operator.main(command) == 1
    groups = [layer.case.groups for layer in random_layers(3, 40, "small")]
    wrong = [i for i, g in enumerate(groups) if g in (4, 8)]
    assert len(wrong) > 3
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(wrong) + 1
    for line, index in zip(lines, wrong, strict=False):
        layer = dataclasses.replace(random_layer(3, index, "small"), gradients=False)
        assert line.startswith(f"FAILED (seed 3, index {index}, small) {layer}: ")
        assert ("RuntimeError: groups of 8" in line) == (groups[index] == 8)
    assert lines[-1].startswith(f"40 layers, {len(wrong)} failures, largest error ")
    said = json.loads(summary.read_text())
    assert said["layers"] == 40 and [f["index"] for f in said["failures"]] == wrong
    # One of them alone, and one that is right.
    right = next(i for i in range(40) if i not in wrong)
    for index, status in ((wrong[0], 1), (right, 0)):
        assert fuzz_operator.main([*command, "--first", str(index), "--count", "1"]) == status


def test_the_command_stops_after_its_minutes(tmp_path, capsys):
    solution = tmp_path / "wrong.py"
    solution.write_text(WRONG)
    command = ["--count", "100000", "--device", "cpu", "--sizes", "small", "--minutes", "0.01"]
    fuzz_operator.main([*command, "--solution", str(solution)])
    assert 0 < int(capsys.readouterr().out.splitlines()[-1].split()[0]) < 5000


def test_a_lost_device_is_found_layer_by_layer(monkeypatch, tmp_path, capsys):
    """Layer 40 kills every process that runs it."""
    started = []

    def errors(operator, layer, given, summary):
        if layer.index == 40:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    def apart(given, first, count, wait, minutes):
        started.append((first, count, wait))
        changed = dict(first=first, count=count, wait=wait)
        return fuzz_operator.fuzz(SimpleNamespace(**vars(given) | changed))

    monkeypatch.setattr(fuzz_operator, "_errors", errors)
    monkeypatch.setattr(fuzz_operator, "_apart", apart)
    solution = tmp_path / "wrong.py"
    solution.write_text(WRONG)
    summary = fuzz_operator.fuzz(options(count=100, device="cuda", solution=Path(solution)))
    assert summary.layers == 100
    assert [failure["index"] for failure in summary.failures] == [40]
    assert "illegal memory access" in summary.failures[0]["what"]
    assert (32, 9, True) in started and (41, 59, False) in started
    assert "layers 32 to 40" in capsys.readouterr().out
