"""Solutions copied, saved, called from threads, spread over processes, and without a compiler."""

import copy
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import get_cxx_compiler

from tests.pytorch_tools import (
    MODE_IDS,
    MODES,
    assert_same,
    assert_same_state,
    gradients,
    input_of,
    pair_of,
)
from tests.solution_tools import ROOT, environment
from tests.two_processes import run_two

modes = pytest.mark.parametrize(("name", "training"), MODES, ids=MODE_IDS)


@modes
def test_deepcopy(shelf, name, training):
    """A copy answers as the first does and shares nothing with it."""
    _, new = pair_of(shelf, name, training)
    new(input_of(name))
    other = copy.deepcopy(new)
    state = copy.deepcopy(new.state_dict())
    assert_same(other(input_of(name)), copy.deepcopy(new)(input_of(name)), rtol=0, atol=0)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert_same(dict(new.state_dict()), dict(state), rtol=0, atol=0)


@modes
def test_saved_states_go_both_ways(shelf, name, training, tmp_path):
    """A state pickled by torch.save, into a model of other parameters."""
    made = pair_of(shelf, name, training)
    for source, kind in zip(made, ("solution", "reference"), strict=True):
        source(input_of(name, seed=3))
        torch.save(source.state_dict(), tmp_path / "state.pt")
        other = shelf[name].pair(seed=7)[kind == "solution"].double().train(training)
        other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True), strict=True)
        assert_same_state(other, source, rtol=0, atol=0)
        assert_same(other(input_of(name)), source(input_of(name)))


@pytest.mark.parametrize("name", ["65", "19", "11", "every_step"])
def test_concurrent_calls(shelf, name):
    """One model in eval mode, forward and backward from four threads at once."""
    _, new = pair_of(shelf, name, training=False)
    inputs = [input_of(name, batch=1 + seed % 3, seed=seed) for seed in range(6)]
    expected = [gradients(new, x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda x: gradients(new, x), inputs))
    for mine, alone in zip(got, expected, strict=True):
        assert_same(mine, alone)


def test_threads_keep_their_own_modes(shelf):
    """no_grad and autocast are a thread's own: a call under one leaves the other's alone."""
    _, new = pair_of(shelf, "19")
    x = input_of("19")

    def call(index):
        with torch.set_grad_enabled(index % 2 == 0):
            return [new(x).requires_grad for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        for index, seen in enumerate(pool.map(call, range(8))):
            assert seen == [index % 2 == 0] * 5


DISTRIBUTED = """
import sys, torch, torch.distributed as dist
from pathlib import Path
sys.path.insert(0, {root!r})
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from tests.pytorch_tools import MODES, assert_same, input_of, pair_of
from tests.solution_tools import SolutionShelf
rank, store, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
shelf = SolutionShelf(Path(folder))

def step(model, name, wrap):
    wrapped = wrap(model) or model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for seed in (0, 2):
        optimizer.zero_grad()
        wrapped(input_of(name, seed=seed + rank)).square().mean().backward()
        optimizer.step()
    full = lambda t: t.full_tensor() if hasattr(t, "full_tensor") else t
    return {{key: full(value) for key, value in model.state_dict().items()}}

WAYS = {{
    "DDP": DistributedDataParallel,
    "DDP static": lambda m: DistributedDataParallel(m, static_graph=True),
    "fully_shard": lambda m: fully_shard(m) and None,
}}
for name, training in MODES:
    for way, wrap in WAYS.items():
        model, new = pair_of(shelf, name, training)
        alone = dict(new.state_dict())
        before = {{key: value.clone() for key, value in alone.items()}}
        try:
            expected, got = step(model, name, wrap), step(new, name, wrap)
            assert_same(got, expected)
            moved = any(not torch.equal(before[key], got[key]) for key in got)
            print(rank, way, name, training, "same" if moved else "unmoved", flush=True)
        except Exception as error:
            print(rank, way, name, training, type(error), str(error)[:400], flush=True)
dist.destroy_process_group()
"""


@pytest.mark.sweep
def test_ddp_and_fully_shard(shelf, tmp_path):
    """Two gloo processes, two steps each, against the reference wrapped in the same way."""
    script = DISTRIBUTED.format(root=str(ROOT))
    lines, errors = run_two(script, shelf, tmp_path)
    assert all(line.endswith(" same") for line in lines), lines
    assert len(lines) == 2 * 3 * len(MODES), errors


NO_COMPILER = """
import sys
namespace = {"__name__": "solution"}
exec(compile(open(sys.argv[1]).read(), "<solution>", "exec"), namespace)
"""


@pytest.mark.parametrize("lacking", ["compiler", "ninja"])
def test_without_a_compiler(shelf, lacking, tmp_path):
    """An error that names what is missing, where the library is not built yet."""
    (tmp_path / "solution.py").write_text(shelf["65"].text)
    tools = tmp_path / "tools"
    tools.mkdir()
    compiler = shutil.which(get_cxx_compiler()) if lacking == "ninja" else "/nonexistent/c++"
    if lacking == "compiler":
        (tools / "ninja").symlink_to(Path(sys.executable).parent / "ninja")
    build = str(tmp_path / "build")
    with environment(PATH=str(tools), CXX=compiler, TORCH_EXTENSIONS_DIR=build):
        command = [sys.executable, "-c", NO_COMPILER, str(tmp_path / "solution.py")]
        run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("RuntimeError: ") and lacking in last.lower(), run.stderr[-1500:]
