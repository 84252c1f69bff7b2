"""The epilogue with BatchNorm by running statistics in emulated CUDA kernels."""

import re

import pytest
import torch

from tests.cuda_emulator import emulator
from tests.emulated_tools import forced, needs_cuda_headers
from tests.folded_norm_tools import REFERENCE, inputs, trained
from tests.gpu_tools import KERNELS, tf32
from tests.solution_tools import generated, load_text
from tests.sweeps import swept

pytestmark = [needs_cuda_headers, pytest.mark.sweep]  # a build of its own

BOUNDS = {torch.float32: 2e-3, torch.float16: 2e-3, torch.bfloat16: 1e-2}


@pytest.fixture(scope="module")
def folded(tmp_path_factory):
    """A solution whose operator is that of its fold's library."""
    folder = tmp_path_factory.mktemp("folded")
    path = folder / "folded.py"
    path.write_text(REFERENCE)
    text, count = re.subn(
        r'^((?:CUDA|CPU|OPERATOR)_SOURCE = r""")',
        r"\1\n#define TCONV_FOLDED_NORM 0",
        generated(path),
        flags=re.MULTILINE,
    )
    assert count == 3
    return emulator.Emulated(text, emulator.build(text, folder, "-O1"))


CASES = [(kernel, dtype, stride) for kernel in KERNELS for dtype in BOUNDS for stride in (1, 2)]


@pytest.mark.parametrize(
    ("kernel", "dtype", "stride"), swept(CASES, lambda c: c[2] == 2 or c[0] == "auto", names=3)
)
def test_it_is_a_step_of_every_kernel(folded, kernel, dtype, stride):
    options = {"channels": 16, "out_channels": 24, "groups": 1, "stride": stride}
    model = trained(load_text(REFERENCE)["Model"](**options)).eval().to(dtype)
    _, y, z = (x.to(dtype) for x in inputs(2, 16, ((3,), (9, 12), (3, 5, 6))))
    solution = folded.solution
    with torch.no_grad(), folded.on(), forced(kernel), tf32(True):
        for x, conv, norm in (
            (y, model.image, model.image_norm),
            (z, model.volume, model.volume_norm),
        ):
            exact = conv.double()(x.double())
            exact = torch.nn.functional.leaky_relu(norm.double()(exact), 0.1)
            conv, norm = conv.to(dtype), norm.to(dtype)
            vectors = norm.running_mean, norm.running_var, norm.weight, norm.bias
            given = x, conv.weight, conv.bias, conv.stride, conv.padding, conv.output_padding
            given = *given, conv.dilation, conv.groups, *vectors
            if x.dim() == 5:
                out = solution["_by_slices"](
                    solution["_operator"],
                    ((True,), 0),
                    *given[:3],
                    solution["_axes"]("conv_transpose3d", *given[:2], given[3:7], 3),
                    *(conv.groups, vectors),
                )
            else:
                out = solution["_operator"](*given)
            assert (out.double() - exact).norm() <= BOUNDS[dtype] * exact.norm()
