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
