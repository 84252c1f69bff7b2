"""References that give no one answer are not judged: the user hears so, not the solution."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from harness.errors import UsageError
from harness.judge.cases import Case
from harness.judge.one_answer import NoOneAnswer
from harness.judge.truth import expected
from harness.run import cli
from tests.solution_tools import ROOT

CPU = torch.device("cpu")
TINY = ROOT / "tests" / "fixtures" / "tiny.py"


class Noise(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x * self.calls


def answer(layer: nn.Module, training: bool, dtype=torch.float32, backward=True):
    torch.manual_seed(1)
    model = nn.Sequential(nn.ConvTranspose2d(4, 6, 3), layer).train(training)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    return expected(
        model, Case("own", [torch.randn(2, 4, 5, 7, dtype=dtype)], state, 3), CPU, backward
    )


def spectral() -> nn.Module:
    torch.manual_seed(2)
    return spectral_norm(nn.ConvTranspose2d(6, 3, 4, 2, 1))


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: nn.Dropout(0.5), "draws random numbers"),
        (Noise, "draws random numbers"),
        (spectral, "has another answer at each call"),
        (Counting, "has another answer at each call"),
    ],
)
def test_no_answer_in_training_mode(make, told, backward):
    with pytest.raises(NoOneAnswer, match=f"{told}.* in training mode.*--eval"):
        answer(make(), True, backward=backward)


@pytest.mark.parametrize("make", [Noise, Counting])
def test_no_answer_in_either_mode(make):
    with pytest.raises(UsageError) as error:
        answer(make(), False)
    assert "no answer is the right one" in str(error.value) and "--eval" not in str(error.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    ("make", "training"),
    [
        (lambda: nn.Dropout(0.5), False),
        (spectral, False),
        (lambda: nn.BatchNorm2d(6), True),  # whose buffers change, but not its answer
        (lambda: nn.BatchNorm2d(6), False),
        (lambda: nn.InstanceNorm2d(6, track_running_stats=True), True),
    ],
)
def test_an_answer(make, training, dtype):
    found = answer(make(), training, dtype)
    assert found.own.dtype == dtype and bool(found.truth.isfinite().all())


def with_dropout(folder):
    path = folder / "dropout.py"
    text = TINY.read_text().replace("self.conv(x)", "nn.functional.relu(self.drop(self.conv(x)))")
    layer = "        self.drop = nn.Dropout(0.5)\n\n    def forward"
    path.write_text(text.replace("\n    def forward", layer))
    return path


def test_dropout_is_judged_in_eval_mode_alone(tmp_path, capsys):
    path = with_dropout(tmp_path)
    arguments = ["--reference", str(path), "--device", "cpu", "--check-only"]
    assert cli.main(arguments) == 2
    assert "draws random numbers (dropout, noise) in training mode" in capsys.readouterr().err
    assert cli.main([*arguments, "--eval"]) == 0
