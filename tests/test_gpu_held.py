"""The kernel that holds a sample's outputs until they are normalised: values, and everything that a
wait between blocks could break.
"""

import copy
import os
import shutil
import subprocess
import sys

import pytest
import torch
from torch import nn

from tests.gpu_tools import LOW, NAN, captured, check_replays, forced, tf32
from tests.solution_tools import PROBLEMS, ROOT, relative_error

pytestmark = pytest.mark.gpu
BOUND = {torch.float32: 6e-4, torch.float16: 6e-4, torch.bfloat16: 5e-3}
# (in_channels, out_channels, kernel, groups of GroupNorm), (batch, height, width)
CASES = [
    ((64, 64, 3, 8), (3, 256, 256)),  # nearly all processors hold one sample
    ((64, 64, 3, 8), (512, 11, 9)),  # one block each, several samples for each block
    ((64, 62, 3, 31), (5, 255, 253)),  # rows and columns that are not whole quads or pairs
    ((16, 64, 3, 1), (9, 64, 64)),
    ((20, 48, 3, 48), (7, 61, 67)),
    ((3, 5, 2, 5), (4, 30, 41)),
    ((64, 64, 1, 64), (2, 100, 36)),
    ((48, 64, 2, 2), (1, 90, 120)),
    ((64, 64, 3, 4), (1, 2, 3)),
]


@pytest.fixture(autouse=True)
def hopper():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the kernel needs compute capability 9.0")


def pair(shelf, arguments, dtype=torch.float32, scale=1.0, name="19"):
    """(Model in float64 with parameters rounded to dtype, ModelNew)."""
    *constructor, groups = arguments
    torch.manual_seed(0)
    constructor += [1, groups, groups] if name == "19" else [groups]
    model = shelf.reference(name)["Model"](*constructor).to("cuda", dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.normal_()
            else:
                parameter.mul_(scale)
    new = shelf[name].solution["ModelNew"](*constructor).to("cuda", dtype)
    new.load_state_dict(model.state_dict())
    return model.double(), new


def random_input(arguments, shape, dtype=torch.float32):
    batch, *size = shape
    return torch.rand(batch, arguments[0], *size, device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, *LOW], ids=str)
@pytest.mark.parametrize(("arguments", "shape"), CASES, ids=str)
def test_values_and_the_same_bits(shelf, arguments, shape, dtype):
    exact, new = pair(shelf, arguments, dtype)
    x = random_input(arguments, shape, dtype)
    with forced("held"), tf32(True), torch.no_grad():
        y = new(x)
        assert relative_error(y, exact(x.double())) <= BOUND[dtype]
        for _ in range(2):
            assert torch.equal(new(x), y)


def test_inputs_that_lie_otherwise(shelf):
    arguments, shape = (64, 64, 3, 8), (3, 40, 64)
    exact, new = pair(shelf, arguments)
    x = random_input(arguments, shape)
    flat = torch.cat([x.new_zeros(1), x.reshape(-1)])
    views = [
        x.to(memory_format=torch.channels_last),
        flat[1:].view(x.shape),
        torch.cat([x, x], dim=3)[..., ::2],
        torch.stack([x, x], dim=1)[:, 0],
    ]
    with forced("held"), tf32(True), torch.no_grad():
        for view in views:
            assert relative_error(new(view), exact(view.double())) <= BOUND[torch.float32]


def test_without_affine_parameters(shelf):
    arguments, shape = (64, 64, 3, 8), (3, 40, 64)
    exact, new = pair(shelf, arguments)
    for model in (exact, new):
        norm = next(m for m in model.modules() if isinstance(m, nn.GroupNorm))
        norm.weight = norm.bias = None
    x = random_input(arguments, shape)
    with forced("held"), tf32(True), torch.no_grad():
        assert relative_error(new(x), exact(x.double())) <= BOUND[torch.float32]


def test_a_large_mean_costs_no_digits(shelf):
    """Mean 1e3, spread 1e-2: no worse than PyTorch in fp32, which rounds 1e3 to 6e-5 as we do."""
    arguments, shape = (64, 64, 3, 8), (2, 100, 100)
    exact, new = pair(shelf, arguments, scale=0.02)
    for model in (exact, new):
        model.conv_transpose.bias.data.fill_(1e3)
    x = random_input(arguments, shape)
    reference = copy.deepcopy(exact).float()
    with forced("held"), torch.no_grad():
        truth = exact(x.double())
        with tf32(False):
            theirs = relative_error(reference(x), truth)
        with tf32(True):
            assert relative_error(new(x), truth) <= 1.5 * theirs


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("mean", [-3.0, -4.5])
def test_the_tail_of_gelu(shelf, dtype, mean):
    """Where all results are next to nothing, and what they vary by is all that is left of them."""
    arguments, shape = (64, 64, 3, 8), (2, 100, 100)
    exact, new = pair(shelf, arguments, dtype)
    for model in (exact, new):
        model.conv_transpose.bias.data.fill_(mean)
        next(m for m in model.modules() if isinstance(m, nn.GroupNorm)).eps = 1e-14
    x = random_input(arguments, shape, dtype)
    reference = copy.deepcopy(exact).to(dtype)
    with forced("held"), torch.no_grad():
        truth = exact(x.double())
        theirs, ours = (relative_error(model(x), truth) for model in (reference, new))
    assert ours <= theirs


