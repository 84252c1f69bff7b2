"""The benchmark of other shapes: it checks what it times, and its records belong to the committed
solution.
"""

import dataclasses
import hashlib
import json
from types import SimpleNamespace

import pytest
import torch

from harness import machine_code, shapes
from harness.errors import UsageError
from harness.judge.reference import Reference
from harness.measure import machine_code_calls, timing
from harness.measure.shapes_cases import ALL_SHAPES, SHAPES, WHY, Shape, select, why
from harness.measure.shapes_run import (
    Layer,
    Options,
    batch_for,
    kernels_of,
    measure,
    reference_of,
)
from harness.report import page_writer, shapes_report
from tests import record_tools
from tests.record_tools import require_standing
from tests.solution_tools import ROOT

RESULTS = ROOT / "results"
RECORDS = sorted(RESULTS.glob("*/shapes*.json"))
TINY = Shape("tiny", 2, 4, 6, (5, 7), (3, 2), (2, 1), (1, 0), (1, 0), (1, 2), 2, True)
CPU = Options(torch.device("cpu"), torch.float32, "forbid")


def relative(path):
    return str(path.relative_to(ROOT))


@pytest.fixture
def solution(shelf):
    return SimpleNamespace(**shelf["69"].solution)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(timing, "plan_for", lambda device: timing.Plan(3, 1.0))


# The shapes -------------------------------------------------------------------------------------


def test_a_dozen_and_more_shapes_over_the_range():
    assert len({shape.name for shape in SHAPES}) == len(SHAPES) >= 12
    channels = {c for shape in SHAPES for c in (shape.in_channels, shape.out_channels)}
    assert {32, 64, 128, 256} <= channels and any(c % 8 for c in channels)
    assert {(1, 1), (7, 7), (2, 2), (1, 7)} <= {shape.kernel for shape in SHAPES}
    sizes = {side for shape in SHAPES for side in shape.size}
    assert min(sizes) == 7 and max(sizes) == 512
    assert any(shape.groups == shape.in_channels for shape in SHAPES)
    assert any(shape.stride == (2, 2) for shape in SHAPES)
    assert any(shape.dilation != (1, 1) for shape in SHAPES)
    assert any(shape.output_padding != (0, 0) for shape in SHAPES)


EVERY = [shape for shapes_of in ALL_SHAPES.values() for shape in shapes_of]


@pytest.mark.parametrize("shape", EVERY, ids=lambda shape: shape.name)
def test_shape_is_one_pytorch_accepts(shape):
    with torch.device("meta"):
        model = Reference(reference_of(len(shape.size))).module.Model(*shape.arguments)
        x = torch.empty(shape.input_shape(shape.batch))
        out = model(x)
    assert min(out.shape) > 0 and max(x.nbytes, out.nbytes) < 1 << 30
    weight = next(model.parameters())
    assert shape.sample_flops * shape.batch == 2 * x.numel() * weight[0].numel()


def test_a_dozen_of_one_and_three_dimensions():
    names = [shape.name for shape in (*ALL_SHAPES[1], *ALL_SHAPES[3])]
    assert len(set(names)) == len(names) >= 12
    for dimensions, found in ALL_SHAPES.items():
        assert {len(shape.kernel) for shape in found} == {dimensions}
        assert {shape.groups > 1 for shape in found} == {True, False}
        assert any(shape.stride == shape.kernel != (1,) * dimensions for shape in found)


def test_select():
    assert select(None) == list(SHAPES)
    assert [shape.name for shape in select("7x7,1x1")] == ["1x1", "7x7"]
    with pytest.raises(UsageError, match="no-such"):
        select("1x1,no-such")
    assert [shape.name for shape in select("3x3x3", 3)] == ["3x3x3"]
    with pytest.raises(UsageError, match="1x1: allowed are 2-stride2,"):
        select("1x1", 1)


def test_only_a_cpu_cuts_the_batch():
    big = Shape("big", 64, 256, 256, (32, 32), (3, 3))
    assert batch_for(big, CPU) == 1 and batch_for(TINY, CPU) == 2
    assert batch_for(big, Options(torch.device("cuda"), torch.float32, "allow")) == 64
    assert batch_for(big, Options(CPU.device, CPU.dtype, "forbid", batch=5)) == 5


