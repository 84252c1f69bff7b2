"""BatchNorm in eval mode in the convolution's kernel: where forward calls it, and when it is left
to PyTorch. PyTorch's functions stand in for the kernels.
"""

import re

import pytest
import torch
from torch import nn

from generator import static_rules
from generator.emit import solution_text
from generator.errors import Refusal
from generator.explain import explained
from generator.kernels import sources
from generator.prove import prove, with_formulas
from generator.runtime import folded_norm
from generator.runtime.several_calls import _repeated
from tests.folded_norm_tools import trained, watched
from tests.solution_tools import REFERENCES, generated, load_text, program_of
from tests.sweeps import swept

WRITTEN = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 4, 3)
        self.norm = {norm}
        self.act = nn.LeakyReLU(0.2)
        self.soft = nn.Softmax(3)
        self.gain = nn.Parameter(torch.rand(4, 1, 1))
        self.register_buffer("shift", torch.rand(4, 1, 1))

    def forward(self, x):
        y = self.up(x)
        {body}


def get_inputs():
    return [torch.randn(2, 3, 5, 6)]


def get_init_inputs():
    return []
"""
NORM = "nn.BatchNorm2d(4)"
ACT = "return self.act(self.norm(y))"


def written(folder, body=ACT, norm=NORM):
    path = folder / "written.py"
    path.write_text(WRITTEN.format(norm=norm, body=body))
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The reference with ACT."""
    return written(tmp_path_factory.mktemp("written"))


@pytest.fixture(scope="module")
def stood_in(plain):
    """(the reference, its solution without kernels, by which calls a fold's would have run)"""
    solution = with_formulas(program_of(plain), generated(plain))
    return load_text(plain.read_text()), solution, watched(solution)


def pair(stood_in):
    """In eval mode."""
    theirs = trained(stood_in[0]["Model"]()).eval()
    ours = stood_in[1]["ModelNew"]().eval()
    ours.load_state_dict(theirs.state_dict())
    stood_in[2].clear()
    return theirs, ours


def hooked(model):
    model.norm.register_forward_hook(lambda module, given, out: out + 1)


def hooked_step(model):
    model.act.register_forward_pre_hook(lambda module, given: (given[0] * 2,))


def other_statistics(model):
    model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()})


def replaced_statistics(model):
    model.norm.running_mean = torch.rand(4)


def without_statistics(model):
    model.norm.running_mean = model.norm.running_var = None


def affine_no_more(model):
    model.norm.weight = None


def parametrized(model):
    nn.utils.parametrize.register_parametrization(model.norm, "weight", nn.Softplus())


# What is done to a model in eval mode, and whether the kernel still takes the norm.
CHANGES = {
    "nothing": (lambda model: None, True),
    "norm.train()": (lambda model: model.norm.train(), False),
    "train()": (lambda model: model.train(), False),
    "eval() of the norm in train()": (lambda model: model.train().norm.eval(), True),
    "other statistics": (other_statistics, True),
    "replaced statistics": (replaced_statistics, True),
    "no statistics": (without_statistics, False),
    "momentum": (lambda model: setattr(model.norm, "momentum", None), True),
    "they are tracked no more": (lambda m: setattr(m.norm, "track_running_stats", False), True),
    "eps": (lambda model: setattr(model.norm, "eps", 0.5), False),
    "no weight": (affine_no_more, False),
    "a hook": (hooked, False),
    "a hook of a step": (hooked_step, False),
    "another step": (lambda model: setattr(model, "act", nn.LeakyReLU(0.3)), False),
    "another norm": (lambda m: setattr(m, "norm", nn.GroupNorm(2, 4)), False),
    "a parametrized weight": (parametrized, False),
    "a forward of its own": (lambda model: setattr(model.norm, "forward", torch.neg), False),
    "statistics in strides": (lambda m: setattr(m.norm, "running_var", torch.rand(8)[::2]), False),
    "one value": (lambda model: setattr(model.norm, "running_mean", torch.rand(1)), False),
}


