"""Inner modules, which the fused call never calls: refused by name where they would do something
else than what is compiled in, honoured where nothing but their tensors changed.
"""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.utils.flop_counter import FlopCounterMode

from tests.solution_tools import relative_error
from tests.sweeps import swept

INNER = {
    "11": ["conv_transpose", "batch_norm", "tanh", "max_pool", "group_norm"],
    "every_step": ["stage", "stage.0", "stage.1"],
    "nested": ["up", "up.conv", "up.gelu", "up.same"] + ["steps.0", "steps.1", "steps.2", "norm"],
}
CHANNELS = {"11": 64, "every_step": 5, "nested": 4}
EACH = [(name, inner) for name, inners in INNER.items() for inner in inners]


def example(name):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, CHANNELS[name], 6, 5, generator=generator)


def refuses(new, name, *words):
    """A sentence with these words, whatever the mode."""
    for call in (new.train(), new.eval()):
        with pytest.raises(ValueError) as caught:
            call(example(name))
        message = str(caught.value)
        assert all(word in message for word in words), message
        assert "\n" not in message


def works(model, new, name):
    x = example(name)
    model, new = model.eval(), new.eval()
    assert relative_error(new(x), copy.deepcopy(model).double()(x.double())) <= 2e-5


HOOKS = {
    "forward hooks": lambda m: m.register_forward_hook(lambda *_: None),
    "forward pre hooks": lambda m: m.register_forward_pre_hook(lambda *_: None),
    "backward hooks": lambda m: m.register_full_backward_hook(lambda *_: None),
    "backward pre hooks": lambda m: m.register_full_backward_pre_hook(lambda *_: None),
}


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(("name", "inner"), swept(EACH, range(0, len(EACH), 3), names=2))
def test_a_hook_on_an_inner_module_is_refused_until_it_is_removed(shelf, name, inner, hook):
    model, new = shelf[name].pair()
    handle = HOOKS[hook](new.get_submodule(inner))
    refuses(new, name, inner, hook)
    handle.remove()
    works(model, new, name)


@pytest.mark.parametrize("name", INNER)
def test_hooks_on_the_outer_model_run(shelf, name):
    _, new = shelf[name].pair()
    seen = []
    new.register_forward_pre_hook(lambda *_: seen.append("pre"))
    new.register_forward_hook(lambda *_: seen.append("forward"))
    new.register_full_backward_hook(lambda *_: seen.append("backward"))
    new(example(name).requires_grad_()).sum().backward()
    assert seen == ["pre", "forward", "backward"]


CONVS = {"11": "conv_transpose", "every_step": "stage.0", "nested": "up.conv"}
OLD_STYLE = {
    "weight_norm": lambda m: nn.utils.weight_norm(m),
    "spectral_norm": lambda m: nn.utils.spectral_norm(m),
    "prune": lambda m: prune.l1_unstructured(m, "weight", 0.5),
}


@pytest.mark.parametrize("change", OLD_STYLE)
@pytest.mark.parametrize(("name", "inner"), CONVS.items())
def test_a_weight_that_a_hook_computes_is_refused(shelf, name, inner, change):
    _, new = shelf[name].pair()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        OLD_STYLE[change](new.get_submodule(inner))
    refuses(new, name, inner, "forward pre hooks")


@pytest.mark.parametrize(("name", "inner"), CONVS.items())
def test_a_pruned_weight_works_once_it_is_permanent(shelf, name, inner):
    pair = shelf[name].pair()
    for candidate in pair:
        conv = candidate.get_submodule(inner)
        prune.l1_unstructured(conv, "weight", 0.5)
        prune.remove(conv, "weight")
    works(*pair, name)


@pytest.mark.parametrize("change", ["weight_norm", "spectral_norm"])
@pytest.mark.parametrize(("name", "inner"), CONVS.items())
def test_parametrizations_are_honoured(shelf, name, inner, change):
    pair = shelf[name].pair()
    for candidate in pair:
        torch.manual_seed(2)
        getattr(parametrizations, change)(candidate.get_submodule(inner))
    with torch.no_grad():
        for candidate in pair:
            for parameter in candidate.get_submodule(inner).parametrizations.parameters():
                parameter.mul_(1.5)
    pair[1].load_state_dict(pair[0].state_dict())
    works(*pair, name)
    works(*(copy.deepcopy(candidate) for candidate in pair), name)
    x = example(name)
    gradients = []
    for candidate in pair:
        candidate.double().eval()
        candidate(x.double()).square().sum().backward()
        gradients.append([p.grad for p in candidate.parameters()])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(("name", "inner"), CONVS.items())
def test_spectral_norm_iterates_once_in_a_training_call(shelf, name, inner):
    pair = shelf[name].pair()
    for candidate in pair:
        torch.manual_seed(2)
        parametrizations.spectral_norm(candidate.get_submodule(inner))
        before = copy.deepcopy(candidate.state_dict())
        candidate.train()(example(name))
    states = [candidate.get_submodule(inner).state_dict() for candidate in pair]
    torch.testing.assert_close(*states)
    assert any(not torch.equal(before[f"{inner}.{key}"], states[1][key]) for key in states[1])


def test_local_statistics_never_stand_in_for_synchronised_ones(shelf):
    _, new = shelf["11"].pair()
    refuses(
        nn.SyncBatchNorm.convert_sync_batchnorm(new),
        "11",
        "batch_norm",
        "SyncBatchNorm",
        "BatchNorm2d",
    )


