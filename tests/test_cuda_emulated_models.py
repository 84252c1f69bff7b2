"""The models of 2/11 and 2/19 on emulated CUDA kernels: values, statistics, layers with options."""

import copy

import pytest
import torch

from generator.emit import generate
from tests.cuda_emulator import emulator
from tests.emulated_tools import check_model, forced, model_input, models, needs_cuda_headers
from tests.gpu_tools import KERNELS, LOW, tf32
from tests.solution_tools import PROBLEMS, load_text, relative_error
from tests.sweeps import swept
from tests.test_operator_patterns import CONVS, NORMS, POOLS

pytestmark = [needs_cuda_headers, pytest.mark.sweep]  # each needs a build of its own


MODELS = [(*model, kernel) for kernel in KERNELS for model in (("19", 1), ("11", 1), ("11", 0))]


@pytest.mark.parametrize(
    ("name", "training", "kernel"),
    swept(MODELS, lambda m: m[0] == "19" or m[1:] in ((1, "hopper"), (0, "portable")), names=3),
)
def test_models(shelf, emulated_solutions, name, training, kernel):
    """Also where windows do not tile the image, and with groups in every kernel of GroupNorm."""
    emulated = emulated_solutions[name]
    model, new = models(shelf.reference(name), emulated)
    model.train(bool(training)), new.train(bool(training))
    cases = [
        (torch.float32, (13, 21), 3e-3),
        (torch.float32, (12, 20), 3e-3),
        (torch.float16, (13, 21), 4e-3),
        (torch.bfloat16, (13, 21), 3e-2),
    ]
    if kernel == "auto":
        cases = [(torch.float32, size, 3e-3) for size in ((10, 11), (20, 24), (32, 32))]
        cases += [(torch.float16, (32, 32), 4e-3)]
    for dtype, size, bound in cases:
        with emulated.on(), forced(kernel), tf32(True):
            check_model(emulated, model, new, model_input(dtype, size), bound)


@pytest.mark.parametrize("size", swept([(100, 60), (100, 100)]))
def test_moments_of_the_image_alone(shelf, emulated_solutions, size):
    """Groups too large for one block, so the convolution's moments are used; its last tile ends
    far behind the image, where another would follow.
    """
    emulated = emulated_solutions["19"]
    model, new = models(shelf.reference("19"), emulated)
    with emulated.on(), forced("hopper"), tf32(True):
        check_model(emulated, model, new, model_input(size=size)[:1], 6e-4)


@pytest.mark.parametrize("dtype", [torch.float32, *LOW], ids=str)
@pytest.mark.parametrize("size", swept([(14, 16), (13, 21), (1, 3)], (1,)))
def test_outputs_that_are_held(shelf, emulated_solutions, size, dtype):
    """A sample is one block's here. More: tests/test_gpu_held.py."""
    emulated = emulated_solutions["19"]
    model, new = models(shelf.reference("19"), emulated)
    x = torch.cat([model_input(dtype, size)] * 4)[:7]  # the emulated GPU holds three at once
    bound = 3e-2 if dtype == torch.bfloat16 else 6e-4
    with emulated.on(seed=5, detect_races=True, together=True), forced("held"), tf32(True):
        check_model(emulated, model, new, x, bound)
        assert emulated.races() == []


@pytest.mark.parametrize("kernel", ["held", "auto"])
@pytest.mark.parametrize("eps", swept([0.0, 1e-12, 1e-2, 10.0], (0, 2)))
def test_any_eps(shelf, emulated_solutions, eps, kernel):
    emulated = emulated_solutions["19"]
    model, new = models(shelf.reference("19"), emulated)
    for candidate in (model, new):
        next(m for m in candidate.modules() if isinstance(m, torch.nn.GroupNorm)).eps = eps
    with emulated.on(together=kernel == "held"), forced(kernel), tf32(True):
        check_model(emulated, model, new, model_input(torch.float32, (13, 21)), 6e-4)


@pytest.fixture(scope="module")
def tanh_gelu_norm(shelf, tmp_path_factory):
    """The emulated solution of 2/19 with GELU's tanh form, after a scale for each channel."""
    text = shelf.text("tanh_gelu_norm")
    return emulator.Emulated(text, emulator.build(text, tmp_path_factory.mktemp("tanh_gelu_norm")))


@pytest.mark.parametrize("dtype", [torch.float32, *LOW], ids=str)
@pytest.mark.parametrize("size", [(14, 16), (13, 21)])
def test_gelu_as_tanh_where_outputs_are_held(shelf, tanh_gelu_norm, size, dtype):
    model, new = models(shelf.reference("tanh_gelu_norm"), tanh_gelu_norm)
    bound = 3e-2 if dtype == torch.bfloat16 else 6e-4
    with tanh_gelu_norm.on(seed=2, detect_races=True, together=True), forced("held"), tf32(True):
        check_model(tanh_gelu_norm, model, new, model_input(dtype, size), bound)
        assert tanh_gelu_norm.races() == []


