"""The harness's parts, one by one."""

import contextlib
import json
import math
import time

import pytest
import torch
from torch import nn

from harness.catalog import ROOT, find_problem, list_problems
from harness.command import told_command
from harness.errors import Rejected, UsageError
from harness.judge import bounds, cases, check, truth
from harness.judge.reference import Reference
from harness.measure import clock, own_clock, roofline, timing
from harness.report import records

CPU = torch.device("cpu")


# Bounds ----------------------------------------------------------------------------------------


def rounded(tensor: torch.Tensor, kept_bits: int) -> torch.Tensor:
    """fp32 values rounded to nearest even with `kept_bits` explicit mantissa bits."""
    dropped = 23 - kept_bits
    bits = tensor.contiguous().view(torch.int32)
    odd = (bits >> dropped) & 1
    bits = bits + odd + (1 << (dropped - 1)) - 1
    return ((bits >> dropped) << dropped).view(torch.float32)


def emulated(layer: nn.ConvTranspose2d, x: torch.Tensor, kept_bits: int) -> torch.Tensor:
    weight = rounded(layer.weight.detach(), kept_bits)
    y = nn.functional.conv_transpose2d(rounded(x, kept_bits).double(), weight.double())
    return (y + layer.bias.detach().double().view(1, -1, 1, 1)).float()


@pytest.mark.parametrize("chain", ["conv", "gelu_group_norm", "batch_norm_tanh"])
@pytest.mark.parametrize("draw", [torch.rand, torch.randn])
def test_tf32_bound_admits_tf32_and_rejects_bf16_inside(chain, draw):
    torch.manual_seed(7)
    layer, x = nn.ConvTranspose2d(16, 16, 3), draw(4, 16, 40, 40)
    after = {
        "conv": nn.Identity(),
        "gelu_group_norm": nn.Sequential(nn.GELU(), nn.GroupNorm(4, 16)),
        "batch_norm_tanh": nn.Sequential(nn.BatchNorm2d(16), nn.Tanh()),
    }[chain]
    with torch.no_grad():
        exact = after.double()(layer.double()(x.double()))
        layer.float(), after.float()
        tf32, bf16 = (after(emulated(layer, x, bits)) for bits in (10, 7))
        fp32 = after(layer(x))
        expected = truth.Expected(exact, tf32, {}, {})
        for good in (tf32, fp32):
            check.require_right(good, expected, "tf32", 16 * 9, "test")
        with pytest.raises(Rejected, match="inaccurate"):
            check.require_right(bf16, expected, "tf32", 16 * 9, "test")
        expected = truth.Expected(exact, fp32, {}, {})
        check.require_right(fp32, expected, "float32", 16 * 9, "test")
        with pytest.raises(Rejected, match="inaccurate"):
            check.require_right(tf32, expected, "float32", 16 * 9, "test")


def test_bound_is_the_stated_formula():
    expected = math.sqrt(2) * 2**-11 + 2**-24 + math.sqrt(1344) * 2**-24
    assert bounds.relative_bound("tf32", 1344) == pytest.approx(expected)


def test_rejection_names_the_first_bad_index_and_both_values():
    exact = torch.arange(1.0, 25.0, dtype=torch.float64).reshape(2, 3, 4)
    ours = exact.float()
    ours[0, 2, 1] = 99.0
    ours[1, 0, 0] = 98.0
    expected = truth.Expected(exact, exact.float(), {}, {})
    with pytest.raises(Rejected) as caught:
        check.require_right(ours, expected, "float32", 9, "here")
    assert "first bad index (0, 2, 1): 99 instead of 10" in caught.value.message


@pytest.mark.parametrize("numel", [0, 1, check._CPU_STEP, 3 * check._CPU_STEP + 5])
def test_the_root_mean_square_is_that_of_all_steps_together(numel):
    value = torch.randn(numel, generator=torch.Generator().manual_seed(1))
    exact = value.double() + torch.linspace(0, 1e-3, numel, dtype=torch.float64)
    whole = (value.double() - exact).square().mean().sqrt() if numel else 0.0
    assert check.rms(value, exact) == pytest.approx(float(whole), rel=1e-12)
    size = float(torch.linalg.vector_norm(value.double())) / max(numel, 1) ** 0.5
    assert check.rms(value) == pytest.approx(size)
    if numel:
        value[-1] = math.nan
        assert math.isnan(check.rms(value, exact))


def test_lines_that_persist_are_reset_where_there_is_a_driver(monkeypatch):
    called = []
    monkeypatch.setattr(clock, "_reset_l2", lambda: called.append(True) or 801)
    clock.reset_persisting_l2()
    assert called == [True]
    monkeypatch.setattr(clock, "_reset_l2", None)
    clock.reset_persisting_l2()


def test_nan_never_passes_a_bound():
    exact = torch.ones(4, dtype=torch.float64)
    size = check.measure(torch.tensor([1.0, math.nan, 1.0, 1.0]), exact)
    assert not size.rel_l2 <= 1e300
    limit = bounds.bounds("float32", 1, math.nan, math.nan, 1.0)
    assert not 1.0 <= limit.rel_l2