class Doubled(nn.ConvTranspose2d):
    def forward(self, x):
        return 2 * super().forward(x)


class Plain(nn.ConvTranspose2d):
    """A name of its own, and nothing else."""


SWAPS = [
    ("11", "tanh", nn.ReLU()),
    ("11", "group_norm", nn.Identity()),
    ("11", "max_pool", nn.AvgPool2d(2)),
    ("11", "batch_norm", nn.InstanceNorm2d(128)),
    ("11", "conv_transpose", Doubled(64, 128, 5, padding=1)),
    ("11", "conv_transpose", nn.Conv2d(64, 128, 5)),
    ("every_step", "stage", nn.Identity()),
    ("every_step", "stage", nn.ModuleList()),
    ("every_step", "stage.1", nn.Hardsigmoid()),
    ("nested", "up", nn.ConvTranspose2d(4, 6, 3, stride=2)),
    ("nested", "up.gelu", nn.ReLU()),
    ("nested", "up.same", nn.Tanh()),
    ("nested", "steps.0", nn.ReLU()),
    ("nested", "steps.1", nn.ReLU()),
]


@pytest.mark.parametrize(("name", "inner", "module"), SWAPS, ids=str)
def test_another_module_in_the_place_of_one_is_refused(shelf, name, inner, module):
    _, new = shelf[name].pair()
    new.set_submodule(inner, module)
    refuses(new, name, inner, type(module).__name__)


def test_a_module_that_is_gone_is_named(shelf):
    for value in (None, "deleted"):
        _, new = shelf["11"].pair()
        if value is None:
            new.tanh = None
        else:
            del new.tanh
        refuses(new, "11", "tanh", "Tanh")


def test_a_forward_set_on_an_instance_is_refused(shelf):
    _, new = shelf["11"].pair()
    new.tanh.forward = torch.relu
    refuses(new, "11", "tanh", "forward of its own")


def test_equal_modules_and_subclasses_that_keep_forward_are_honoured(shelf):
    model, new = shelf["nested"].pair()
    made = Plain(4, 6, 3, stride=2)
    for candidate in (model, new):
        candidate.up.conv = copy.deepcopy(made)
        candidate.up.gelu = nn.GELU()
    works(model, new, "nested")


@pytest.mark.parametrize(
    "change",
    [
        lambda new: new.steps.append(nn.Tanh()),
        lambda new: new.steps.insert(3, nn.Tanh()),
        lambda new: new.steps.pop(2),
    ],
    ids=["append", "insert", "pop"],
)
def test_a_list_of_another_length_is_refused(shelf, change):
    _, new = shelf["nested"].pair()
    change(new)
    refuses(new, "nested", "steps")


def test_a_longer_sequence_is_refused(shelf):
    _, new = shelf["every_step"].pair()
    new.stage.append(nn.ReLU())
    refuses(new, "every_step", "len(stage)")


ATTRIBUTES = [
    ("nested", "up.gelu", "approximate", "tanh"),
    ("nested", "up.conv", "padding_mode", "reflect"),
    ("nested", "steps.0", "max_val", 3.0),
    ("nested", "steps.1", "factor", 2.0),
    ("nested", "steps.2", "max_val", 3.0),
    ("every_step", "stage.1", "min_val", -1.0),
    ("11", "conv_transpose", "padding_mode", "circular"),
    ("11", "max_pool", "return_indices", True),
]


@pytest.mark.parametrize(("name", "inner", "attribute", "value"), ATTRIBUTES, ids=str)
def test_a_compiled_in_attribute_that_changed_is_refused_by_name(
    shelf, name, inner, attribute, value
):
    model, new = shelf[name].pair()
    before = getattr(new.get_submodule(inner), attribute)
    setattr(new.get_submodule(inner), attribute, value)
    refuses(new, name, f"{inner}.{attribute}", repr(value), repr(before))
    setattr(new.get_submodule(inner), attribute, before)
    works(model, new, name)


@pytest.mark.parametrize("name", INNER)
def test_the_flop_counter_and_its_global_hooks_are_no_reason_to_refuse(shelf, name):
    _, new = shelf[name].pair()
    with FlopCounterMode(display=False):
        new(example(name))


@pytest.mark.parametrize("name", INNER)
def test_compile_export_and_copies_pass_the_checks(shelf, name):
    model, new = shelf[name].pair()
    works(model, copy.deepcopy(new), name)
    torch._dynamo.reset()
    works(model, torch.compile(new.eval(), fullgraph=True, backend="aot_eager"), name)
    exported = torch.export.export(new.eval(), (example(name),)).module()
    torch.testing.assert_close(exported(example(name)), new(example(name)))


def test_a_compiled_model_refuses_too(shelf):
    _, new = shelf["nested"].pair()
    torch._dynamo.reset()
    compiled = torch.compile(new, backend="aot_eager")
    new.up.gelu = nn.ReLU()
    refuses(compiled, "nested", "up.gelu")
    torch._dynamo.reset()
    _, new = shelf["nested"].pair()
    new.up.gelu.register_forward_hook(lambda *_: None)
    refuses(torch.compile(new, backend="aot_eager"), "nested", "up.gelu")