@pytest.mark.parametrize("dtype", [torch.float32, *LOW], ids=str)
@pytest.mark.parametrize("shape", [(3, 256, 256), (5, 255, 253), (7, 61, 67)], ids=str)
@pytest.mark.parametrize("name", ["tanh_gelu_norm"])
def test_gelu_as_tanh_after_a_scale(shelf, name, shape, dtype):
    arguments = (64, 64, 3, 8)
    exact, new = pair(shelf, arguments, dtype, name=name)
    x = random_input(arguments, shape, dtype)
    with forced("held"), tf32(True), torch.no_grad():
        y = new(x)
        assert relative_error(y, exact(x.double())) <= BOUND[dtype]
        assert torch.equal(new(x), y)


@pytest.mark.parametrize("value", [1e30, 1e6, NAN, float("inf")])
def test_what_fp16_containers_cannot_hold(shelf, value):
    arguments, shape = (64, 64, 3, 8), (3, 40, 64)
    exact, new = pair(shelf, arguments)
    x = random_input(arguments, shape)
    x[1, 3, 4, 5] = value
    with forced("held"), tf32(True), torch.no_grad():
        y, truth = new(x), exact(x.double())
    others = [0, 2]
    assert relative_error(y[others], truth[others]) <= BOUND[torch.float32]
    if value == 1e6:
        assert relative_error(y, truth) <= BOUND[torch.float32]
    elif value != 1e30:  # whose square is no fp32 number
        assert torch.equal(y.isfinite(), truth.isfinite())


def test_many_replays_of_a_graph(shelf):
    arguments, shape = (64, 64, 3, 8), (5, 64, 64)
    _, new = pair(shelf, arguments)
    x = random_input(arguments, shape)
    with forced("held"), tf32(True), torch.no_grad():
        graph, y = captured(new, x)
        for _ in range(50):
            graph.replay()
        check_replays(graph, new, x, y, torch.rand_like)


def test_two_streams_at_once(shelf):
    """Neither has the processors to itself; both end, and are right."""
    arguments = (64, 64, 3, 8)
    _, new = pair(shelf, arguments)
    inputs = [random_input(arguments, (20, 128, 128)) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in inputs]
    with forced("held"), tf32(True), torch.no_grad():
        expected = [new(x) for x in inputs]
        torch.cuda.synchronize()
        got = [[] for _ in inputs]
        for _ in range(10):
            for i, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    got[i].append(new(inputs[i]))
        torch.cuda.synchronize()
    for outputs, wanted in zip(got, expected, strict=True):
        assert all(torch.equal(y, wanted) for y in outputs)


_PROCESS = """
import sys, torch
from pathlib import Path
from tests.solution_tools import environment, load_text
new = load_text(Path(sys.argv[1]).read_text(), "solution_19")["ModelNew"](64, 64, 3, 1, 8, 8).cuda()
torch.manual_seed(0)
x = torch.rand(40, 64, 128, 128, device="cuda")
with torch.no_grad(), environment(TCONV_KERNEL="held"):
    first = new(x)
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(50):
        assert torch.equal(new(x), first)
print("done", flush=True)
"""


@pytest.fixture
def mps(tmp_path):
    """CUDA's multi-process service for whom its environment is given; it ends with the test."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        pytest.skip("no nvidia-cuda-mps-control on this machine")
    folders = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
    its = {**os.environ, **dict.fromkeys(folders, str(tmp_path))}
    subprocess.run([control, "-d"], env=its, check=True, timeout=30)
    yield its
    subprocess.run([control], input="quit\n", env=its, text=True, timeout=60)


def run_two_processes(shelf, its=None):
    shelf["19"]  # built before both look for it
    path = next(p for p in PROBLEMS if p.stem.startswith("19_"))
    path = ROOT / "solutions" / path.parent.name / path.name
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _PROCESS, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=its,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate(timeout=120)[0] for process in processes] == ["done\n"] * 2


def test_two_processes_on_one_gpu(shelf):
    run_two_processes(shelf)


@pytest.mark.parametrize("percentage", [100, 50])
def test_two_processes_under_mps(shelf, mps, percentage):
    """Both run at the same time; with half of the processors each, these are all that it sees."""
    run_two_processes(shelf, {**mps, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percentage)})


def test_fewer_processors_than_the_device_has(shelf):
    """Of a green context: the launch is refused before it starts, and the way in passes taken."""
    contexts = getattr(torch.cuda, "green_contexts", None)
    if contexts is None or not contexts.SUPPORTED:
        pytest.skip("this PyTorch has no green contexts")
    arguments = (64, 64, 3, 8)
    exact, new = pair(shelf, arguments)
    x = random_input(arguments, (3, 250, 250))
    context = contexts.GreenContext.create(num_sms=64, device_id=torch.cuda.current_device())
    stream = context.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with tf32(True), torch.no_grad(), torch.cuda.stream(stream):
        with forced("held"), pytest.raises(RuntimeError, match="too many blocks"):
            new(x)
        with forced("auto"):
            y = new(x)
    torch.cuda.synchronize()
    with torch.no_grad():
        assert relative_error(y, exact(x.double())) <= BOUND[torch.float32]


def test_is_taken_where_it_pays_and_refused_where_it_does_not_fit(shelf):
    arguments = (64, 64, 3, 8)
    _, new = pair(shelf, arguments)
    x = random_input(arguments, (14, 64, 64))
    with tf32(True), torch.no_grad():
        with forced("auto"):
            y = new(x)
        with forced("held"):
            assert torch.equal(new(x), y)
        with forced("held"), pytest.raises(RuntimeError, match="forced by TCONV_KERNEL"):
            new(random_input(arguments, (1, 300, 300)))
        wide = pair(shelf, (64, 65, 3, 5))[1]
        with forced("held"), pytest.raises(RuntimeError, match="forced by TCONV_KERNEL"):
            wide(x)