SLICED = [
    (emulator.HOPPER, "hopper", torch.float32, 4, 3e-3),
    (emulator.HOPPER, "hopper", torch.float16, 2, 4e-3),
    (emulator.AMPERE, "portable", torch.float32, 4, 3e-3),
    (emulator.AMPERE, "plain", torch.float64, 7, 1e-12),
]


@pytest.mark.parametrize(("device", "kernel", "dtype", "slices", "bound"), SLICED, ids=str)
def test_slices_of_the_batch(shelf, emulated_solutions, device, kernel, dtype, slices, bound):
    """Half of the emulated GPUs' L2 holds the outputs of two samples in fp32. One has inputs that
    fp16 containers cannot hold: in fp32 its slice is computed again, and the others are not.
    """
    emulated = emulated_solutions["19"]
    model, new = models(shelf.reference("19"), emulated)
    x = torch.cat([model_input(dtype)] * 4)[:7]
    x[3] *= 100
    with emulated.on(device), forced("slices"), tf32(True):
        check_model(emulated, model, new, x, bound)
        launched = emulated.launches()
    with emulated.on(device), forced(kernel), tf32(True):
        check_model(emulated, model, new, x[:1], bound)
        assert launched == slices * emulated.launches()


def test_outputs_that_are_held_beside_an_outlier(shelf, emulated_solutions):
    """What is held are differences from one of the outputs, which must not be the outlier, that
    lies where it would be looked for first: the others vary by a ten-thousandth of it.
    """
    emulated = emulated_solutions["19"]
    model, new = models(shelf.reference("19"), emulated)
    x = model_input()[:1] * 0.01
    x[:, :, 0, 0] = 100
    with emulated.on(together=True), forced("held"), tf32(True), torch.no_grad():
        got, exact = (y[..., 3:, 3:].double() for y in (new(x), model.double()(x.double())))
    got, exact = (y - y.mean((2, 3), keepdim=True) for y in (got, exact))
    assert relative_error(got, exact) <= 2e-3


def test_a_sample_that_other_blocks_hold_too_waits_for_them(shelf, emulated_solutions):
    """They never run here, because blocks run one after the other: the emulator notices. Where a
    GPU says so before the launch, the way in passes is taken, unless the other is forced.
    """
    emulated = emulated_solutions["19"]
    model, new = models(shelf.reference("19"), emulated)
    x = model_input(size=(24, 24))
    with forced("held"), tf32(True), torch.no_grad():
        with emulated.on(together=True), pytest.raises(RuntimeError, match="wait for each other"):
            new(x)
        with emulated.on(), pytest.raises(RuntimeError, match="cannot all run at once"):
            new(x)
    with emulated.on(), forced("auto"), tf32(True):
        check_model(emulated, model, new, x, 6e-4)


def test_a_launch_after_one_that_never_ended(shelf, emulated_solutions):
    """What blocks of the first have told each other is in memory that the next one may be given."""
    emulated = emulated_solutions["19"]
    model, new = models(shelf.reference("19"), emulated)
    with emulated.on(together=True), forced("held"), tf32(True):
        for _ in range(3):
            with torch.no_grad(), pytest.raises(RuntimeError, match="wait for each other"):
                new(model_input(size=(24, 24)))
            check_model(emulated, model, new, model_input(), 6e-4)


def set_scales_of_either_sign(norm):
    """Positive, zero and negative."""
    scales = torch.linspace(-1, 1, norm.num_features + 1)[:-1]
    assert (scales == 0).any()
    with torch.no_grad():
        norm.weight.copy_(scales)


@pytest.mark.parametrize("kernel", swept(["portable", "hopper"], (1,)))
@pytest.mark.parametrize("options", swept(NORMS), ids=str)
def test_batch_norm_options_over_several_calls(shelf, emulated_solutions, options, kernel):
    """Three training calls, then eval: in two ways, pooled in the epilogue and from memory."""
    emulated = emulated_solutions["11"]
    model, new = models(shelf.reference("11"), emulated)
    for one in (model, new):
        one.batch_norm = torch.nn.BatchNorm2d(one.batch_norm.num_features, **options)
        if one.batch_norm.affine:
            set_scales_of_either_sign(one.batch_norm)
    exact = copy.deepcopy(model).double()
    with emulated.on(), forced(kernel), tf32(True), torch.no_grad():
        for step, training in enumerate([True, True, True, False]):
            new.train(training), exact.train(training)
            x = model_input(size=(12, 20)) * (1 + step) + step
            assert relative_error(new(x), exact(x.double())) <= 3e-3
            for name, value in exact.batch_norm.state_dict().items():
                got = new.batch_norm.state_dict()[name].double()
                torch.testing.assert_close(got, value.double(), rtol=3e-3, atol=3e-3)


