"""The source of the gradients' library, of which a solution holds what its CUDA source lacks."""

from generator.sources import gradient_cuda_source


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
    for number, call in enumerate(("relu", "sigmoid")):
        chain = library.partition(f"struct Chain<{number}>")[2].partition("\n};")[0]
        assert f"elementwise::{call}(v)" in chain
