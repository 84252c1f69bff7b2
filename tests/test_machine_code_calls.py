"""What a call launches, found out without a GPU: a small source with the argument blocks of the
solutions, and those solutions' own models.
"""

import pytest
import torch

from harness.catalog import find_problem
from harness.errors import UsageError
from harness.measure import machine_code_calls as calls
from harness.measure.machine_code_build import build
from harness.measure.nvcc import compiler
from tests.solution_tools import ROOT

SOURCE = r"""
#include <cuda_runtime.h>
#include "ROOT/kernels_src/call.h"
struct Params { char first; double scale; const char* reason; const void* x; int last; };
__global__ void fill(Params p, float* out) { out[threadIdx.x] = p.scale; }
__global__ void scan(const int* at) {}
extern "C" int64_t tconv_cuda_workspace_bytes(const tconv::ConvOnlyCall*) { return 4096; }
extern "C" int64_t tconv_cuda_run(const tconv::ConvOnlyCall* call) {
  const tconv::ConvCall& conv = call->conv;
  if (conv.workspace_bytes != 4096) return 7;
  if (conv.dtype == 1) return -1;
  int processors = 0;
  const auto asked = conv.dtype == 2 ? cudaDevAttrClockRate : cudaDevAttrMultiProcessorCount;
  cudaDeviceGetAttribute(&processors, asked, 0);
  cudaMemsetAsync(conv.workspace, 255, 64, 0);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(processors, 2), config.blockDim = dim3(64);
  config.dynamicSmemBytes = 1 << 16;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative, attribute.val.cooperative = 1;
  config.attrs = &attribute, config.numAttrs = 1;
  Params params;  // not all of it is written
  params.first = 1, params.scale = SCALE, params.reason = "a text of the host's", params.x = conv.x;
  params.last = static_cast<int>(conv.layer.out_w);
  cudaLaunchKernelEx(&config, fill, params, static_cast<float*>(conv.out));
  config.numAttrs = 0;
  return cudaLaunchKernelEx(&config, scan, static_cast<const int*>(conv.workspace) + OFFSET);
}
""".replace("ROOT", str(ROOT))
RECORD = {
    "device": "nvidia-h200",
    "dtype": "float32",
    "tf32": "allow",
    "input_shape": [8, 64, 512, 512],
}
REFERENCE = find_problem("65").reference


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A function from what stands for SCALE and OFFSET to the source, built."""
    if compiler() is None:
        pytest.skip("no nvcc on this machine")
    cache = tmp_path_factory.mktemp("machine_code")

    def make(scale: str = "2.0", offset: str = "0", edit=lambda text: text):
        text = SOURCE.replace("SCALE", scale).replace("OFFSET", offset)
        return build(edit(text), ("-std=c++17", "-O3"), cache)

    return make


def launches(built, **changes) -> list[str]:
    return calls.launches(built, {**RECORD, **changes}, REFERENCE)


def test_a_line_tells_all_of_a_launch(built):
    one = built()
    digests = {kernel.name.split("Pf")[0]: kernel.digest[:16] for kernel in one.cubin.kernels}
    cleared, fill, scan = launches(one)
    assert cleared == "memset value 255 bytes 64"
    assert fill.startswith(f"kernel {digests['_Z4fill6Params']} grid 132x2x1 block 64x1x1 shared ")
    assert " shared 65536 attribute 2 01 arguments " in fill
    assert " shared 65536 arguments " in scan


def test_lines_are_the_same_every_time(built, tmp_path):
    assert launches(built()) == launches(built())
    anew = build(SOURCE.replace("SCALE", "2.0").replace("OFFSET", "0"), ("-std=c++17",), tmp_path)
    assert launches(anew) == launches(built())


def test_arguments_count(built):
    before = launches(built())
    scaled = launches(built(scale="3.0"))
    assert [a == b for a, b in zip(before, scaled, strict=True)] == [True, False, True]
    wider = launches(built(), input_shape=[8, 64, 512, 513])
    assert [a == b for a, b in zip(before, wider, strict=True)] == [True, False, True]


@pytest.mark.sweep
def test_addresses_count_by_buffer_and_alignment(built):
    before = launches(built())
    assert launches(built(offset="64")) == before  # 256 bytes on
    assert launches(built(offset="32"))[2] != before[2]
    elsewhere = built(edit=lambda text: text.replace(">(conv.workspace) +", ">(conv.out) +"))
    assert launches(elsewhere)[2] != before[2]
    without = built(edit=lambda text: text.replace("params.x = conv.x", "params.x = nullptr"))
    assert launches(without)[1] != before[1]


def test_texts_and_padding_do_not_count(built):
    before = launches(built())
    other = built(edit=lambda text: text.replace("a text of the host's", "another one, longer"))
    assert launches(other) == before
    zeroed = built(edit=lambda text: text.replace("Params params;", "Params params{};"))
    assert launches(zeroed) == before


def test_what_cannot_be_followed(built):
    one = built()
    with pytest.raises(UsageError, match="status -1"):
        launches(one, dtype="float64")
    with pytest.raises(UsageError, match="device attribute that was not told: 13"):
        launches(one, dtype="float16")
    with pytest.raises(UsageError, match="nvidia-h100, .*nvidia-h200"):
        launches(one, device="nvidia-b200")
    with pytest.raises(UsageError, match="float8.*float32, float64"):
        launches(one, dtype="float8")
    with pytest.raises(UsageError, match="avx2.*portable"):
        launches(one, kernel="avx2")
    by_chevrons = built(
        edit=lambda text: text.replace("config.numAttrs = 0;", "scan<<<1, 1>>>(0);")
    )
    with pytest.raises(UsageError, match="<<<>>>"):
        launches(by_chevrons)


def test_shapes_are_named(built):
    entry = {"arguments": [64, 64, [3, 7]], "input_shape": [8, 64, 512, 512]}
    record = {**RECORD, "shapes": [{"name": "one", **entry}, {"name": "two", **entry}]}
    lines = calls.launches(built(), record, REFERENCE)
    one = launches(built())
    assert lines == ["shape one", *one, "shape two", *one]
    entry["arguments"] = [64, 64, [3, 8]]
    wider = calls.launches(built(), {**RECORD, "shapes": [{"name": "one", **entry}]}, REFERENCE)
    assert wider[2] != one[1]


def test_the_problems_own_shape_where_a_record_has_none(built):
    told = {name: value for name, value in RECORD.items() if name != "input_shape"}
    assert calls.launches(built(), told, REFERENCE) == launches(built())


# The fields of a call, which need no compiler ---------------------------------------------------


def fields(problem: str, **changes) -> dict:
    model = calls.load_reference(find_problem(problem).reference).model
    return calls._fields(model, 0, {**RECORD, "input_shape": [5, 64, 32, 40], **changes})


def test_fields_of_a_convolution():
    found = fields("69", tf32="forbid")
    assert [found[name] for name in ("batch", "in_channels", "in_h", "in_w")] == [5, 64, 32, 40]
    assert [found[name] for name in ("out_channels", "out_h", "out_w")] == [128, 34, 44]
    assert [found[name] for name in ("kernel_h", "kernel_w", "stride_h")] == [3, 5, 1]
    assert found["bias"] == 0 and found["math"] == 1 and found["dtype"] == 0
    assert fields("69")["math"] == 0 and fields("69", dtype="float16")["math"] == 1


def test_fields_of_chains():
    found = fields("19", kernel="held")
    assert found["num_groups"] == 8 and found["group_norm_eps"] == 1e-5
    assert found["bias"] == found["group_norm_weight"] == 1 and found["kernel_choice"] == 5
    found = fields("11")
    assert found["use_batch_stats"] == 1 and fields("11", eval=True)["use_batch_stats"] == 0
    assert [found[f"pool_{name}_w"] for name in ("kernel", "stride", "padding")] == [2, 2, 0]
    out = found["out_h"], found["out_w"]
    assert out == (34, 42) and (found["pooled_h"], found["pooled_w"]) == (17, 21)


def test_enumerations_are_those_of_the_kernels():
    common = (ROOT / "kernels_src" / "common.h").read_text()
    slices = (ROOT / "kernels_src" / "cuda" / "conv_group_norm_passes.cuh").read_text()
    for name, value in calls.KERNELS.items():
        spelled = f"k{name.capitalize()}" if name != "slices" else "kInSlices"
        assert f"{spelled} = {value}" in common + slices
    spelled = {"float32": "kFloat32", "float64": "kFloat64", "float16": "kFloat16"}
    for name, value in calls.DTYPES.items():
        assert f"{spelled.get(name, 'kBFloat16')} = {value}" in common
    assert "kMathTF32 = 0" in common and "kMathStrict = 1" in common
    assert all(hasattr(torch, name) for name in calls.DTYPES)


def test_a_model_of_two_convolutions_is_refused():
    model = calls.load_reference(REFERENCE).model
    model.another = torch.nn.ConvTranspose2d(3, 3, 3)
    with pytest.raises(UsageError, match="one ConvTranspose2d can be described, not 2"):
        calls._fields(model, 0, RECORD)
