"""Generated models against their references: values, gradients, running statistics, states."""

import copy

import pytest
import torch

from tests.solution_tools import CPU_KERNELS, environment, relative_error
from tests.sweeps import swept

# fp32 against float64: normalisation divides by a spread of order one, so a few hundred roundings
# of 2**-24.
BOUND = {torch.float32: 2e-5, torch.float64: 1e-13, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def small_input(name, dtype=torch.float32, batch=3, seed=1):
    channels = {"every_step": 5, "grouped_norm": 4, "pooled": 4}.get(name, 64)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, channels, 9, 11, generator=generator).to(dtype)


def exact_copy(model):
    return copy.deepcopy(model).double()


NAMES = ["65", "69", "19", "11", "every_step", "soft_activations", "grouped_norm", "pooled"]


@pytest.mark.parametrize("name", swept(NAMES, (2,)))
def test_seeding_gives_equal_parameters_and_states(shelf, name):
    model, new = shelf[name].pair()
    state, new_state = model.state_dict(), new.state_dict()
    assert list(state) == list(new_state)
    assert all(torch.equal(state[key], new_state[key]) for key in state)
    assert [key for key, _ in model.named_modules()] == [key for key, _ in new.named_modules()]
    new.load_state_dict(model.state_dict(), strict=True)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_values(shelf, name, dtype, training):
    model, new = shelf[name].pair()
    model.to(dtype).train(training), new.to(dtype).train(training)
    x = small_input(name, dtype)
    with torch.no_grad():
        exact = exact_copy(model)(x.double())
        y = new(x)
    assert y.dtype == dtype
    assert relative_error(y, exact) <= BOUND[dtype]


@pytest.mark.parametrize("kernel", CPU_KERNELS[1:])
@pytest.mark.parametrize("name", NAMES)
def test_values_of_other_kernels(shelf, name, kernel):
    model, new = shelf[name].pair()
    x = small_input(name)
    with torch.no_grad(), environment(TCONV_KERNEL=kernel):
        assert relative_error(new(x), exact_copy(model)(x.double())) <= BOUND[torch.float32]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_match_the_reference(shelf, name, training):
    model, new = shelf[name].pair()
    model.double().train(training), new.double().train(training)
    gradients = []
    for candidate in (model, new):
        x = small_input(name, torch.float64).requires_grad_()
        y = candidate(x)
        y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(3), dtype=y.dtype))
        gradients.append([x.grad, *(p.grad for p in candidate.parameters())])
    for expected, got in zip(*gradients, strict=True):
        # A convolution bias before BatchNorm in training mode has the gradient zero, up to
        # rounding.
        assert (got - expected).norm() <= 1e-11 * max(float(expected.norm()), 1.0)


@pytest.mark.parametrize("name", ["every_step", "grouped_norm", "pooled"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_low_precision_gradients(shelf, name, dtype):
    model, new = shelf[name].pair()
    exact = exact_copy(model.to(dtype))
    x = small_input(name, dtype).requires_grad_()
    wide = x.detach().double().requires_grad_()
    y = new.to(dtype)(x)
    direction = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    y.backward(direction)
    exact(wide).backward(direction.double())
    assert x.grad.dtype == dtype
    assert relative_error(x.grad, wide.grad) <= 8 * BOUND[dtype]


POOLS = [
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (2, 3), "stride": (2, 1), "ceil_mode": True},
    {"kernel_size": 2, "stride": 3, "ceil_mode": True, "padding": 1},
    {"kernel_size": 2, "dilation": 2, "stride": 1},
]
NORMS = [
    {"momentum": None},
    {"momentum": 0.3, "eps": 1e-2},
    {"track_running_stats": False},
    {"affine": False},
    {"track_running_stats": False, "affine": False},
]
CONVS = [
    {"kernel_size": (3, 2), "stride": (2, 3), "output_padding": (1, 0), "groups": 2},
    {"kernel_size": 5, "padding": 2, "bias": False, "dilation": (1, 2)},
]


@pytest.mark.parametrize(
    "options",
    [
        *({"pool": pool} for pool in POOLS),
        *({"norm": norm} for norm in NORMS),
        *({"conv": conv} for conv in CONVS),
        {"affine": False},
    ],
    ids=str,
)
def test_batch_norm_and_pool_options_over_several_calls(shelf, options):
    """Two training calls, an empty batch, two more, then eval: outputs and running statistics."""
    model, new = shelf["pooled"].pair(**options)
    for candidate in (model, new):
        candidate.double()
        with torch.no_grad():
            for parameter in candidate.bn.parameters():  # positive, zero and negative scales
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).round(decimals=1))
    if model.bn.weight is not None:
        assert (model.bn.weight < 0).any() and (model.bn.weight > 0).any()
    for step, batch in enumerate((3, 2, 0, 4)):
        x = small_input("pooled", torch.float64, batch, seed=step) + 2
        torch.testing.assert_close(new(x), model(x), rtol=1e-10, atol=1e-10)
        for (key, value), other in zip(
            model.state_dict().items(), new.state_dict().values(), strict=True
        ):
            torch.testing.assert_close(
                other, value, rtol=1e-12, atol=1e-12, msg=lambda m, key=key: f"{key}: {m}"
            )
    model.eval(), new.eval()
    x = small_input("pooled", torch.float64, seed=9)
    before = copy.deepcopy(new.state_dict())
    torch.testing.assert_close(new(x), model(x), rtol=1e-10, atol=1e-10)
    assert all(torch.equal(before[key], value) for key, value in new.state_dict().items())


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("pooled", (4, 7, 6)),  # BatchNorm2d wants 4 dimensions
        ("pooled", (4, 3, 7, 6)),  # channels
        ("grouped_norm", (2, 5, 7, 6)),
        ("grouped_norm", (2, 4, 0, 6)),
        ("every_step", (2, 6, 4, 4)),
    ],
)
def test_wrong_inputs_raise_the_type_of_the_reference(shelf, name, shape):
    model, new = shelf[name].pair()
    x = torch.randn(shape)
    errors = []
    for candidate in (model, new):
        with pytest.raises((RuntimeError, ValueError)) as caught:
            candidate(x)
        errors.append(caught.type)
    assert errors[0] is errors[1]


