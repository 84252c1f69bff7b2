"""The baseline with convolutions in place of transposed ones: the same operator or not offered,
its gradients, and what an evaluation makes of it.
"""

import itertools
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from harness.catalog import ROOT, find_problem
from harness.errors import Rejected
from harness.judge.cases import Case
from harness.judge.drawn import cast_state
from harness.judge.reference import Reference
from harness.measure import own_clock, pass_times, timing
from harness.measure.convolution_baseline import (
    offered,
    require_right,
    to_time,
    unlike,
    with_convolutions,
)
from harness.names import BASELINES, CONV2D
from harness.report import page_tables, records
from harness.run import cli
from tests.sweeps import swept

FIXTURES = Path(__file__).resolve().parent / "fixtures"
TINY = FIXTURES / "tiny.py"
CPU = torch.device("cpu")
LAYERS = [
    {
        "kernel_size": kernel,
        "dilation": dilation,
        "padding": padding,
        "groups": groups,
        "bias": bias,
    }
    for (kernel, dilation, padding), groups, bias in itertools.product(
        [(3, 1, 0), ((3, 7), 1, (1, 6)), (1, 1, 0), ((2, 4), (3, 2), (0, 5)), (5, 2, 8)],
        (1, 3),
        (True, False),
    )
]


def chain(**arguments) -> nn.Module:
    return nn.Sequential(nn.ConvTranspose2d(6, 9, **arguments), nn.GELU(), nn.GroupNorm(3, 9))


@pytest.mark.parametrize("arguments", LAYERS, ids=str)
def test_the_same_operator_and_gradients(arguments):
    torch.manual_seed(1)
    model = chain(**arguments).double()
    made = with_convolutions(model)
    assert not any(isinstance(layer, nn.ConvTranspose2d) for layer in made.modules())
    x = torch.randn(2, 6, 19, 21, dtype=torch.float64)
    xs = [x.clone().requires_grad_(True) for _ in range(2)]
    outputs = [part(value) for part, value in zip((model, made), xs, strict=True)]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-10, atol=1e-10)
    toward = torch.randn_like(outputs[0])
    for output in outputs:
        output.backward(toward)
    torch.testing.assert_close(xs[1].grad, xs[0].grad, rtol=1e-9, atol=1e-9)
    groups = model[0].groups
    flipped = made[0].weight.grad.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    torch.testing.assert_close(flipped.flip(2, 3), model[0].weight.grad, rtol=1e-9, atol=1e-9)
    assert made[0].weight.is_contiguous() and made[0].weight.is_leaf


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize(
    ("kind", "kernel", "size"),
    [(nn.ConvTranspose1d, 5, (19,)), (nn.ConvTranspose3d, (3, 1, 4), (5, 6, 7))],
)
def test_one_and_three_dimensions(kind, kernel, size, groups):
    torch.manual_seed(1)
    model = kind(6, 9, kernel, groups=groups, dilation=2, padding=0).double()
    x = torch.randn(2, 6, *size, dtype=torch.float64)
    torch.testing.assert_close(with_convolutions(model)(x), model(x), rtol=1e-10, atol=1e-10)


class OwnKind(nn.ConvTranspose2d):
    """Might do anything."""


def hooked() -> nn.Module:
    model = chain(kernel_size=3)
    model[0].register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (chain(kernel_size=3, stride=(1, 2)), r"^0 has stride \(1, 2\)"),
        (chain(kernel_size=3, dilation=2, output_padding=1), r"output padding \(1, 1\)"),
        (chain(kernel_size=3, padding=3), r"would need the padding \(-1, -1\)"),
        (nn.Sequential(nn.Conv2d(3, 3, 1)), "no module of a transposed convolution"),
        (nn.Sequential(nn.ConvTranspose1d(3, 3, 1, 2)), r"^0 has stride \(2,\)"),
        (nn.Sequential(OwnKind(3, 3, 1)), "is a OwnKind"),
        (hooked(), "has hooks"),
        (nn.Sequential(chain(kernel_size=3), chain(kernel_size=3, stride=2)), r"^1.0 has stride"),
    ],
)
def test_not_offered_where_it_is_another_operator(model, why):
    names, refused = offered(BASELINES, model)
    assert names == list(BASELINES[:4])
    with pytest.raises(ValueError, match=why):
        raise ValueError(refused[CONV2D])
    with pytest.raises(ValueError, match=why):
        with_convolutions(model)


@pytest.mark.parametrize("problem", ["1/65", "1/69", "2/11", "2/19"])
def test_the_catalogues_problems_are_of_stride_one(problem):
    assert unlike(Reference(find_problem(problem).reference).model(0)) is None


class UsesTheWeights(nn.Module):
    """Of stride one, but the layer is never called."""

    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 4, 3)

    def forward(self, x):
        return nn.functional.conv_transpose2d(x, self.up.weight, self.up.bias)


def case_of(model: nn.Module) -> Case:
    return Case("own", [torch.randn(2, 4, 9, 9)], cast_state(model, torch.float32), 0)


