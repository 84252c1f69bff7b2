"""kernels_src/cuda/chain_slice_places.h: where the tensors of a slice lie, on random sizes."""

import random
import subprocess

import pytest

from generator.sources import KERNELS

_PROGRAM = r"""
#include <cstdio>
#include "cuda/chain_slice_places.h"
int main() {
  tconv::cuda::SliceBytes image;
  long grad_x, value, x, planes, batch, most;
  while (scanf("%ld %ld %ld %ld %ld %ld", &grad_x, &value, &x, &planes, &batch, &most) == 6) {
    image.grad_x = grad_x, image.value = value, image.x = x, image.planes = planes;
    printf("%ld", long{image.spare(batch)});
    for (const auto& slice : tconv::cuda::slices_of(image, batch, most)) {
      printf(" %ld %ld", long{slice.first}, long{slice.count});
      for (const auto* place : {&slice.x, &slice.value, &slice.planes})
        printf(" %d %ld", place->spare, long{place->at});
    }
    printf("\n");
  }
}
"""
# Of 2/19: 64 channels of 256 x 256 pixels, of 258 x 258 behind the convolution.
PROBLEM = {"grad_x": 16777216, "value": 17040384, "x": 8388608, "planes": 9510912}


@pytest.fixture(scope="module")
def slices_of(tmp_path_factory):
    """slices_of([(sizes of an image, batch, most)]): of each its spare bytes and slices."""
    folder = tmp_path_factory.mktemp("slices")
    source, program = folder / "slices.cpp", folder / "slices"
    source.write_text(_PROGRAM)
    subprocess.run(["g++", "-std=c++17", f"-I{KERNELS}", source, "-o", program], check=True)

    def ask(cases):
        given = "\n".join(
            " ".join(map(str, (*sizes.values(), batch, most))) for sizes, batch, most in cases
        )
        done = subprocess.run([program], input=given, capture_output=True, text=True, check=True)
        answers = [list(map(int, line.split())) for line in done.stdout.splitlines()]
        assert len(answers) == len(cases)
        return [
            (spare, [rest[i : i + 8] for i in range(0, len(rest), 8)]) for spare, *rest in answers
        ]

    return ask


def test_of_2_19(slices_of):
    [(spare, slices)] = slices_of([(PROBLEM, 128, 1000)])
    assert [count for _, count, *_ in slices] == [47, 31, 19, 12, 9, 6, 4]
    assert spare <= 0.051 * 128 * PROBLEM["grad_x"]


def test_a_small_batch_is_one_slice(slices_of):
    [(_, slices)] = slices_of([(dict.fromkeys(PROBLEM, 4096), 16, 1000)])
    assert [(first, count) for first, count, *_ in slices] == [(0, 16)]


def random_case(seed: int) -> tuple[dict, int, int]:
    draw = random.Random(seed)
    sizes = {name: draw.choice([1, 3, 17]) * 4 ** draw.randint(4, 12) for name in PROBLEM}
    return sizes, draw.randint(1, 200), draw.choice([1, 5, 64, 10**6])


def test_random_sizes(slices_of):
    """Every image once and in order, each tensor inside of its memory; what is read while the
    slice's part of x's gradient is written lies elsewhere, and no two tensors share a byte.
    """
    cases = [random_case(seed) for seed in range(400)]
    for (sizes, batch, most), (spare, slices) in zip(cases, slices_of(cases), strict=True):
        at = 0
        for first, count, *places in slices:
            assert first == at and 0 < count <= most
            at += count
            taken = []
            for name, in_spare, begin in zip(
                ("x", "value", "planes"), places[::2], places[1::2], strict=True
            ):
                end = begin + count * sizes[name]
                assert begin % 256 == 0
                lower = 0 if in_spare else first * sizes["grad_x"]
                assert lower <= begin and end <= (spare if in_spare else batch * sizes["grad_x"])
                if name != "x" and not in_spare:
                    assert begin >= (first + count) * sizes["grad_x"]
                taken.append((in_spare, begin, end))
            for i, (space, begin, end) in enumerate(taken):
                for other, other_begin, other_end in taken[:i]:
                    assert space != other or end <= other_begin or other_end <= begin
        assert at == batch
