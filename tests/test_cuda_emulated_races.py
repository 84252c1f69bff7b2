"""Whether synchronisation orders what threads of the CUDA kernels do to shared memory, by the
emulator's detector of races; and whether the detector sees what is not ordered.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.cuda_emulator import emulator
from tests.emulated_tools import forced, model_input, needs_cuda_headers
from tests.gpu_tools import tf32
from tests.solution_tools import Case
from tests.sweeps import swept

pytestmark = needs_cuda_headers
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


def races(conv, case: Case, seed: int) -> list[str]:
    """What the detector finds, a deadlock included."""
    operands = case.tensors()
    with conv.on(seed=seed, detect_races=True), forced("hopper"), tf32(True):
        try:
            conv.operator(*operands, *case.parameters)
        except RuntimeError as error:
            return [str(error)]
        return conv.races()


@pytest.mark.parametrize("seed", swept([0, 1, 2]))
@pytest.mark.parametrize("case", swept(RACED.values(), (5, 6, 7)), ids=RACED)
def test_hopper_kernel_has_no_race(emulated_conv, case, seed):
    assert races(emulated_conv, case, seed) == []


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "training"), swept([("19", True), ("11", True), ("11", False)], (0, 2), names=2)
)
def test_models_have_no_race(shelf, emulated_solutions, name, training):
    emulated = emulated_solutions[name]
    model = emulated.solution["ModelNew"](*shelf.reference(name)["get_init_inputs"]())
    model.train(training)
    for seed in (0, 1):
        with emulated.on(seed=seed, detect_races=True), forced("auto"), torch.no_grad():
            model(model_input(size=(32, 32)))
            assert emulated.races() == []


@pytest.fixture(scope="module")
def broken(request, shelf, tmp_path_factory):
    """Emulated solutions of problem 69 by what is wrong with them, as far as tests ask for them."""
    here = [item for item in request.session.items if item.path == request.path]
    names = [item.callspec.params["name"] for item in here if "broken" in item.fixturenames]
    whole, folder = shelf.text("69"), tmp_path_factory.mktemp("broken")

    def build(name):
        before, after = BROKEN[name]
        assert whole.count(before) == 1, f"the kernel has changed: {before!r}"
        place = folder / str(list(BROKEN).index(name))
        place.mkdir()
        text = whole.replace(before, after)
        return text, emulator.build(text, place, "-O1")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        built = list(pool.map(build, names))
    # Not in threads: each patches how libraries are built, and two that end in another order than
    # they began would leave a patch behind.
    return {name: emulator.Emulated(*pair) for name, pair in zip(names, built, strict=True)}


@pytest.mark.sweep
@pytest.mark.parametrize("name", BROKEN)
def test_the_detector_sees(broken, name):
    assert any(races(broken[name], case, 0) for case in RACED.values())