# The portable kernel's moments, and the strict one's behind it, are merged by one more kernel.
@pytest.mark.parametrize(("kernel", "fewer"), swept([("hopper", 1), ("portable", 2)], names=2))
def test_running_statistics_cost_no_kernel(shelf, emulated_solutions, kernel, fewer):
    """What applies them makes the affine maps itself; batch statistics are worked out before."""
    emulated = emulated_solutions["11"]
    new = models(shelf.reference("11"), emulated)[1]
    launches = {}
    for training in (True, False):
        with emulated.on(), forced(kernel), tf32(True), torch.no_grad():
            new.train(training)(model_input(size=(12, 20)))
            launches[training] = emulated.launches()
    assert launches[False] == launches[True] - fewer > 0


@pytest.fixture(scope="module", params=["ReLU", "Sigmoid"])
def other_activation(request, tmp_path_factory):
    """(reference, emulated solution) of 2/11 with another activation than tanh."""
    text = next(path for path in PROBLEMS if path.stem.startswith("11_")).read_text()
    assert text.count("nn.Tanh()") == 1
    path = tmp_path_factory.mktemp(request.param) / "reference.py"
    path.write_text(text.replace("nn.Tanh()", f"nn.{request.param}()"))
    solution = generate(path, path)
    built = emulator.build(solution, path.parent)
    return load_text(path.read_text(), "reference"), emulator.Emulated(solution, built)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kernel", ["portable", "hopper"])
def test_other_activations(other_activation, kernel, training):
    """On the same two ways as tanh: pooled before BatchNorm, and from memory."""
    reference, emulated = other_activation
    model, new = models(reference, emulated)
    model.train(training), new.train(training)
    with emulated.on(), forced(kernel), tf32(True):
        check_model(emulated, model, new, model_input(size=(12, 20)), 3e-3)


@pytest.fixture(scope="module")
def pooled(shelf, tmp_path_factory):
    """The emulated solution of a reference in which all options are open."""
    text = shelf.text("pooled")
    return emulator.Emulated(text, emulator.build(text, tmp_path_factory.mktemp("pooled")))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "options", [*({"pool": pool} for pool in POOLS), *({"conv": conv} for conv in CONVS)], ids=str
)
def test_windows_that_do_not_tile(shelf, pooled, options, training):
    model = shelf.reference("pooled")["Model"](**options)
    new = pooled.solution["ModelNew"](**options)
    set_scales_of_either_sign(model.bn)
    model.bn.running_mean.normal_()
    new.load_state_dict(model.state_dict())
    model.train(training), new.train(training)
    x = torch.randn(3, 4, 9, 11, generator=torch.Generator().manual_seed(2))
    with pooled.on(), tf32(False):
        check_model(pooled, model, new, x, 2e-5)


@pytest.mark.parametrize("kernel", ["portable", "hopper"])
@pytest.mark.parametrize("name", ["19", "11"])
def test_statistics_survive_a_large_mean(shelf, emulated_solutions, name, kernel):
    """Mean 1e3, spread 1e-2: a sum of squares in fp32 would lose every digit of the variance."""
    emulated = emulated_solutions[name]
    model, new = models(shelf.reference(name), emulated)
    with torch.no_grad():
        model.conv_transpose.bias.fill_(1e3)
        new.load_state_dict(model.state_dict())
        x = model_input(size=(12, 20)) * 0.05
        pytorch = model(x)  # first: it has running statistics, too
        exact = copy.deepcopy(model).double()(x.double())
        with emulated.on(), forced(kernel), tf32(True):
            error = relative_error(new(x), exact)
    assert error <= 4 * max(relative_error(pytorch, exact), 1e-5)


@pytest.mark.parametrize("training", swept([True, False]))
@pytest.mark.parametrize("size", swept([(13, 21), (12, 20), (18, 44), (6, 5)], (0, 3)))
def test_pooled_model_whose_inputs_fp16_containers_cannot_hold(
    shelf, emulated_solutions, size, training
):
    emulated = emulated_solutions["11"]
    model, new = models(shelf.reference("11"), emulated)
    model.train(training), new.train(training)
    with torch.no_grad():  # or tanh is a step
        model.conv_transpose.weight.mul_(1e-4)
        new.load_state_dict(model.state_dict())
    with emulated.on(seed=1), forced("hopper"), tf32(True):
        check_model(emulated, model, new, model_input(size=size) * 1e4, 3e-3)


@pytest.mark.parametrize("special", [float("nan"), float("inf")])
def test_pooled_model_spreads_what_is_not_finite_as_pytorch_does(
    shelf, emulated_solutions, special
):
    emulated = emulated_solutions["11"]
    model, new = models(shelf.reference("11"), emulated)
    model.eval(), new.eval()
    x = model_input()
    x[1, 3, 4, 5] = special
    with emulated.on(), forced("hopper"), tf32(True), torch.no_grad():
        assert torch.equal(new(x).isfinite(), model(x).isfinite())
