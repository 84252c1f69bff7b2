"""The source of the gradients' library, of which a solution holds what its CUDA source lacks."""

import pytest

from generator.sources import gradient_cuda_source
from tests.builds_ahead import (
    CHAIN_GRADIENTS,
    GRADIENTS,
    NORM_GRADIENTS,
    POOL_GRADIENTS,
    VOLUME_GRADIENTS,
    cuda_source_of,
)

LIBRARIES = [GRADIENTS, NORM_GRADIENTS, POOL_GRADIENTS, CHAIN_GRADIENTS, VOLUME_GRADIENTS]


def test_the_source_is_whole_again(shelf):
    solution = shelf["69"].solution
    assert solution["_GRADIENT_CUDA"] == f"\n{gradient_cuda_source()}"
    assert len(solution["GRADIENT_CUDA_SOURCE"]) < len(solution["_GRADIENT_CUDA"]) / 2


def test_without_kernels_for_gradients_they_are_pytorchs(shelf):
    solution = shelf["69 pytorch_gradients"].solution
    assert solution["_GRADIENT_DEVICES"] == ()
    assert "GRADIENT_CUDA_SOURCE" not in solution


def test_every_call_has_the_number_of_its_chain(shelf):
    """Of several calls in one file: the library behind them has each chain once."""
    solution = shelf["vae_decoder"].solution
    assert (solution["_CHAIN_NUMBER_0"], solution["_CHAIN_NUMBER_1"]) == (0, 1)
    library = solution["_GRADIENT_CUDA"]
    assert "kNumChains = 2;" in library and "====" not in library
    for number, slope in enumerate(("after <= Acc(0) ?", "(Acc(1) - after) * after")):
        chain = library.partition(f"struct Chain<{number}>")[2].partition("\n};")[0]
        assert slope in chain


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: path.stem)
def test_it_does_not_compile_in_parts(library):
    """Forwards' texts do, with which it shares headers (kernels_src/cuda/dtype_parts.h)."""
    text = cuda_source_of(library)
    assert "TCONV_WITHOUT" not in text and "PART" not in text and "LEFT_OUT" not in text
