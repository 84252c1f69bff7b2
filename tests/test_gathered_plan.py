"""When layers are gathered (kernels_src/cuda/gathered_plan.h): many channels over few pixels are,
and none whose places 16 or 32 bits do not hold.
"""

import subprocess

import pytest

from tests.solution_tools import ROOT

_PROBE = r"""
#define TCONV_SPLITS_CHANNELS
#define TCONV_GATHERS_PIXELS
#include <cstdio>
#include "channel_parts.h"
#include "gathered_plan.h"
using namespace tconv;
int main() {
  long long n, ci, co, h, w, k, s, ph, pw, dh, dw, more;
  while (std::scanf("%lld %lld %lld %lld %lld %lld", &n, &ci, &co, &h, &w, &k) == 6 &&
         std::scanf("%lld %lld %lld %lld %lld %lld", &s, &ph, &pw, &dh, &dw, &more) == 6) {
    ConvTransposeLayer p{};
    p.batch = n, p.in_channels = ci, p.out_channels = co, p.groups = 1, p.in_h = h, p.in_w = w;
    p.kernel_h = p.kernel_w = k, p.stride_h = p.stride_w = s, p.padding_h = ph, p.padding_w = pw;
    p.dilation_h = dh, p.dilation_w = dw;
    p.out_h = (h - 1) * s - 2 * ph + dh * (k - 1) + more + 1;
    p.out_w = (w - 1) * s - 2 * pw + dw * (k - 1) + more + 1;
    p.x_stride_w = 1, p.x_stride_h = w, p.x_stride_c = h * w, p.x_stride_n = ci * h * w;
    const hopper::Plan line = hopper::plan_parts(p, 1, false, 232448, 132);
    ConvCall call{};
    call.layer = p;
    const hopper::Plan plan = hopper::cheaper_gathered(line, call, false, 232448, 132);
    std::printf("%d\n", plan.gathered_n);
  }
}
"""
# batch, in and out channels, size, kernel, stride, padding, dilation, output padding
FEW_PIXELS = {
    "dcgan": (64, 1024, 512, 4, 4, 4, 2, 1, 1, 1, 1, 0),
    "unet": (1, 1024, 512, 28, 28, 2, 2, 0, 0, 1, 1, 0),
    "vae": (32, 512, 256, 2, 2, 3, 2, 1, 1, 1, 1, 1),
}
MANY_PIXELS = {
    "1/65": (16, 64, 64, 128, 128, 3, 1, 0, 0, 1, 1, 0),
    "decoder": (8, 64, 64, 128, 128, 4, 2, 1, 1, 1, 1, 0),
}
# Of the same, but for what each exceeds; the first is the last that is not.
FAR = {
    "dilated": (4, 512, 256, 2, 2, 2, 1, 0, 0, 8000, 1, 0),
    "dilation": (4, 512, 256, 2, 2, 2, 1, 0, 0, 8193, 1, 0),
    "output padding": (4, 512, 256, 2, 2, 1, 1, 0, 0, 9000, 1, 8999),
    "padding": (4, 512, 256, 2, 2, 1, 1, 9000, 0, 20000, 1, 18100),
    "padded columns": (4, 512, 256, 2, 2, 1, 1, 0, 9000, 1, 20000, 18100),
    "long": (1, 256, 1, 1, 8200, 3, 1, 1, 1, 1, 1, 0),
    "outputs": (40000, 128, 4096, 2, 2, 2, 2, 0, 0, 1, 1, 0),
    "pixels": (1200000, 4096, 64, 2, 2, 2, 2, 0, 0, 1, 1, 0),
}


@pytest.fixture(scope="module")
def gathered(tmp_path_factory):
    """Pixels of a tile by layer, 0 where it is not gathered."""
    folder = tmp_path_factory.mktemp("gathered")
    (folder / "probe.cpp").write_text(_PROBE)
    flags = ["-std=c++17", f"-I{ROOT / 'kernels_src' / 'cuda'}"]
    subprocess.run(["c++", *flags, folder / "probe.cpp", "-o", folder / "probe"], check=True)

    def ask(layer: tuple) -> int:
        line = " ".join(map(str, layer))
        run = subprocess.run([folder / "probe"], input=line, capture_output=True, text=True)
        assert run.returncode == 0
        return int(run.stdout)

    return ask


@pytest.mark.parametrize("name", FEW_PIXELS)
def test_many_channels_over_few_pixels_are(gathered, name):
    assert gathered(FEW_PIXELS[name]) in (128, 256)


@pytest.mark.parametrize("name", MANY_PIXELS)
def test_many_pixels_are_not(gathered, name):
    assert gathered(MANY_PIXELS[name]) == 0


@pytest.mark.parametrize("name", FAR)
def test_places_that_do_not_fit_are_not(gathered, name):
    assert (gathered(FAR[name]) > 0) == (name == "dilated")