def test_single_values_cannot_be_normalised(shelf):
    options = {"conv": {"kernel_size": 1}, "pool": {"kernel_size": 1}}
    model, new = shelf["pooled"].pair(**options)
    for candidate in (model, new):
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            candidate(torch.randn(1, 4, 1, 1))


def test_single_values_cannot_be_group_normalised(shelf):
    model, new = shelf["grouped_norm"].pair()
    for candidate in (model, new):
        with torch.no_grad():
            candidate.up = torch.nn.ConvTranspose2d(4, 3, 1)
            candidate.offset = torch.nn.Parameter(torch.zeros(3, 1, 1))
        with pytest.raises(ValueError, match="more than 1 value per"):
            candidate(torch.randn(1, 4, 1, 1))


def test_other_constants_than_the_compiled_ones_are_refused(shelf):
    """The number of groups of a functional group_norm is an attribute, so it is compiled in."""
    with pytest.raises(ValueError, match="generated for norm_groups = 3, the model has 2"):
        shelf["grouped_norm"].pair(6, 2)
    _, new = shelf["every_step"].pair()
    new.scale = 3.0
    with pytest.raises(ValueError, match="generated for scale = .*, the model has 3.0"):
        new(small_input("every_step"))


def test_pool_larger_than_the_image_raises(shelf):
    model, new = shelf["pooled"].pair(pool={"kernel_size": 20})
    for candidate in (model, new):
        with pytest.raises(RuntimeError):
            candidate(torch.randn(2, 4, 7, 6))


def test_unbatched_input_of_an_element_wise_chain(shelf):
    """The (1, C, 1, 1) operand makes the result 4-dimensional, as broadcasting does."""
    model, new = shelf["every_step"].pair()
    x = small_input("every_step")[0]
    assert new(x).shape == model(x).shape
    torch.testing.assert_close(new(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_empty_batch(shelf, name):
    model, new = shelf[name].pair()
    x = small_input(name)[:0]
    if name == "every_step":
        x = x.requires_grad_()
    assert new(x).shape == model(x).shape


@pytest.mark.parametrize("name", ["19", "11", "pooled", "grouped_norm"])
def test_statistics_survive_a_large_mean(shelf, name):
    """Mean 1e3, spread 1e-2: a sum of squares in fp32 would lose every digit of the variance."""
    model, new = shelf[name].pair()
    for candidate in (model, new):
        with torch.no_grad():
            for key, parameter in candidate.named_parameters():
                if key.endswith("bias") and parameter is next(
                    (m.bias for m in candidate.modules() if type(m).__name__ == "ConvTranspose2d"),
                    None,
                ):
                    parameter.fill_(1000.0)
    x = small_input(name) * 0.05
    exact = exact_copy(model)(x.double())
    error = relative_error(new(x), exact)
    assert error <= 4 * max(relative_error(model(x), exact), 1e-5)


def test_slices_are_a_way_of_pattern_2_alone(shelf):
    with environment(TCONV_KERNEL="slices"), torch.no_grad():
        with pytest.raises(ValueError, match="got 'slices'"):
            shelf["69"].pair()[1](small_input("69"))
        shelf["19"].pair()[1](small_input("19"))
    with environment(TCONV_KERNEL="passes"), pytest.raises(ValueError, match="slices, got 'pas"):
        shelf["19"].pair()[1](small_input("19"))