# One shape --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_measures_and_checks(solution, quick, dtype):
    options = Options(CPU.device, dtype, "forbid")
    entry = measure(TINY, solution, options) | kernels_of(TINY, solution, options)
    assert entry["verdict"] == "accepted", entry["reasons"]
    assert set(entry["ms"]) == {"solution", "eager", "channels_last"}
    fastest = entry["fastest"]
    assert set(entry["speedup"]) == {"eager", "channels_last"}
    assert fastest["speedup"] == min(entry["speedup"].values()) > 0
    assert fastest["low"] <= fastest["speedup"] <= fastest["high"]
    assert entry["input_shape"] == [2, 4, 5, 7] and entry["kernel"] == "cpu"
    assert entry["gflop"] == pytest.approx(TINY.batch * TINY.sample_flops / 1e9)
    assert 0 <= entry["error"]["rel_l2"] <= entry["error"]["rel_l2_bound"]
    json.dumps(entry, allow_nan=False)


STEP = dataclasses.replace(CPU, backward=True)


def test_a_training_step_is_checked_and_timed(solution, quick):
    entry = measure(TINY, solution, STEP)
    assert entry["verdict"] == "accepted", entry["reasons"]
    assert set(entry["gradient_errors"]) == {
        "input 0",
        "conv_transpose2d.weight",
        "conv_transpose2d.bias",
    }
    assert set(entry["ms"]) == {"solution", "eager", "channels_last"}
    assert entry["gflop"] == pytest.approx(3 * TINY.batch * TINY.sample_flops / 1e9)


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_wrong_gradient_gets_no_times(solution, quick, name):
    class ModelNew(solution.ModelNew):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            getattr(self.conv_transpose2d, name).register_hook(lambda grad: grad * 1.01)

    entry = measure(TINY, SimpleNamespace(ModelNew=ModelNew), STEP)
    assert entry["verdict"] == "rejected" and "ms" not in entry
    assert entry["reasons"][0].startswith("wrong_gradient") and name in entry["reasons"][0]


@pytest.mark.parametrize("options", [CPU, STEP], ids=["forward", "step"])
def test_every_variant_computes_the_same(solution, options):
    """What the profiler is given to look at."""
    names = ("eager", "channels_last")
    results = {n: call() for n, call in Layer(TINY, solution, options).calls().items()}
    assert set(results) == {"solution", *names}
    for name in names:
        torch.testing.assert_close(results["solution"], results[name])


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [TINY, *select("3x3-groups4")], ids=lambda shape: shape.name)
def test_kernels_are_named(solution, quick, shape):
    options = Options(torch.device("cuda", 0), torch.float32, "allow", batch=2)
    entry = measure(shape, solution, options) | kernels_of(shape, solution, options)
    assert entry["verdict"] == "accepted", entry["reasons"]
    if not entry["kernels"]["eager"]:
        pytest.skip("the profiler sees no kernel here")
    assert entry["kernel"] in ("plain", "direct", "portable", "hopper")
    assert entry["ms"]["solution"]["median"] > 0


def broken(solution, wrong):
    """The solution with `wrong(output, number of the call)` in place of each output."""

    class ModelNew(solution.ModelNew):
        calls = 0

        def forward(self, x):
            ModelNew.calls += 1
            return wrong(super().forward(x), ModelNew.calls)

    return SimpleNamespace(ModelNew=ModelNew)


def one_pixel(y, call):
    y[-1, -1, -1, -1] += 1
    return y


