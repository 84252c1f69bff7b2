"""The program that `harness.profile` starts under ncu: one call of a solution between its marks.

python -m harness.measure.profile_call REFERENCE SOLUTION DTYPE DEVICE BUILD_DIR
"""

import sys
from pathlib import Path

import torch

from harness.judge.reference import Reference, cast
from harness.measure.shapes_run import SEED, load_solution

_WARM_UP = 2


def main(reference: str, solution: str, dtype: str, device: str, build_dir: str) -> None:
    """Call the solution on the reference's inputs and weights; counters see the last call only."""
    where, kind = torch.device(device), getattr(torch, dtype)
    torch.cuda.set_device(where)
    source = Reference(Path(reference))
    module, _ = load_solution(Path(solution), Path(build_dir), where)
    model = module.ModelNew(*source.init_inputs)
    model.load_state_dict(source.model(SEED).state_dict(), strict=True)
    model.to(where, kind)
    inputs = cast(source.inputs(SEED, where), kind)
    runtime = torch.cuda.cudart()
    with torch.no_grad():
        for _ in range(_WARM_UP):
            model(*inputs)
        torch.cuda.synchronize(where)
        runtime.cudaProfilerStart()
        model(*inputs)
        torch.cuda.synchronize(where)
        runtime.cudaProfilerStop()


if __name__ == "__main__":
    main(*sys.argv[1:])