@pytest.mark.parametrize("name", CHANGES)
def test_when_the_kernel_takes_it(stood_in, name):
    change, taken = CHANGES[name]
    theirs, ours = pair(stood_in)
    outputs = []
    for model in (theirs, ours):
        torch.manual_seed(0)
        change(model)
        with torch.no_grad():
            outputs.append(outcome(model, torch.randn(2, 3, 5, 6)))
    assert stood_in[2] == [taken]
    if not isinstance(outputs[0], torch.Tensor):
        assert outputs[0] == outputs[1]
        return
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)
    for key, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[key], value, rtol=1e-4, atol=1e-5)


def outcome(model, x):
    """The result, or the kind of error."""
    try:
        return model(x)
    except RuntimeError as error:
        return type(error)


@pytest.mark.parametrize("wanted", ["up.weight", "norm.weight", "norm.bias", ""])
def test_not_where_a_gradient_is_wanted(stood_in, wanted):
    """Of anything that is read; the last case is the input's."""
    found = []
    for model in (model.double().requires_grad_(False) for model in pair(stood_in)):
        x = torch.ones(2, 3, 5, 6, dtype=torch.float64)
        tensor = model.get_submodule(wanted.partition(".")[0]) if wanted else x
        tensor = getattr(tensor, wanted.partition(".")[2]) if wanted else x
        tensor.requires_grad_()
        (model(x) ** 2).sum().backward()
        found.append(tensor.grad)
    assert stood_in[2] == [False]
    torch.testing.assert_close(*found)


def test_where_none_is_wanted_gradients_may_be_enabled(stood_in):
    _, ours = pair(stood_in)
    ours.requires_grad_(False)
    ours(torch.randn(2, 3, 5, 6))
    assert stood_in[2] == [True]


def test_dtypes_that_differ_stay_pytorchs(stood_in):
    """As of a norm that is kept in fp32."""
    theirs, ours = pair(stood_in)
    outputs = []
    for model in (theirs, ours):
        model.bfloat16().norm.float()
        with torch.no_grad():
            outputs.append(outcome(model, torch.ones(2, 3, 5, 6, dtype=torch.bfloat16)))
    assert stood_in[2] == [False]
    torch.testing.assert_close(*outputs)


def test_under_autocast_compilers_and_transforms_it_stays_pytorchs(stood_in):
    theirs, ours = pair(stood_in)
    x = torch.randn(2, 3, 5, 6)
    ran = stood_in[2]
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            ours(x)
        torch.testing.assert_close(torch.vmap(ours)(x[None])[0], theirs(x), rtol=1e-4, atol=1e-5)
        assert ran == [False] * 2
        ours = stood_in[1]["ModelNew"]().eval()
        ours.load_state_dict(theirs.state_dict())
        compiled = torch.compile(ours, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), theirs(x), rtol=1e-4, atol=1e-5)


FOLDED = [
    (ACT, NORM, 2),
    ("return self.norm(y)", NORM, 1),
    ("return F.relu(self.norm(y * 2), inplace=True).clamp(max=3) - 1", NORM, 5),
    ("return torch.tanh(self.norm(y + self.gain))", "nn.BatchNorm2d(4, affine=False)", 3),
    # An operand keeps its name, for it is read again where the kernel does not run.
    ("w = self.up.weight * 2\n        return self.norm(F.conv_transpose2d(x, w)).relu()", NORM, 2),
    ("return self.act(self.norm(y)) * self.gain", NORM, 2),
    ("return self.norm(y) + x.mean()", NORM, 1),
    ("return self.act(self.norm(y))", "nn.BatchNorm2d(4, momentum=None)", 2),
]
LEFT = [
    ("return self.norm(y + self.gain)", NORM),  # five operands
    ("return self.norm(y + self.up(x.cos()))", "nn.BatchNorm2d(4, affine=False)"),
    ("y = self.norm(y)\n        return y * torch.sigmoid(y)", NORM),
    ("return self.soft(self.norm(y))", NORM),
    (ACT, "nn.BatchNorm2d(4, track_running_stats=False)"),
    ("return torch.relu(y), self.norm(y)", NORM),
    ("with torch.no_grad():\n            y = self.norm(y)\n        return self.act(y)", NORM),
    ("self.shift.add_(1)\n        return self.norm(y - self.shift)", NORM),
    ("return self.norm(y + y.detach().cos())", NORM),
    ("return self.norm(y) + y", NORM),
    ("return self.norm(y.cos())", NORM),
    ("return self.act(self.norm(y.amin(1, keepdim=True).expand(-1, 4, -1, -1)))", NORM),
    (ACT, "nn.InstanceNorm2d(4)"),
    (ACT, "nn.GroupNorm(2, 4)"),
]


