"""DistributedDataParallel over two GPUs (NCCL): the solution's updates against the reference's."""

import pytest

from tests.solution_tools import ROOT
from tests.test_gpu_runtime import needs_two_gpus
from tests.two_processes import run_two

pytestmark = pytest.mark.gpu

NAMES = ["65", "19", "11"]

# One process of two: a line for each solution and TF32 setting, "same" where all is right.
PROCESS = """
import sys, torch, torch.distributed as dist
from pathlib import Path
sys.path.insert(0, {root!r})
from torch.nn.parallel import DistributedDataParallel
from tests.gpu_tools import tf32
from tests.pytorch_tools import assert_no_worse, pair_of
from tests.solution_tools import SolutionShelf
rank, store, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.cuda.set_device(rank)
device = torch.device("cuda", rank)
dist.init_process_group("nccl", init_method="file://" + store, rank=rank, world_size=2)
shelf = SolutionShelf(Path(folder))

def updates(model, dtype):
    model = model.to(device, dtype)
    before = [p.detach().clone() for p in model.parameters()]
    wrapped = DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(2):
        generator = torch.Generator().manual_seed(2 * step + rank)  # each process has its own share
        x = torch.randn(8, 64, 16, 20, generator=generator).to(device, dtype)
        optimizer.zero_grad()
        y = wrapped(x)
        direction = torch.randn(y.shape, generator=generator).to(device, dtype)
        (y * direction).sum().backward()
        optimizer.step()
    return [(p - b).detach() for p, b in zip(model.parameters(), before)]

for name in {names!r}:
    for allowed in (False, True):
        with tf32(allowed):
            try:
                exact = updates(pair_of(shelf, name)[0], torch.float64)
                eager, new = (updates(m, torch.float32) for m in pair_of(shelf, name))
                size = max(float(truth.norm()) for truth in exact)
                for mine, theirs, truth in zip(new, eager, exact, strict=True):
                    if truth.norm() > 1e-9 * size:  # not a bias before BatchNorm
                        assert_no_worse(mine, theirs, truth, 1e-3 if allowed else 2e-5)
                    everyones = [torch.empty_like(mine) for _ in range(2)]
                    dist.all_gather(everyones, mine)
                    assert torch.equal(*everyones)
                print(name, allowed, "same", flush=True)
            except Exception as error:
                print(name, allowed, type(error), str(error)[:400], flush=True)
dist.destroy_process_group()
"""


def test_ddp(shelf, tmp_path):
    """Two steps of SGD, each process with inputs of its own: updates no worse than eager's against
    float64, and the same bits in both processes.
    """
    needs_two_gpus()
    shelf.build_ahead(NAMES)
    script = PROCESS.format(root=str(ROOT), names=NAMES)
    lines, errors = run_two(script, shelf, tmp_path)
    assert all(line.endswith(" same") for line in lines), lines
    assert len(lines) == 2 * 2 * len(NAMES), errors
