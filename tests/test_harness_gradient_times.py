"""Each gradient by itself: what is timed and what is not, its tables and its record."""

import json
import time

import pytest
import torch
from torch import nn

from harness import gradient_times, machine_code
from harness.catalog import Problem
from harness.errors import HarnessError
from harness.report import page_tables
from tests.fixture_judge import FIXTURES

CPU = torch.device("cpu")
HONEST = FIXTURES / "honest" / "functional.py"
TINY = Problem("1/0", "tiny", FIXTURES / "tiny.py", HONEST)
SLEEP_S = 0.02


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Rounds of two calls."""
    monkeypatch.setattr(gradient_times, "_MOST_CALLS", 2)


class Slow(torch.autograd.Function):
    """Takes its time for the gradient of x, and less for that of the weight."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight, bias)
        Slow.wants.append((x.requires_grad, weight.requires_grad))
        time.sleep(2 * SLEEP_S)  # off the clock
        return nn.functional.conv_transpose2d(x, weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(SLEEP_S if ctx.needs_input_grad[0] else 0)
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
            out = nn.functional.conv_transpose2d(*leaves)
        return torch.autograd.grad(out, leaves, gradient * Slow.factor)


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.ConvTranspose2d(in_channels, out_channels, kernel_size)

    def forward(self, x):
        return Slow.apply(x, self.conv.weight, self.conv.bias)


def measured(factor: float = 1.0) -> dict:
    Slow.factor, Slow.wants = factor, []
    return gradient_times.measure(TINY, {"ModelNew": ModelNew}, CPU, batch=1)


def test_each_gradient_is_asked_for_alone_and_forward_is_off_the_clock():
    found = measured()["gradients"]
    assert list(found) == ["input", "parameters"]
    asked = [pair for pair in Slow.wants if any(pair)]
    second = asked.index((False, True))
    assert set(asked[:second]) == {(True, False)} and set(asked[second:]) == {(False, True)}
    assert second >= 8 <= len(asked) - second
    ours = {name: entry["ms"]["solution"]["median"] for name, entry in found.items()}
    assert 1e3 * SLEEP_S <= ours["input"] < 2e3 * SLEEP_S > 1e3 * SLEEP_S > ours["parameters"]
    for entry in found.values():
        assert set(entry["ms"]) == set(gradient_times.SIDES)
        assert entry["from_eager"] <= 1e-6
        assert entry["fastest"]["baseline"] in ("eager", "channels_last")


def test_the_roofline_is_one_products():
    entry = measured()
    tiny = {"__name__": "tiny"}
    exec(TINY.reference.read_text(), tiny)
    conv = tiny["Model"](*tiny["get_init_inputs"]()).conv
    batch, channels, height, width = entry["input_shape"]
    taps = conv.kernel_size[0] * conv.kernel_size[1]
    gflop = 2e-9 * batch * height * width * channels * conv.out_channels * taps
    for found in entry["gradients"].values():
        assert found["roofline"]["gflop"] == pytest.approx(gflop)
        ms = found["ms"]["solution"]["median"]
        assert found["roofline"]["tflops"] == pytest.approx(gflop / ms)


def test_another_gradient_stops_the_run():
    with pytest.raises(HarnessError, match=r"1/0: input: .* 1\.0e-01 from eager's"):
        measured(1.1)


def test_a_gradient_that_is_rounding_alone_is_not_compared_by_itself():
    """As of a bias whose sum a batch norm takes away."""
    weight, noise = torch.randn(50), 1e-6 * torch.randn(5)
    assert gradient_times._difference([weight, noise], [weight, -noise]) <= 1e-5
    assert gradient_times._difference([1.1 * weight, noise], [weight, noise]) == pytest.approx(0.1)
    assert gradient_times._difference([weight + torch.nan, noise], [weight, noise]) != 0.0


def test_a_record_its_table_and_its_parts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gradient_times, "find_problem", lambda name: TINY)
    target = tmp_path / "cpu" / "gradients.json"
    arguments = ["--device", "cpu", "--problems", "1/0", "--batch", "1", "--json", str(target)]
    assert gradient_times.main([*arguments, "--build-dir", str(tmp_path / "builds")]) == 0
    record = json.loads(target.read_text())
    assert "of the parameters" in capsys.readouterr().out
    (entry,) = record["problems"]
    rows = page_tables.gradients(tmp_path).splitlines()[2:]
    assert [row.split(" | ")[1:3] for row in rows] == [
        ["1/0", "of the input"],
        ["1/0", "of the parameters"],
    ]
    for row, found in zip(rows, entry["gradients"].values(), strict=True):
        assert f"| {found['ms']['solution']['median']:.3g} (" in row
        assert f"**{found['fastest']['speedup']:.2f}×**" in row
    (part,) = machine_code.parts_of(record)
    assert part["device"] == "cpu" and part["solution_sha256"] == entry["solution_sha256"]
    assert part["backward"] and part["versions"] == record["versions"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--record", "--problems", "65"], "--record is for all problems"),
        (["--record", "--dtype", "float16"], "--record is for all problems"),
        (["--batch", "0"], "--batch 0: allowed are whole numbers from 1 on"),
        (["--device", "tpu"], "--device 'tpu'"),
        (["--problems", "1/9999"], "1/9999"),
    ],
)
def test_bad_arguments(arguments, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert gradient_times.main(arguments) == 2
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