WRONG = {
    "one pixel": (one_pixel, "inaccurate"),
    "wrong once timed": (lambda y, call: y if call == 1 else y * 1.01, "inaccurate"),
    "nan": (lambda y, call: y * float("nan"), "non_finite"),
    "shape": (lambda y, call: y[:, :-1], "wrong_shape"),
    "dtype": (lambda y, call: y.double(), "wrong_dtype"),
    "raises": (lambda y, call: torch.zeros(2) @ torch.zeros(3), "runtime_error"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_answers_get_no_times(solution, quick, name):
    wrong, code = WRONG[name]
    entry = measure(TINY, broken(solution, wrong), CPU)
    assert entry["verdict"] == "rejected" and "ms" not in entry and "fastest" not in entry
    assert [reason.partition(":")[0] for reason in entry["reasons"]] == [code]


# The command ------------------------------------------------------------------------------------


@pytest.fixture
def command(shelf, monkeypatch, tmp_path, quick):
    """`main` with tiny shapes, whose solution the shelf has built already."""
    path = tmp_path / "solution.py"
    path.write_text(shelf["69"].text)
    monkeypatch.setattr(shapes, "select", lambda names, dimensions: [TINY])
    loaded = SimpleNamespace(**shelf["69"].solution)
    monkeypatch.setattr(shapes, "load_solution", lambda *arguments: (loaded, 1.5))
    return lambda *arguments: shapes.main(["--device", "cpu", "--solution", str(path), *arguments])


def test_record_and_readme(command, tmp_path, capsys):
    assert command("--record", str(tmp_path / "results")) == 0
    assert "tiny" in capsys.readouterr().out
    path = tmp_path / "results" / "cpu" / "shapes.json"
    record = json.loads(path.read_text())
    assert record["device"] == "cpu" and record["build_s"] == 1.5
    assert record["versions"]["torch"] == torch.__version__ and record["date"]
    text = (tmp_path / "solution.py").read_bytes()
    assert record["solution_sha256"] == hashlib.sha256(text).hexdigest()
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- shapes -->\nold\n<!-- /shapes -->\nafter\n")
    rendering = ["--readme", str(readme), "--results", str(tmp_path / "results")]
    assert page_writer.main(["--check", *rendering]) == 1
    assert page_writer.main(rendering) == 0
    assert page_writer.main(["--check", *rendering]) == 0
    rows = [line for line in readme.read_text().splitlines() if line.startswith("|")]
    assert len(rows) == 3 and len({line.count("|") for line in rows}) == 1
    told = "2 × 4 × 5 × 7 → 6, kernel 3×2, stride 2×1, padding 1×0, output_padding 1×0, "
    assert told + "dilation 1×2, groups 2, bias" in rows[2]


def test_a_wrong_answer_is_exit_status_1(command, monkeypatch, shelf, capsys):
    loaded = broken(SimpleNamespace(**shelf["69"].solution), one_pixel)
    monkeypatch.setattr(shapes, "load_solution", lambda *arguments: (loaded, 1.5))
    assert command() == 1
    out = capsys.readouterr().out
    assert "rejected: inaccurate" in out and "0 of 1 shapes accepted." in out


@pytest.mark.parametrize(
    "arguments, status",
    [
        (["--shapes", "no-such"], 2),
        (["--baselines", "eager,fastest"], 2),
        (["--batch", "0"], 2),
        (["--record", "--shapes", "1x1"], 2),
        (["--solution", "missing.py"], 2),
        (["--device", "cuda:99"], 3),
        (["--list"], 0),
    ],
)
def test_exit_status(arguments, status):
    device = [] if "--device" in arguments else ["--device", "cpu"]
    assert shapes.main([*device, *arguments]) == status


def test_list_says_what_the_layers_are(capsys):
    assert shapes.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(SHAPES)
    expected = ["3x3-stride2", "32 × 128 × 64 × 64 → 64, kernel 3, stride 2, padding 1,"]
    expected.append("output_padding 1")
    assert " ".join(expected) in [" ".join(line.split()) for line in lines]


def test_record_names():
    assert shapes_report.record_name("float32", "allow", "cuda") == "shapes.json"
    assert shapes_report.record_name("float16", "allow", "cuda", True) == (
        "shapes-float16-backward.json"
    )
    assert shapes_report.record_name("float32", "forbid", "cpu") == "shapes.json"
    assert shapes_report.record_name("float32", "forbid", "cuda") == "shapes-tf32-forbid.json"
    assert shapes_report.record_name("float16", "allow", "cuda") == "shapes-float16.json"
    assert shapes_report.record_name("float32", "allow", "cuda", True, 3) == (
        "shapes-3d-backward.json"
    )


@pytest.mark.parametrize("dimensions", [1, 3])
def test_layers_of_other_dimensions_have_a_file_of_their_own(
    dimensions, monkeypatch, tmp_path, quick, shelf
):
    """Generated of a reference of the harness, with every kernel that such a layer may take."""
    size = (5,) * dimensions
    tiny = Shape("tiny", 2, 4, 6, size, *[(n,) * dimensions for n in (2, 2, 0, 0, 1)])
    monkeypatch.setattr(shapes, "select", lambda names, dimensions: [tiny])
    seen = []

    def load(path, build_dir, device):
        seen.append(path.read_text())
        return SimpleNamespace(ModelNew=Reference(path_of_reference).module.Model), 1.5

    path_of_reference = reference_of(dimensions)
    monkeypatch.setattr(shapes, "load_solution", load)
    path = tmp_path / "record.json"
    given = ["--device", "cpu", "--dimensions", str(dimensions), "--json", str(path)]
    assert shapes.main(given) == 0
    record = json.loads(path.read_text())
    assert record["solution_sha256"] == hashlib.sha256(seen[0].encode()).hexdigest()
    assert record["solution"] == path_of_reference.name
    assert ROOT / record["reference"] == path_of_reference
    assert machine_code.timed_text(record) == seen[0]  # without the file, and so the record stands
    assert machine_code_calls.launches(None, record, path_of_reference) == []
    layouts = ["channels_last"] * (dimensions == 3)
    assert record["baselines"] == ["eager", *layouts, "conv2d_channels_last"]
    assert "conv_transpose_interleaved_kernel" in seen[0]
    assert ("pair_rows_of_weights_kernel" in seen[0]) is (dimensions == 3)
    text = shapes_report.layer_text(record["shapes"][0])
    assert text == f"2 × 4 × {' × '.join('5' * dimensions)} → 6, kernel 2, stride 2"


# Committed records ------------------------------------------------------------------------------


@record_tools.how
@pytest.mark.parametrize("path", RECORDS, ids=relative)
def test_record_is_of_the_committed_solution(path, how):
    record = json.loads(path.read_text())
    assert record["device"] == path.parent.name
    setting = record["dtype"], record["tf32"], record["device"]
    dimensions = len(record["shapes"][0]["input_shape"]) - 2
    assert path.name == shapes_report.record_name(*setting, record["backward"], dimensions)
    for entry, shape in zip(record["shapes"], ALL_SHAPES[dimensions], strict=True):
        assert entry["name"] == shape.name
        assert entry["verdict"] == "accepted" and entry["reasons"] == []
        assert entry["arguments"] == json.loads(json.dumps(shape.arguments))
    require_standing(record, how)


@pytest.mark.parametrize("path", RECORDS, ids=relative)
def test_what_is_slower_than_pytorch_has_its_reason(path):
    record = json.loads(path.read_text())
    slower = [entry["name"] for entry in record["shapes"] if shapes_report.below_one(entry)]
    assert [name for name in slower if not why(record["device"], path.stem, name)] == []


GPU_RECORDS = [path for path in RECORDS if path.parent.name != "cpu"]


@pytest.mark.parametrize("path", GPU_RECORDS, ids=relative)
def test_no_cliff_on_a_gpu(path):
    record = json.loads(path.read_text())
    ratios = {entry["name"]: entry["fastest"]["speedup"] for entry in record["shapes"]}
    assert {name: ratio for name, ratio in ratios.items() if ratio < 0.8} == {}


def test_reasons_are_of_records_and_shapes_that_exist():
    known = {shape.name for shape in EVERY}
    for key, reasons in WHY.items():
        assert (RESULTS / f"{key}.json").is_file(), key
        assert set(reasons) <= known


def test_readme_shows_the_records():
    page = ROOT / "docs" / "results.md"
    assert "<!-- shapes -->\n" in page.read_text()
    assert page_writer.main(["--check", "--readme", str(page)]) == 0