def test_a_wrong_answer_is_told():
    right = nn.Sequential(nn.ConvTranspose2d(4, 4, 3))
    require_right(right, case_of(right), CPU, "float32", 36)
    wrong = UsesTheWeights()
    assert unlike(wrong) is None
    with pytest.raises(Rejected):
        require_right(wrong, case_of(wrong), CPU, "float32", 36)
    given = ("eager", CONV2D)
    names, refused, failed = to_time(given, wrong, case_of(wrong), CPU, "float32", 36)
    assert (names, refused, list(failed)) == (["eager"], {}, [CONV2D])
    assert to_time(given, right, case_of(right), CPU, "float32", 36) == ([*given], {}, {})


def gradient_of(model: nn.Module, x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_(True)
    model(x).backward(grad)
    return x.grad


def test_what_is_timed_is_in_channels_last():
    model = nn.Sequential(nn.ConvTranspose2d(4, 4, 3))
    case = case_of(model)
    baseline = timing.Baseline(CONV2D, model, case, CPU, torch.float32, None)
    (x,) = baseline.prepare(1.0)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert baseline.cold_call[0].weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(baseline.call(x), model(case.inputs[0]))
    grad = torch.ones_like(model(case.inputs[0]))
    trained = timing.Baseline(CONV2D, model, case, CPU, torch.float32, grad)
    (x,) = trained.prepare(1.0)
    trained.call(x)
    torch.testing.assert_close(x.grad, gradient_of(model, case.inputs[0], grad))


@pytest.mark.parametrize("name", ["channels_last", CONV2D])
def test_three_dimensions_have_their_own_layout(name):
    """Beside layers of two, whose parameters take the other one."""
    model = nn.ModuleList([nn.ConvTranspose3d(4, 4, 3), nn.Conv2d(4, 4, 3)])
    model.forward = lambda x: model[0](x)
    case = Case("own", [torch.randn(2, 4, 5, 6, 7)], cast_state(model, torch.float32), 0)
    baseline = timing.Baseline(name, model, case, CPU, torch.float32, None)
    (x,) = baseline.prepare(1.0)
    assert x.is_contiguous(memory_format=torch.channels_last_3d)
    assert baseline.cold_call[0].weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert baseline.cold_call[1].weight.is_contiguous(memory_format=torch.channels_last)


def test_one_dimension_has_no_such_layout_but_the_convolution():
    model = nn.Sequential(nn.ConvTranspose1d(4, 4, 3))
    case = Case("own", [torch.randn(2, 4, 9)], cast_state(model, torch.float32), 0)
    with pytest.raises(ValueError, match="no input of 4 or 5 dimensions"):
        timing.Baseline("channels_last", model, case, CPU, torch.float32, None)
    baseline = timing.Baseline(CONV2D, model, case, CPU, torch.float32, None)
    (x,) = baseline.prepare(1.0)
    torch.testing.assert_close(baseline.call(x), model(x))


@pytest.fixture
def on_a_busy_machine(monkeypatch):
    """Other tests beside this one may stretch every burst: clocks are no question here."""
    for asks in (own_clock, pass_times):
        monkeypatch.setattr(asks, "clocks_agree", lambda *times: True)


def evaluated(tmp_path, reference: Path, solution: Path, *more: str) -> dict:
    out = tmp_path / "record.json"
    words = ["--reference", str(reference), "--solution", str(solution), "--device", "cpu"]
    assert cli.main([*words, "--batch", "1", "--json", str(out), *more]) == 0
    return json.loads(out.read_text())


@pytest.mark.parametrize("more", swept([(), ("--backward",)], ()))
def test_the_fastest_may_be_it(more, on_a_busy_machine, tmp_path, capsys):
    honest = FIXTURES / "honest" / "functional.py"
    record = evaluated(tmp_path, TINY, honest, "--baselines", f"eager,{CONV2D}", *more)
    assert set(record["speedup"]) == {"eager", CONV2D} and CONV2D in record["cold_call_ms"]
    assert record["fastest"]["speedup"] == min(record["speedup"].values())
    assert CONV2D in capsys.readouterr().out
    assert record["baselines_not_offered"] == {}


@pytest.mark.sweep
def test_a_record_says_why_it_has_none(on_a_busy_machine, tmp_path, capsys):
    reference = tmp_path / "strided.py"
    text = TINY.read_text()
    strided = text.replace("kernel_size)", "kernel_size, stride=2)")
    assert strided != text
    reference.write_text(strided)
    solution = tmp_path / "solution.py"
    solution.write_text(strided.replace("class Model(", "class ModelNew("))
    record = evaluated(tmp_path, reference, solution, "--baselines", CONV2D)
    assert list(record["baselines_not_offered"]) == [CONV2D] and record["speedup"] == {}
    assert "is no such operator: conv has stride (2, 2)" in capsys.readouterr().out


def test_the_headline_says_of_which_records_it_is_missing(tmp_path):
    """One that never tried it says nothing of it; the same record with it, or without by right."""
    path = ROOT / "results" / "nvidia-h200" / "1_65.json"
    older = json.loads(path.read_text())
    older = {k: v for k, v in older.items() if k != "baselines_not_offered"}
    older["ms"].pop(CONV2D, None)
    made = older["ms"] | {CONV2D: older["ms"]["eager"]}
    for changes, told in (
        ({}, True),
        ({"ms": made}, False),
        ({"baselines_not_offered": {CONV2D: "x"}}, False),
    ):
        records.write_json(tmp_path / "nvidia-h200" / "1_65.json", older | changes)
        assert ("without conv2d" in page_tables.headline(tmp_path)) == told
