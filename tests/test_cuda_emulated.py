"""The CUDA kernels on the CPU, thread by thread (tests/cuda_emulator): their answers, and whether
synchronisation orders what their threads do to shared memory, without a GPU.
"""

import copy
import dataclasses
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.cuda_emulator import emulator
from tests.gpu_tools import DTYPES, KERNELS, LAYOUTS, LOW, can_force, settings, tf32
from tests.solution_tools import (
    GRID,
    Case,
    assert_within,
    conv_bound,
    environment,
    relative_error,
)
from tests.test_operator_patterns import CONVS, POOLS

pytestmark = pytest.mark.skipif(
    emulator.cuda_headers() is None, reason="no CUDA toolkit: its headers are needed"
)
NAMES = ["69", "19", "11"]
# Sources with one synchronisation taken out or put too early: what the detector is there to see.
BROKEN = {
    "a unit is written before it is free": (
        "mbarrier_wait(shared.unit_empty + 8 * place.unit(), parity ^ 1);",
        "",
    ),
    "a unit is read before it is full": (
        "mbarrier_wait(shared.unit_full + 8 * next_ready.slot, next_ready.parity);",
        "",
    ),
    "a row is given back while it is multiplied": (
        "if (resident) wgmma_wait<1>();",
        "",
    ),
    "a unit too many is given back": (
        "units.release(shared, min(needed, tile_end) / kUnitPixels",
        "units.release(shared, min(needed + kUnitPixels, tile_end) / kUnitPixels",
    ),
    "a full unit is never reported": (
        "mbarrier_arrive(shared.unit_full + 8 * place.unit());",
        "if (threadIdx.x % 32 > 0) mbarrier_arrive(shared.unit_full + 8 * place.unit());",
    ),
    "outputs are read before all lanes have stored them": (
        "__syncwarp();\n      if (whole) {",
        "if (whole) {",
    ),
    "interleaved outputs are read before all lanes have stored them": (
        "__syncwarp();\n      if (paired) {",
        "if (paired) {",
    ),
}
RESIDENT = Case(batch=1, in_channels=64, out_channels=64, kernel=(3, 3), size=(60, 60))
RACED = {
    "resident weights": RESIDENT,
    "streamed weights": Case(
        batch=1, in_channels=64, out_channels=64, kernel=(3, 7), size=(30, 60), bias=False
    ),
    "two blocks of outputs": Case(
        batch=1, in_channels=64, out_channels=128, kernel=(3, 5), size=(30, 60)
    ),
    "two blocks of inputs": Case(
        batch=2, in_channels=70, out_channels=96, kernel=(3, 3), size=(20, 40)
    ),
    "inputs, outputs, sweeps": Case(
        batch=1, in_channels=130, out_channels=200, kernel=(2, 3), size=(9, 20)
    ),
    "phases": Case(
        batch=1, in_channels=32, out_channels=64, kernel=(4, 4), stride=(2, 2), size=(20, 40)
    ),
    "odd widths two columns apart": Case(
        batch=2, in_channels=64, out_channels=130, kernel=(3, 3), stride=(1, 2), size=(9, 35)
    ),
    "single channels": Case(batch=3, in_channels=17, out_channels=19, kernel=(3, 5), size=(7, 33)),
    "groups": Case(batch=2, in_channels=40, out_channels=72, groups=2, size=(9, 30)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("emulated")


@pytest.fixture(scope="module")
def solutions(shelf, folder):
    """Emulated solutions by the name of their reference."""

    texts = {name: shelf.text(name) for name in NAMES}  # not in threads: torch.fx patches globals

    def build(name):
        (folder / name).mkdir()
        return emulator.build(texts[name], folder / name)

    with ThreadPoolExecutor(min(len(NAMES), os.cpu_count() or 1)) as pool:
        built = list(pool.map(build, NAMES))
    return {
        name: emulator.Emulated(texts[name], library)
        for name, library in zip(NAMES, built, strict=True)
    }


@pytest.fixture(scope="module")
def conv(solutions):
    return solutions["69"]


def forced(kernel: str):
    return environment(TCONV_KERNEL=kernel)


def check(conv, case: Case, operands: tuple, allowed: bool) -> None:
    x, weight, bias = operands
    y = conv.operator(x, weight, bias, *case.parameters)
    rounded = allowed and x.dtype == torch.float32
    bound = conv_bound(case, *operands, x.dtype, tf32=rounded)
    assert_within(y, case.reference(*operands), bound)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", GRID, ids=str)
def test_grid(conv, case, kernel):
    for dtype in DTYPES:
        operands = case.tensors(dtype)
        for allowed in settings(dtype):
            with conv.on(), forced(kernel), tf32(allowed):
                if can_force(kernel, case, dtype, allowed) or case.batch == 0:
                    check(conv, case, operands, allowed)
                else:
                    with pytest.raises(RuntimeError, match="forced by TCONV_KERNEL"):
                        conv.operator(*operands, *case.parameters)


@pytest.mark.parametrize("kernel", ["plain", "direct", "portable", "hopper"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(conv, layout, kernel):
    case = Case(in_channels=64, out_channels=64, size=(8, 32), kernel=(3, 3), padding=(1, 1))
    for dtype in (torch.float32, *LOW):
        x, weight, bias = case.tensors(dtype)
        with conv.on(seed=1), forced(kernel), tf32(True):
            check(conv, case, (LAYOUTS[layout](x), weight, bias), True)


@pytest.mark.parametrize("in_channels", [1, 3, 17, 96, 130])
def test_hopper_with_any_channels(conv, in_channels):
    for out_channels in (1, 3, 17, 96, 130):
        case = Case(
            batch=1, in_channels=in_channels, out_channels=out_channels, size=(6, 21), kernel=(3, 5)
        )
        with conv.on(), forced("hopper"), tf32(True):
            check(conv, case, case.tensors(), True)


MANY_CHANNELS = [
    Case(batch=2, in_channels=256, out_channels=96, kernel=(3, 5), size=(9, 21)),  # a small ring
    Case(batch=3, in_channels=128, out_channels=128, kernel=(3, 3), size=(14, 14), padding=(1, 1)),
    Case(batch=2, in_channels=100, out_channels=64, kernel=(1, 1), size=(32, 32)),
    Case(batch=2, in_channels=96, out_channels=200, kernel=(3, 3), size=(9, 20)),
    Case(batch=2, in_channels=192, out_channels=64, kernel=(2, 2), stride=(2, 2), size=(8, 16)),
    Case(batch=5, in_channels=256, out_channels=130, kernel=(3, 3), size=(7, 7), padding=(1, 1)),
]


@pytest.mark.parametrize("case", MANY_CHANNELS, ids=str)
def test_blocks_of_inputs_side_by_side(conv, case):
    for dtype in (torch.float32, *LOW):
        with conv.on(seed=3, detect_races=True), forced("hopper"), tf32(True):
            check(conv, case, case.tensors(dtype), True)
            assert conv.races() == []


SMALL_IMAGES = [
    Case(batch=9, in_channels=64, out_channels=64, kernel=(3, 3), size=(7, 7), padding=(1, 1)),
    Case(batch=5, in_channels=130, out_channels=96, kernel=(3, 3), size=(5, 6), padding=(1, 1)),
    Case(batch=7, in_channels=33, out_channels=70, kernel=(2, 5), size=(4, 8), padding=(1, 0)),
    Case(batch=4, in_channels=20, out_channels=20, kernel=(3, 3), size=(3, 12), dilation=(3, 1)),
    Case(
        batch=6,
        in_channels=64,
        out_channels=40,
        kernel=(4, 4),
        stride=(2, 2),
        size=(8, 8),
        padding=(1, 1),
    ),
    Case(
        batch=3,
        in_channels=16,
        out_channels=24,
        kernel=(5, 3),
        stride=(3, 1),
        size=(4, 9),
        padding=(2, 1),
        output_padding=(2, 0),
        groups=1,
    ),
    Case(batch=3, in_channels=64, out_channels=64, kernel=(3, 3), size=(9, 8), padding=(4, 4)),
]


@pytest.mark.parametrize("case", SMALL_IMAGES, ids=str)
def test_small_images_share_tiles(conv, case):
    for dtype in (torch.float32, *LOW):
        with conv.on(seed=2, detect_races=True), forced("hopper"), tf32(True):
            check(conv, case, case.tensors(dtype), True)
            assert conv.races() == []


TWO_APART = [
    Case(batch=2, in_channels=64, out_channels=64, kernel=(1, 1), stride=(2, 2), size=(9, 20)),
    Case(batch=2, in_channels=70, out_channels=20, kernel=(3, 3), stride=(1, 2), size=(8, 33)),
    Case(batch=3, in_channels=128, out_channels=130, kernel=(4, 4), stride=(2, 2), size=(16, 16)),
    Case(batch=1, in_channels=64, out_channels=70, kernel=(5, 2), stride=(3, 2), size=(7, 70)),
    Case(batch=2, in_channels=16, out_channels=64, kernel=(2, 7), stride=(2, 2), size=(5, 300)),
    Case(batch=2, in_channels=64, out_channels=3, kernel=(4, 4), stride=(2, 2), size=(8, 32)),
    Case(batch=1, in_channels=64, out_channels=64, kernel=(3, 1), stride=(1, 2), size=(6, 1)),
]


@pytest.mark.parametrize("case", TWO_APART, ids=str)
def test_columns_two_apart(conv, case):
    """Also where a column, a row or all but one phase has no tap."""
    for padding in ((0, 0), (min(1, case.kernel[0] // 2), case.kernel[1] // 2)):
        padded = dataclasses.replace(case, padding=padding, output_padding=(0, 1))
        for dtype in (torch.float32, *LOW):
            with conv.on(seed=4, detect_races=True), forced("hopper"), tf32(True):
                check(conv, padded, padded.tensors(dtype), True)
                assert conv.races() == []


def test_all_processors_at_once(conv):
    """As many blocks as an H200 has processors: most of them with nothing to do."""
    case = Case(in_channels=64, out_channels=128, kernel=(3, 5), size=(16, 40))
    with conv.on(emulator.FULL_HOPPER), forced("hopper"), tf32(True):
        check(conv, case, case.tensors(), True)


def test_another_gpu_takes_the_portable_kernel(conv):
    case = Case(in_channels=64, out_channels=128, kernel=(3, 5), size=(16, 40))
    operands = case.tensors()
    with conv.on(emulator.AMPERE), tf32(True):
        with forced("auto"):
            check(conv, case, operands, True)
        with forced("hopper"), pytest.raises(RuntimeError, match="forced by TCONV_KERNEL"):
            conv.operator(*operands, *case.parameters)


DEPTHWISE = Case(in_channels=24, out_channels=24, groups=24, kernel=(4, 4), stride=(2, 2))
FEW_CHANNELS = [
    DEPTHWISE,
    Case(in_channels=64, out_channels=1, kernel=(4, 4), stride=(2, 2), padding=(1, 1)),
    dataclasses.replace(DEPTHWISE, kernel=(5, 3), stride=(1, 1), size=(20, 70)),
]


@pytest.mark.parametrize("case", FEW_CHANNELS, ids=str)
def test_few_channels_take_the_direct_kernel(conv, case):
    for dtype in (torch.float32, *LOW):
        x, weight, bias = case.tensors(dtype)
        with conv.on(), tf32(True):
            with forced("auto"):
                check(conv, case, (x, weight, bias), True)
                chosen = conv.operator(x, weight, bias, *case.parameters)
            with forced("direct"):
                assert torch.equal(chosen, conv.operator(x, weight, bias, *case.parameters))


@pytest.mark.parametrize("kernel", ["portable", "hopper"])
@pytest.mark.parametrize(
    ("factor", "special"),
    [(1e30, None), (1e-12, None), (1.0, 1e6), (1.0, float("nan")), (1.0, float("inf"))],
)
def test_what_fp16_containers_cannot_hold(conv, kernel, factor, special):
    case = Case(in_channels=64, out_channels=64, kernel=(3, 3), size=(9, 24), bias=False)
    x, weight, _ = case.tensors()
    x = x * factor
    if special is not None:
        x[1, 3, 4, 5] = special
    with conv.on(), forced(kernel), tf32(True):
        y = conv.operator(x, weight, None, *case.parameters)
    exact = case.reference(x, weight, None)
    finite = exact.isfinite()
    assert torch.equal(y.isfinite(), finite) and torch.equal(y.isnan(), exact.isnan())
    bound = conv_bound(case, x, weight, None, torch.float32, tf32=True)
    assert_within(y[finite], exact[finite], bound[finite])


# Patterns ---------------------------------------------------------------------------------------


def model_input(dtype=torch.float32, size=(13, 21)):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 64, *size, generator=generator).to(dtype)


def models(shelf, emulated, name):
    """(Model, ModelNew) with parameters of either sign, and a BatchNorm weight of zero."""
    pair = []
    for factory in (shelf.reference(name)["Model"], emulated.solution["ModelNew"]):
        torch.manual_seed(0)
        pair.append(factory(*shelf.reference(name)["get_init_inputs"]()))
    model, new = pair
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.normal_()
        if name == "11":
            model.batch_norm.weight[3] = 0.0
    new.load_state_dict(model.state_dict())
    return model, new


def check_model(emulated, model, new, x, bound: float) -> None:
    """Output and buffers of copies in the dtype of x, against the reference in float64."""
    exact_model = copy.deepcopy(model).to(x.dtype).double()
    candidate = copy.deepcopy(new).to(x.dtype)
    with torch.no_grad():
        error = relative_error(candidate(x), exact_model(x.double()))
    assert error <= bound
    for key, value in candidate.state_dict().items():
        wanted = exact_model.state_dict()[key].double()
        torch.testing.assert_close(value.double(), wanted, rtol=0.04, atol=5e-3)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("name", "training"), [("19", True), ("11", True), ("11", False)])
def test_models(shelf, solutions, name, training, kernel):
    """Also where windows do not tile the image, and with groups in every kernel of GroupNorm."""
    emulated = solutions[name]
    model, new = models(shelf, emulated, name)
    model.train(training), new.train(training)
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


@pytest.mark.parametrize("size", [(100, 60), (100, 100)])
def test_moments_of_the_image_alone(shelf, solutions, size):
    """Groups too large for one block, so the convolution's moments are used; its last tile ends
    far behind the image, where another would follow.
    """
    emulated = solutions["19"]
    model, new = models(shelf, emulated, "19")
    with emulated.on(), forced("hopper"), tf32(True):
        check_model(emulated, model, new, model_input(size=size)[:1], 6e-4)


@pytest.mark.parametrize("dtype", [torch.float32, *LOW], ids=str)
@pytest.mark.parametrize("size", [(14, 16), (13, 21), (1, 3)])
def test_outputs_that_are_held(shelf, solutions, size, dtype):
    """A sample is one block's here. More: tests/test_gpu_held.py."""
    emulated = solutions["19"]
    model, new = models(shelf, emulated, "19")
    x = torch.cat([model_input(dtype, size)] * 4)[:7]  # the emulated GPU holds three at once
    bound = 3e-2 if dtype == torch.bfloat16 else 6e-4
    with emulated.on(seed=5, detect_races=True, together=True), forced("held"), tf32(True):
        check_model(emulated, model, new, x, bound)
        assert emulated.races() == []


def test_outputs_that_are_held_beside_an_outlier(shelf, solutions):
    """What is held are differences from one of the outputs, which must not be the outlier, that
    lies where it would be looked for first: the others vary by a ten-thousandth of it.
    """
    emulated = solutions["19"]
    model, new = models(shelf, emulated, "19")
    x = model_input()[:1] * 0.01
    x[:, :, 0, 0] = 100
    with emulated.on(together=True), forced("held"), tf32(True), torch.no_grad():
        got, exact = (y[..., 3:, 3:].double() for y in (new(x), model.double()(x.double())))
    got, exact = (y - y.mean((2, 3), keepdim=True) for y in (got, exact))
    assert relative_error(got, exact) <= 2e-3


def test_a_sample_that_other_blocks_hold_too_waits_for_them(shelf, solutions):
    """They never run here, because blocks run one after the other: the emulator notices. Where a
    GPU says so before the launch, the way in passes is taken, unless the other is forced.
    """
    emulated = solutions["19"]
    model, new = models(shelf, emulated, "19")
    x = model_input(size=(20, 20))
    with forced("held"), tf32(True), torch.no_grad():
        with emulated.on(together=True), pytest.raises(RuntimeError, match="wait for each other"):
            new(x)
        with emulated.on(), pytest.raises(RuntimeError, match="cannot all run at once"):
            new(x)
    with emulated.on(), forced("auto"), tf32(True):
        check_model(emulated, model, new, x, 6e-4)


BATCH_NORMS = [
    {"momentum": None},
    {"momentum": 0.3, "eps": 1e-2},
    {"track_running_stats": False},
    {"affine": False},
]


@pytest.mark.parametrize("kernel", ["portable", "hopper"])
@pytest.mark.parametrize("options", BATCH_NORMS, ids=str)
def test_batch_norm_options_over_several_calls(shelf, solutions, options, kernel):
    """Three training calls, then eval: in two ways, pooled in the epilogue and from memory."""
    emulated = solutions["11"]
    model, new = models(shelf, emulated, "11")
    for one in (model, new):
        one.batch_norm = torch.nn.BatchNorm2d(one.batch_norm.num_features, **options)
        if one.batch_norm.weight is not None:  # positive, zero and negative
            scales = torch.linspace(-1, 1, one.batch_norm.num_features + 1)[:-1]
            one.batch_norm.weight.data.copy_(scales)
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
@pytest.mark.parametrize(("kernel", "fewer"), [("hopper", 1), ("portable", 2)])
def test_running_statistics_cost_no_kernel(shelf, solutions, kernel, fewer):
    """What applies them makes the affine maps itself; batch statistics are worked out before."""
    emulated = solutions["11"]
    new = models(shelf, emulated, "11")[1]
    launches = {}
    for training in (True, False):
        with emulated.on(), forced(kernel), tf32(True), torch.no_grad():
            new.train(training)(model_input(size=(12, 20)))
            launches[training] = emulated.launches()
    assert launches[False] == launches[True] - fewer > 0


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
    with torch.no_grad():  # positive, zero and negative
        scales = torch.linspace(-1, 1, model.bn.num_features + 1)[:-1]
        assert (scales == 0).any()
        model.bn.weight.copy_(scales)
        model.bn.running_mean.normal_()
    new.load_state_dict(model.state_dict())
    model.train(training), new.train(training)
    x = torch.randn(3, 4, 9, 11, generator=torch.Generator().manual_seed(2))
    with pooled.on(), tf32(False):
        check_model(pooled, model, new, x, 2e-5)


@pytest.mark.parametrize("kernel", ["portable", "hopper"])
@pytest.mark.parametrize("name", ["19", "11"])
def test_statistics_survive_a_large_mean(shelf, solutions, name, kernel):
    """Mean 1e3, spread 1e-2: a sum of squares in fp32 would lose every digit of the variance."""
    emulated = solutions[name]
    model, new = models(shelf, emulated, name)
    with torch.no_grad():
        model.conv_transpose.bias.fill_(1e3)
        new.load_state_dict(model.state_dict())
        x = model_input(size=(12, 20)) * 0.05
        pytorch = model(x)  # first: it has running statistics, too
        exact = copy.deepcopy(model).double()(x.double())
        with emulated.on(), forced(kernel), tf32(True):
            error = relative_error(new(x), exact)
    assert error <= 4 * max(relative_error(pytorch, exact), 1e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("size", [(13, 21), (12, 20), (18, 44), (6, 5)])
def test_pooled_model_whose_inputs_fp16_containers_cannot_hold(shelf, solutions, size, training):
    emulated = solutions["11"]
    model, new = models(shelf, emulated, "11")
    model.train(training), new.train(training)
    with torch.no_grad():  # or tanh is a step
        model.conv_transpose.weight.mul_(1e-4)
        new.load_state_dict(model.state_dict())
    with emulated.on(seed=1), forced("hopper"), tf32(True):
        check_model(emulated, model, new, model_input(size=size) * 1e4, 3e-3)


@pytest.mark.parametrize("special", [float("nan"), float("inf")])
def test_pooled_model_spreads_what_is_not_finite_as_pytorch_does(shelf, solutions, special):
    emulated = solutions["11"]
    model, new = models(shelf, emulated, "11")
    model.eval(), new.eval()
    x = model_input()
    x[1, 3, 4, 5] = special
    with emulated.on(), forced("hopper"), tf32(True), torch.no_grad():
        assert torch.equal(new(x).isfinite(), model(x).isfinite())


# Synchronisation --------------------------------------------------------------------------------


def races(conv, case: Case, seed: int) -> list[str]:
    """What the detector finds, a deadlock included."""
    operands = case.tensors()
    with conv.on(seed=seed, detect_races=True), forced("hopper"), tf32(True):
        try:
            conv.operator(*operands, *case.parameters)
        except RuntimeError as error:
            return [str(error)]
        return conv.races()


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("case", RACED.values(), ids=RACED)
def test_hopper_kernel_has_no_race(conv, case, seed):
    assert races(conv, case, seed) == []


@pytest.mark.parametrize(("name", "training"), [("19", True), ("11", True), ("11", False)])
def test_models_have_no_race(shelf, solutions, name, training):
    emulated = solutions[name]
    model = emulated.solution["ModelNew"](*shelf.reference(name)["get_init_inputs"]())
    model.train(training)
    for seed in (0, 1):
        with emulated.on(seed=seed, detect_races=True), forced("auto"), torch.no_grad():
            model(model_input(size=(32, 32)))
            assert emulated.races() == []


@pytest.fixture(scope="module")
def broken(shelf, folder):
    """Emulated solutions of problem 69 by what is wrong with them."""

    whole = shelf.text("69")

    def build(name):
        before, after = BROKEN[name]
        assert whole.count(before) == 1, f"the kernel has changed: {before!r}"
        place = folder / str(list(BROKEN).index(name))
        place.mkdir()
        text = whole.replace(before, after)
        return text, emulator.build(text, place, "-O1")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        built = list(pool.map(build, BROKEN))
    # Not in threads: each patches how libraries are built, and two that end in another order than
    # they began would leave a patch behind.
    return {name: emulator.Emulated(*pair) for name, pair in zip(BROKEN, built, strict=True)}


@pytest.mark.parametrize("name", BROKEN)
def test_the_detector_sees(broken, name):
    assert any(races(broken[name], case, 0) for case in RACED.values())
