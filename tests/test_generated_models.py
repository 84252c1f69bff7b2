"""Models of our own (tests/references/) as solutions with their kernels: what they compute, their
gradients and what they keep are the reference's, in float64, in training and in eval mode.
"""

import os
import re

import pytest
import torch

from generator.emit import solution_text
from generator.errors import Refusal
from generator.explain import explained
from generator.prove import prove
from tests.model_steps import JUDGED, MODELS, too_far
from tests.solution_tools import REFERENCES, environment, load_text, program_of
from tests.sweeps import swept

FEWEST = ("unet",)  # each is a build
FEW_IN_FP32 = ("residual_blocks", "unet").__contains__


@pytest.fixture(scope="module")
def build_folder(tmp_path_factory):
    """Where models with the same kernels share a build."""
    return os.environ.get("TORCH_EXTENSIONS_DIR") or tmp_path_factory.mktemp("models")


def shared(text: str) -> str:
    """The solution under a name that it shares with others of the same kernels and chains."""
    text = re.sub(r"^_SLUG = .*$", "_SLUG = 'shared'", text, flags=re.MULTILINE)
    chains = "".join(re.findall(r"^_(?:CHAIN|ACTIVATION).*$", text, re.MULTILINE))
    return re.sub(r"^_DIGEST = .*$", lambda _: f"_DIGEST = {chains!r}", text, flags=re.MULTILINE)


@pytest.mark.parametrize("name", swept(MODELS, FEWEST.__contains__))
def test_a_model_computes_what_its_reference_does(name, build_folder, tmp_path):
    program = program_of(REFERENCES / f"{name}.py")
    text = shared(solution_text(program, tmp_path / "solution.py"))
    with environment(TORCH_EXTENSIONS_DIR=build_folder):
        prove(program, text, built=True)


@pytest.mark.parametrize("name", swept(JUDGED, FEW_IN_FP32))
def test_in_fp32_it_is_as_near_as_pytorch(name, build_folder, tmp_path):
    """By kernels that float64 does not have: the proof is in float64."""
    text = shared(solution_text(program_of(REFERENCES / f"{name}.py"), tmp_path / "solution.py"))
    with environment(TORCH_EXTENSIONS_DIR=build_folder):
        assert too_far(name, load_text(text), "cpu", torch.float32, 1e-6) == []


KERNELS = {
    "dcgan_generator": (3, 2),
    "unet": (2, 1),
    "vae_decoder": (2, 2),
    "two_heads": (4, 3),
    "all_entries": (4, 4),
    "shared_weights": (3, 3),
    "residual_decoder": (3, 2),
    "one_and_three_dimensions": (3, 3),
    "volume_only": (3, 1),
}


@pytest.mark.parametrize("name", KERNELS)
def test_equal_calls_share_a_kernel(name):
    program = program_of(REFERENCES / f"{name}.py")
    assert (len(program.training.fused), len(program.kernels)) == KERNELS[name]


def _left(lines: list[str]) -> str:
    return next((line for line in lines if re.search(r"ConvTranspose\dd: left", line)), "")


@pytest.mark.sweep
def test_every_transposed_convolution_is_ours():
    """But for one whose weight a hook computes."""
    left = {}
    for name in MODELS:
        lines = [line.text for line in explained(program_of(REFERENCES / f"{name}.py"))]
        if told := _left(lines):
            left[name] = told
    assert list(left) == ["old_weight_norm"] and "hooks" in left["old_weight_norm"]


DIFFERENT = [
    ("torch.ops.aten.add_.Tensor(self.counter.calls, 1)", "None", r"state_dict.*counter.calls"),
    ("torch.ops.aten.mul.Tensor(v2, self.scale)", "v2 * 2.5", "the result in training mode"),
    ("set_grad_enabled(False)", "set_grad_enabled(True)", "would (differ|fail)"),
    ("torch.zeros(6)", "torch.zeros(7)", "state_dict.. of a new model"),
    ("conv.bias", "conv.bias.detach()", "gradients of parameters.*up.bias"),
    ("return v2", "return v3", "the result in training mode"),
]


@pytest.mark.parametrize(("old", "new", "where"), swept(DIFFERENT, (0, 4), names=3))
def test_a_proof_notices_what_differs(old, new, where, tmp_path):
    program = program_of(REFERENCES / "counting_buffers.py")
    text = solution_text(program, tmp_path / "solution.py")
    assert old in text
    with pytest.raises(Refusal, match=where):
        prove(program, text.replace(old, new))
