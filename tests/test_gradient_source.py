"""The source of the gradients' library, of which a solution holds what its CUDA source lacks."""

import pytest

from generator.kernels import sources
from generator.operator_layer import runtime_statements
from generator.program import ambient_kept, read_program
from generator.sources import gradient_cuda_source, gradient_operator_source
from tests.builds_ahead import (
    CHAIN_GRADIENTS,
    GRADIENTS,
    NORM_GRADIENTS,
    POOL_GRADIENTS,
    VOLUME_CHAIN_GRADIENTS,
    VOLUME_GRADIENTS,
    cuda_source_of,
)
from tests.solution_tools import REFERENCES

LIBRARIES = [GRADIENTS, NORM_GRADIENTS, POOL_GRADIENTS, CHAIN_GRADIENTS, VOLUME_GRADIENTS]
LIBRARIES += [VOLUME_CHAIN_GRADIENTS]


def test_the_source_is_whole_again(shelf):
    solution = shelf["69"].solution
    assert solution["_GRADIENT_CUDA"] == f"\n{gradient_cuda_source()}"
    assert len(solution["GRADIENT_CUDA_SOURCE"]) < len(solution["_GRADIENT_CUDA"]) / 2


@pytest.mark.parametrize(
    ("name", "library", "entry"),
    [
        ("grouped_volumes", "_GROUP_NORM", "group_norm"),
        ("many_channels", "_BATCH_NORM", "batch_norm"),
    ],
)
def test_sources_of_libraries_are_whole_again(shelf, name, library, entry):
    """Of kernels and operators, without lines of the forward's and the gradients'."""
    solution = shelf[name].solution
    _, operator, cuda = solution[library]
    assert cuda == f"\n{gradient_cuda_source(entry)}"
    assert operator == f"\n{gradient_operator_source(entry)}"
    held = solution[f"{library[1:]}_CUDA_SOURCE"], solution[f"{library[1:]}_OPERATOR_SOURCE"]
    assert len(held[0]) < 0.8 * len(cuda) and len(held[1]) < 0.25 * len(operator)


@pytest.mark.parametrize(
    ("name", "library", "entry"),
    [
        ("grouped_volumes", "_NORM_GRADIENTS", "group_norm_gradient"),
        ("11", "_POOL_GRADIENTS", "batch_norm_pool_gradient"),
    ],
)
def test_sources_of_chains_gradients_are_whole_again(shelf, name, library, entry):
    solution, volumes = shelf[name].solution, name == "grouped_volumes"
    _, operator, cuda = solution[library]
    assert operator == f"\n{gradient_operator_source(entry, volumes)}"
    assert (
        solution["_GRADIENT_OPERATOR"]
        == f"\n{gradient_operator_source(volumes=volumes, chained=volumes)}"
    )
    assert "====" not in cuda + solution["_GRADIENT_CUDA"] and f"entry_{entry}.cu" in cuda


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


@pytest.mark.parametrize(
    ("name", "packs"),
    [
        ("packed_volumes", True),
        ("grouped_volumes", True),
        ("few_channels", False),  # no outputs in whole eights
        ("joined_volumes", False),  # of tensors of the output's shape
        ("volume_only", False),  # nothing behind
    ],
)
def test_volumes_whose_chains_are_packed(name, packs):
    with ambient_kept():
        made = sources(read_program(REFERENCES / f"{name}.py"))
    operator = made.gradient_sources["GRADIENT_OPERATOR_SOURCE"]
    assert made.packs_volumes == packs == ("depth_chain_gradients" in operator)
    assert "NORM_GRADIENT_CUDA_SOURCE" in made.gradient_sources or not packs
    written = "\n".join(s.text for s in runtime_statements(made, "_in_three_dimensions"))
    assert written.count("def _packed_gradients") == 1
    assert ("_count_packed_flops" in written) == packs