@pytest.mark.parametrize(("body", "norm", "steps"), swept(FOLDED, (3, 4), names=3))
def test_what_is_folded(tmp_path, body, norm, steps):
    path = written(tmp_path, body, norm)
    (fold,) = program_of(path).folds.values()
    assert len(fold.steps) == steps
    text = generated(path)  # proved
    assert static_rules.findings(text, "float32").errors == []
    solution = with_formulas(program_of(path), text)
    ran, model = watched(solution), solution["ModelNew"]().eval()
    with torch.no_grad():
        model(torch.randn(2, 3, 5, 6))
    assert ran == [True]


@pytest.mark.parametrize(("body", "norm"), swept(LEFT, range(6), names=2))
def test_what_is_not(tmp_path, body, norm):
    assert program_of(written(tmp_path, body, norm)).folds == {}


def test_nothing_is_left_of_it_elsewhere(tmp_path):
    text = solution_text(program_of(written(tmp_path, *LEFT[0])), tmp_path / "solution.py")
    assert "FOLDED_NORM" not in text and "_folded_norm" not in text


def test_a_proof_notices_another_chain(plain):
    text, given = generated(plain), "convolve(number, x, weight, bias, *rest, *own)"
    assert text.count(given) == 1
    with pytest.raises(Refusal, match="the result in eval mode without a gradient"):
        prove(program_of(plain), text.replace(given, given.replace("*own", "*own[::-1]")))


def test_forward_and_what_is_said_of_it(tmp_path):
    path = written(tmp_path, "z = x.cos()\n        return self.act(self.norm(y)) + z.sum()")
    text = generated(path)
    body = text[text.index("def forward(self, x") :]
    order = ["cos", "_folded_norm(", "if not done:", "_operator(", "_tail(", "if not done:"]
    places = [body.index(order[0])]
    for part in order[1:]:
        places.append(body.index(part, places[-1] + 1))
    assert re.search(r"\n        done, \w+ = _folded_norm\(\n            0,\n", body)
    assert "in_three_dimensions" not in text and "_folded_row" not in text
    said = [line.text for line in explained(program_of(path)) if "in eval mode" in line.text]
    chain = "in the kernel of ConvTranspose2d -> BatchNorm2d -> LeakyReLU"
    assert len(said) == 2 and all(line.endswith(chain) for line in said)
    assert "is large, in training mode; in eval mode, where no gradient is wanted" in said[0]


def test_one_of_several_calls():
    """Of each source a fold's library is given that of the call that it grew from."""
    made = sources(program_of(REFERENCES / "dcgan_generator.py"))
    assert made.constants["_FOLDED_NORMS"] == "(('_0', 1e-05, True, True),)"
    repeated = _repeated("int source();", (0, 3))
    second = folded_norm._of_one_call(repeated, "_1")
    defined = re.findall(r"#define (TCONV_\w+) (\d)", second)
    assert defined == [("TCONV_CALL", "1"), ("TCONV_KIND", "3")]
    assert "#define tconv_cpu_run tconv_cpu_run_1\n" in second and "_0" not in second
    assert folded_norm._of_one_call("int source();", "") == "int source();"


def test_pytorchs_gradients_come_with_it(tmp_path):
    assert "_folded_norm(" in generated(written(tmp_path), own_gradients=False)
