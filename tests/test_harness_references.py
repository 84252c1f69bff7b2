"""References as users have them: what the harness takes that is unlike KernelBench's."""

import warnings

import pytest
import torch
from torch import nn

from harness.copied import copied
from harness.errors import UsageError
from harness.measure.roofline import work_of
from tests.harness_references import evaluated


def hooked() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = nn.utils.weight_norm(nn.ConvTranspose2d(4, 6, 3))
    return nn.Sequential(layer)


def test_a_layer_that_keeps_a_weight_with_a_history_is_copied():
    model, x = hooked(), torch.randn(1, 4, 5, 5)
    model(x)
    other = copied(model)
    assert torch.equal(other(x), model(x))
    with torch.no_grad():
        other[0].weight_g.zero_()
    assert not torch.equal(other(x), model(x))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.ConvTranspose2d(4, 6, 3)

    def forward(self, x):
        return self.conv(x) * (1.0 if x.abs().max().item() < 1e6 else 0.0)


def test_the_work_of_a_model_that_needs_data():
    x = torch.ones(2, 4, 5, 7)
    with pytest.raises(UsageError, match="does not run on tensors without data"):
        work_of(Scaled(), [x.to("meta")], torch.float32)
    found = work_of(Scaled(), [x], torch.float32)
    plain = work_of(nn.Sequential(Scaled().conv), [x], torch.float32)
    assert (found.flops, found.bytes) == (plain.flops, plain.bytes)
    with pytest.raises(UsageError, match="does not run on its own inputs"):
        work_of(Scaled(), [x[:, :2]], torch.float32)


@pytest.mark.parametrize("mode", [(), ("--backward",)])
@pytest.mark.parametrize(
    ("result", "cases"),
    [
        ("self.conv(x)", {"own", "normal", "wide"}),
        ("torch.exp(self.conv(x))", {"own", "normal"}),
        ("self.conv(x) * (x.abs().max().item() > 0)", {"own", "normal", "wide"}),
    ],
)
def test_cases_that_a_reference_answers(result, cases, mode, tmp_path):
    status, record = evaluated(tmp_path, result, result, "--check-only", *mode)
    assert status == 0 and record["verdict"] == "accepted"
    assert set(record["error"]["cases"]) == cases


def test_an_answer_that_is_never_finite_is_refused(tmp_path, capsys):
    result = "self.conv(x) / torch.zeros_like(self.conv(x))"
    assert evaluated(tmp_path, result, result, "--check-only") == (2, None)
    assert "the reference's own output is not finite" in capsys.readouterr().err
