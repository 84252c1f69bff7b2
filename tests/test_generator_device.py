"""Solutions that are generated for CUDA alone (--device cuda)."""

import pytest
import torch

from generator.__main__ import main
from generator.emit import generate
from tests.solution_tools import PROBLEMS, REFERENCES, load_text
from tests.sweeps import swept

CONV = next(path for path in PROBLEMS if path.stem.startswith("69_"))


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """(with the C++ kernels, without)"""
    target = tmp_path_factory.mktemp("device") / "solution.py"
    return generate(CONV, target), generate(CONV, target, cuda_alone=True)


def source(text: str, name: str) -> str:
    return text.partition(f'\n{name} = r"""')[2].partition('"""')[0]


def test_the_cuda_half_is_the_same(texts):
    both, alone = texts
    for name in ("CUDA_SOURCE", "OPERATOR_SOURCE", "GRADIENT_CUDA_SOURCE"):
        assert source(both, name) == source(alone, name) != ""
    assert alone.count("\n") < both.count("\n") - 1000
    assert "namespace cpu" in both and "namespace cpu" not in alone


def test_the_docstring_says_so(texts):
    both, alone = (text.split('"""')[1] for text in texts)
    assert "--device cuda" not in both
    assert "so a CPU tensor is refused" in alone and "solution.py --device cuda\n" in alone


@pytest.mark.parametrize("name", swept(["69", "volume_only", "all_entries"]))
def test_a_tensor_on_a_cpu_is_refused(texts, name, tmp_path):
    """Of one operator, of three dimensions, and of several operators in one library."""
    if name == "69":
        solution = load_text(texts[1])
    else:
        text = generate(REFERENCES / f"{name}.py", tmp_path / "own.py", cuda_alone=True)
        solution = load_text(text)
    model = solution["ModelNew"](*solution.get("get_init_inputs", lambda: [])())
    inputs = solution["get_inputs"]() if "get_inputs" in solution else [torch.randn(1, 4, 3, 4, 4)]
    with pytest.raises(RuntimeError, match="on a CPU.*--device cuda; allowed are CUDA tensors"):
        model(*inputs)


def test_another_device_is_refused(capsys, tmp_path):
    with pytest.raises(SystemExit) as error:
        main([str(CONV), "-o", str(tmp_path / "own.py"), "--device", "cpu"])
    assert error.value.code == 2 and list(tmp_path.iterdir()) == []
    said = capsys.readouterr().err
    assert "--device: invalid choice: 'cpu'" in said and "all" in said and "cuda" in said
