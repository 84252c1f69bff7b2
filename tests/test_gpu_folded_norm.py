"""BatchNorm in eval mode in the convolution's kernel on a CUDA GPU, against float64."""

import copy

import pytest
import torch

from tests.folded_norm_tools import built_in, inputs, trained
from tests.gpu_tools import tf32

pytestmark = pytest.mark.gpu

# What a result may be off: by one rounding of it, and by sums, of the largest result.
ALLOWED = {
    "strict": (torch.float32, 0, 1e-5),
    "tf32": (torch.float32, 0, 2**-9),
    "fp16": (torch.float16, 2**-11, 1e-5),
    "bf16": (torch.bfloat16, 2**-8, 1e-5),
}
# Kernels of many and of few channels, of twin columns and of single ones.
LAYERS = {
    "many": (64, {"out_channels": 64, "kernel": 4, "groups": 1, "stride": 2, "padding": 1}),
    "single": (64, {"out_channels": 72, "kernel": 3, "groups": 1, "padding": 1, "bias": False}),
    "groups": (6, {}),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    with built_in(tmp_path_factory.mktemp("folded")) as made:
        yield made


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("precision", ALLOWED)
def test_right(built, layer, precision):
    reference, solution, ran = built
    (channels, options), (dtype, once, sums) = LAYERS[layer], ALLOWED[precision]
    theirs = trained(reference["Model"](channels, **options)).eval()
    ours = solution["ModelNew"](channels, **options).eval()
    ours.load_state_dict(theirs.state_dict())
    theirs, ours = theirs.to("cuda", dtype), ours.to("cuda", dtype)
    sizes = (65,), (33, 35), (9, 10, 11)
    given = [x.to("cuda", dtype) for x in inputs(4, channels, sizes)]
    ran.clear()
    with torch.no_grad(), tf32(precision == "tf32"):
        truth = copy.deepcopy(theirs).double()(*(x.double() for x in given))
        found = ours(*given)
    assert ran == [True] * 3
    for out, exact in zip(found, truth, strict=True):
        assert out.dtype == dtype and out.is_contiguous()
        bound = once * exact.abs() + sums * exact.abs().max()
        assert bool(((out.double() - exact).abs() <= bound).all())
