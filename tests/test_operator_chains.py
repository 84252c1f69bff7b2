"""Random chains of element-wise operators on the CPU, as functors and as built solutions."""

import copy

import pytest
import torch
from torch import nn
from torch.utils import cpp_extension

from generator.calls import Modules, call_text
from generator.emit import generate
from generator.expressions import Expressions
from generator.program import program_of
from generator.reference import load_reference
from generator.runtime import activation_gradients, branches, step_gradients
from generator.runtime.gradients import _chain_backward, _chain_forward
from tests.operator_library import Functors
from tests.random_chains import LINES, MODULES, random_reference
from tests.solution_tools import REFERENCES, load_text, relative_error
from tests.sweeps import swept

CLASSES = {**vars(step_gradients), **vars(activation_gradients), **vars(branches)}


def test_random_references_are_the_same_everywhere():
    text = random_reference(1)
    assert text == random_reference(1) != random_reference(2)
    drawn = "".join(random_reference(seed) for seed in range(400))
    assert all(line in drawn for line in LINES) and all(module in drawn for module in MODULES)


CHAINS = 60


@pytest.fixture(scope="module")
def chains(tmp_path_factory):
    """(model without its convolution, steps, expressions of operands) of each seed; functors."""
    folder = tmp_path_factory.mktemp("chains")
    read = []
    for seed in range(CHAINS):
        path = folder / f"chain_{seed}.py"
        path.write_text(random_reference(seed))
        reference = load_reference(path)
        (fused,) = program_of(reference).training.items
        call = call_text(fused, "", Expressions(reference, None), Modules(set())).splitlines()
        vectors = [line.strip(" ,") for line in call[9:-1]]
        assert len(vectors) == len(fused.vectors)
        reference.model.conv = nn.Identity()
        read.append((reference.model.double(), fused.steps, vectors))
    return read, Functors("cpu", [steps for _, steps, _ in read], folder)


@pytest.mark.parametrize("seed", range(CHAINS))
def test_random_chains(chains, seed):
    """Values and gradients in float64, where 1e-8 is what a chain makes of the last places."""
    read, functors = chains
    model, steps, expressions = read[seed]
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 6, 5, 7, dtype=torch.float64, generator=generator).requires_grad_()
    wanted = model(x)
    vectors = [eval(text, {"self": model, "conv": _CONV}).detach() for text in expressions]
    channels = [
        functors(seed, x.detach()[:, c].contiguous(), [vector[c] for vector in vectors])
        for c in range(6)
    ]
    close = dict(rtol=1e-8, atol=1e-8, equal_nan=True)
    torch.testing.assert_close(torch.stack(channels, 1), wanted.detach(), **close)

    grad = torch.randn(wanted.shape, dtype=torch.float64, generator=generator)
    wanted.backward(grad)
    chain = [eval(step.python, dict(CLASSES)) for step in steps]
    with torch.no_grad():
        values = _chain_forward(chain, x.detach(), vectors)
        ours, vector_grads = _chain_backward(chain, grad, values, vectors)
    torch.testing.assert_close(ours, x.grad, **close)
    for name, parameter in (("self.a", model.a), ("self.b", model.b)):
        of_it = [g for g, e in zip(vector_grads, expressions, strict=True) if e.startswith(name)]
        if of_it:
            torch.testing.assert_close(sum(of_it), parameter.grad.flatten(), **close)


_CONV = nn.ConvTranspose2d(4, 6, 3)


@pytest.fixture
def for_the_cpu(tmp_path, monkeypatch):
    """Solutions are built without their CUDA half."""
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "build"))


@pytest.mark.parametrize("seed", swept([None, 1001, 1003]))
def test_built_solutions(seed, tmp_path, for_the_cpu):
    """Every operator in one chain (None), six random ones: no less exact than PyTorch in fp32, and
    in float64 with gradients.
    """
    text = random_reference(seed, 6) if seed else (REFERENCES / "every_operator.py").read_text()
    path = tmp_path / "chain.py"
    path.write_text(text)
    solution = load_text(generate(path, tmp_path / "solution.py"), "chain")
    reference = load_text(text, "reference")
    models = []
    for factory in (reference["Model"], solution["ModelNew"]):
        torch.manual_seed(0)
        models.append(factory(*reference["get_init_inputs"]()))
    model, new = models
    x = torch.randn(2, 4, 6, 7)
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        pytorch, ours, right = model(x), new(x), exact(x.double())
    finite = right.isfinite()
    assert finite.float().mean() > 0.5 and right[finite].std() > 1e-2
    assert torch.equal(ours.isnan(), right.isnan())
    error = relative_error(pytorch[finite], right[finite])
    assert relative_error(ours[finite], right[finite]) <= 3 * error + 1e-6
    for dtype, bound in ((torch.float16, 2e-2), (torch.bfloat16, 1e-1)):
        low, right = copy.deepcopy(new).to(dtype), copy.deepcopy(model).to(dtype).double()
        with torch.no_grad():
            ours, right = low(x.to(dtype)), right(x.to(dtype).double())
        finite = right.isfinite() & ours.isfinite()
        assert relative_error(ours[finite], right[finite]) <= bound
    gradients = []
    for candidate in (exact, new.double()):
        inner = x.double().requires_grad_()
        candidate(inner).nan_to_num(0, 0, 0).sum().backward()
        gradients.append([inner.grad, *(p.grad for p in candidate.parameters())])
    for wanted, got in zip(*gradients, strict=True):
        if wanted is None:
            assert got is None
        else:
            torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-8, equal_nan=True)


def test_built_solution_with_another_rising_activation(tmp_path, for_the_cpu):
    """Pooled before it is activated, as with tanh."""
    text = (REFERENCES / "pooled.py").read_text()
    changed = text.replace("torch.relu(", "torch.nn.functional.elu(")
    assert changed != text
    path = tmp_path / "pooled.py"
    path.write_text(changed)
    solution = load_text(generate(path, tmp_path / "solution.py"), "pooled_elu")
    reference = load_text(changed, "reference")
    torch.manual_seed(0)
    model = reference["Model"]()
    model.bn.weight.data = torch.randn(8)  # of either sign
    new = solution["ModelNew"]()
    new.load_state_dict(model.state_dict())
    x, exact = torch.randn(3, 4, 7, 6), copy.deepcopy(model).double()
    with torch.no_grad():
        assert relative_error(new(x), exact(x.double())) <= 2e-5
    gradients = []
    for candidate in (exact, new.double()):
        y = candidate(x.double())
        candidate.zero_grad()
        (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
        gradients.append([p.grad for p in candidate.parameters()])
    for wanted, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)