# Cases and truth -------------------------------------------------------------------------------


@pytest.fixture
def reference(tmp_path):
    path = tmp_path / "reference.py"
    path.write_text(
        "import torch\nimport torch.nn as nn\nbatch_size = 6\n\n"
        "class Model(nn.Module):\n"
        "    def __init__(self, a, b):\n"
        "        super().__init__()\n"
        "        self.conv = nn.ConvTranspose2d(a, b, (2, 3), stride=2, groups=2)\n"
        "        self.norm = nn.GroupNorm(2, b)\n"
        "    def forward(self, x):\n"
        "        return self.norm(self.conv(x))\n\n"
        "def get_inputs():\n    return [torch.rand(batch_size, 4, 5, 7)]\n\n"
        "def get_init_inputs():\n    return [4, 8]\n"
    )
    return Reference(path)


def test_batch_is_changed_and_put_back(reference):
    assert reference.inputs(1, CPU, 2)[0].shape == (2, 4, 5, 7)
    assert reference.inputs(1, CPU, 9)[0].shape == (9, 4, 5, 7)
    assert reference.inputs(1, CPU)[0].shape == (6, 4, 5, 7)


def test_cases_are_seeded_and_differ(reference):
    state = reference.model(3).state_dict()
    made = [
        cases.make_case(name, reference, state, CPU, torch.float32, 2, 11)
        for name in ("own", "normal", "wide", "wide")
    ]
    own, normal, wide, again = (case.inputs[0] for case in made)
    assert torch.equal(wide, again)
    assert own.min() >= 0 and normal.mean().abs() < 0.3
    assert wide.abs().max() / wide.abs().min() > 2**20
    assert bool((made[1].state["norm.weight"] != 1).all())


def test_truth_in_parts_is_the_truth_at_once(reference, monkeypatch):
    model = reference.model(3)
    case = cases.make_case("normal", reference, model.state_dict(), CPU, torch.float32, 6, 5)
    whole = truth.expected(model, case, CPU, backward=True)
    monkeypatch.setattr(truth, "_CPU_CHUNK_BYTES", 1)
    parts = truth.expected(model, case, CPU, backward=True)
    assert truth._chunk(whole.own, model, 6, CPU) == 1
    assert torch.allclose(whole.truth, parts.truth, rtol=1e-12, atol=1e-12)
    assert whole.gradient_names[0] == "input 0" and len(parts.gradients) == 5
    for a, b in zip(whole.gradients, parts.gradients, strict=True):
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-10)


def test_batch_norm_in_training_mode_needs_the_whole_batch():
    model = nn.Sequential(nn.ConvTranspose2d(2, 2, 3), nn.BatchNorm2d(2))
    assert not truth.treats_samples_alone(model)
    assert truth.treats_samples_alone(model.eval())


def test_constant_reference_is_known(tmp_path):
    path = tmp_path / "constant.py"
    path.write_text(
        "import torch\nimport torch.nn as nn\n\n"
        "class Model(nn.Module):\n"
        "    def forward(self, x):\n        return x * 0 + 1\n\n"
        "def get_inputs():\n    return [torch.rand(2, 3)]\n\n"
        "def get_init_inputs():\n    return []\n"
    )
    reference = Reference(path)
    case = cases.make_case("own", reference, {}, CPU, torch.float32, None, 5)
    assert truth.expected(reference.model(1), case, CPU, backward=False).constant
    case.inputs[0][0, 0] = float("inf")
    with pytest.raises(UsageError, match="not finite"):
        truth.expected(reference.model(1), case, CPU, backward=False)


def test_redrawn_weights_are_finite_and_differ():
    """Also a single number, and what was constant in two or more dimensions."""
    state = {
        "one": torch.ones(1, 1, 1),
        "scale": torch.ones(1, 4, 1, 1),
        "weight": torch.randn(3, 3),
    }
    for name, value in cases.redraw(state, 5).items():
        assert bool(torch.isfinite(value).all()) and not torch.equal(value, state[name])
        assert value.numel() == 1 or float(value.std()) > 0.1


# Timing and roofline ---------------------------------------------------------------------------


def test_stopwatch_gives_every_call_a_fresh_input():
    seen = []

    def call(x):
        seen.append((x.data_ptr(), float(x[0])))
        return x

    base = [torch.ones(1000), 3]
    times, last = clock.Stopwatch(CPU).slice(
        lambda x, n: call(x), lambda scale: clock.scaled(base, scale), [0.5, 0.75, 1.0], keep=2
    )
    assert len(times) == 3 and all(time > 0 for time in times)
    assert [value for _, value in seen] == [0.5, 0.75, 1.0] and float(last[0]) == 1.0
    assert float(base[0][0]) == 1.0


def test_device_clock_is_measured_without_events(monkeypatch):
    """A solution may have patched them; spinning for what they tell would then never end."""
    stopwatch = clock.Stopwatch(CPU)
    monkeypatch.setattr(torch.cuda.Event, "elapsed_time", lambda begin, end: 1e-9)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(clock, "_spin", lambda cycles: time.sleep(cycles / 1e8))
    assert stopwatch._measured_spin() == pytest.approx(1e8, rel=0.5)


STEP = check._CPU_STEP


@pytest.mark.parametrize("at", [0, 7, STEP - 1, STEP, 2 * STEP + 3])
def test_tensors_are_compared_whole_though_piece_by_piece(at):
    truth = torch.linspace(1, 2, 2 * STEP + 5, dtype=torch.float64)
    ours = truth.clone()
    assert check.measure(ours, truth) == check.ErrorSize(0.0, 0.0, 0)
    ours[at] += 0.5
    found = check.measure(ours, truth)
    assert (found.max_abs, found.at) == (pytest.approx(0.5), at)
    assert found.rel_l2 == pytest.approx(0.5 / float(torch.linalg.vector_norm(truth)))
    assert check._first_beyond(ours, truth, 0.4) == at and check.first_non_finite(ours) is None
    ours[at] = math.nan
    assert check.first_non_finite(ours) == at and check._first_beyond(ours, truth, 0.4) == at


def test_speedup_that_counts_is_over_the_fastest_baseline():
    measurement = timing.Measurement(
        {
            "solution": [
                [1.0, 9.0, 1.0],
                [2.0],
                [4.0],
            ],  # each round's median counts, not each call
            "eager": [[4.0], [4.0], [4.0]],
            "compile": [[2.0], [3.0], [4.0]],
        }
    )
    assert measurement.speedup() == {"eager": 2.0, "compile": 1.5}
    fastest = {"baseline": "compile", "speedup": 1.5, "low": 1.25, "high": 1.75}
    assert measurement.fastest() == fastest


def test_clocks_agree_only_within_a_factor():
    assert own_clock.clocks_agree(10.0, 12.0)
    assert not own_clock.clocks_agree(1.0, 10.0)
    assert not own_clock.clocks_agree(1.0, math.nan)


@pytest.mark.parametrize(
    ("problem", "gflop", "gbyte"),
    [("1/65", 361, 1.08), ("1/69", 515, 1.64), ("2/11", 215, 0.21), ("2/19", 618, 4.33)],
)
def test_work_of_the_problems(problem, gflop, gbyte):
    reference = Reference(find_problem(problem).reference)
    inputs = reference.inputs(0, torch.device("meta"))
    work = roofline.work_of(reference.model(0), inputs, torch.float32)
    assert work.flops / 1e9 == pytest.approx(gflop, rel=0.01)
    assert work.bytes / 1e9 == pytest.approx(gbyte, rel=0.03)


def test_roofline_share_and_floor():
    work = roofline.Work(2 * 10**9, 10**6, ())
    limits = roofline.Ceilings({"float32": 1.0}, 100.0, "test")
    rates = roofline.roofline(work, limits, "float32", 4.0)
    assert rates["arithmetic_ms"] == pytest.approx(2.0) and rates["bound"] == "arithmetic"
    assert rates["share"] == pytest.approx(0.5) and rates["tflops"] == pytest.approx(0.5)
    assert roofline.physical_floor_ms(work, limits, CPU) == pytest.approx(0.4)


# Catalogue and records -------------------------------------------------------------------------


def test_problems_are_found_by_number_id_and_name():
    assert [problem.id for problem in list_problems()][:2] == ["1/65", "1/69"]
    assert find_problem("65") == find_problem("1/65") == find_problem("3x7")
    for unknown in ("1/66", "66", "no such", "conv_transpose", ""):
        with pytest.raises(UsageError):
            find_problem(unknown)


def record(problem="1/65", ms=2.0, **changes) -> dict:
    made = {
        "problem": problem,
        "device": "cpu",
        "dtype": "float32",
        "tf32": "forbid",
        "batch": 1,
        "backward": False,
        "verdict": "accepted",
        "ms": {"solution": {"median": ms, "iqr": 0.1}},
        "fastest": {"baseline": "eager", "speedup": 3.0, "low": 2.9, "high": 3.1},
    }
    return {**made, **changes}


def test_records_are_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "cpu" / "1_65.json"
    records.write_json(path, record())
    with pytest.raises(ValueError):
        records.write_json(path, {"a": math.nan})
    assert json.loads(path.read_text()) == record()
    assert [file.name for file in path.parent.iterdir()] == ["1_65.json"]
    assert records.read_records(path.parent) == [record()]


@pytest.mark.parametrize("content", ["{", "[1]", '{"a": 1}'])
def test_files_that_are_no_records_are_refused(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(UsageError):
        records.read_records(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("--record", "--record"),
        ("builds", "builds"),
        ("2/19", "2/19"),
        ("/somewhere/of/mine/builds", "builds"),
        ("--build-dir=/somewhere/builds", "--build-dir=builds"),
        (str(ROOT / "results" / "cpu"), "results/cpu"),
        ("/", "/"),
        ("/mine/two words", "'two words'"),
    ],
)
def test_a_record_names_no_folder_of_a_machine(given, told):
    assert told_command(["python", "run_eval.py"], [given]) == f"python run_eval.py {told}"
