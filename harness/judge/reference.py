"""A reference file in KernelBench format: its model, its constructor arguments, its inputs."""

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch

from harness.errors import UsageError
from harness.judge.joined import join_outputs

_NEEDED = ("Model", "get_inputs", "get_init_inputs")


class Reference:
    """The reference of one problem, executed in the harness's own process.

    Raises UsageError when the file is missing, fails to load, or lacks one of `Model`,
    `get_inputs` and `get_init_inputs`.
    """

    def __init__(self, path: Path):
        self.path = path
        self.module = _load(path)
        missing = [name for name in _NEEDED if not hasattr(self.module, name)]
        if missing:
            raise UsageError(f"reference {path}: it defines no {', '.join(missing)}")
        with _told(path, "get_init_inputs()"):
            self.init_inputs = list(self.module.get_init_inputs())
        self.full_batch = getattr(self.module, "batch_size", None)
        self.joins = False  # are the outputs of models made from now on joined?

    def model(self, seed: int, arguments: list | None = None) -> torch.nn.Module:
        """A new model, drawn on the CPU under `seed`, as KernelBench does it; with `arguments` in
        place of get_init_inputs' if given.
        """
        torch.manual_seed(seed)
        with _told(self.path, "Model(*get_init_inputs())" if arguments is None else "Model(...)"):
            model = self.module.Model(*(self.init_inputs if arguments is None else arguments))
        if not isinstance(model, torch.nn.Module):
            raise UsageError(f"reference {self.path}: Model is no torch.nn.Module")
        return join_outputs(model) if self.joins else model

    def inputs(self, seed: int, device: torch.device, batch: int | None = None) -> list:
        """The problem's own inputs on `device`, drawn under `seed`, with `batch` samples if given.

        A module-level `batch_size` is changed for the call; where there is none the inputs are cut.
        """
        full = self.full_batch
        torch.manual_seed(seed)
        if batch is not None and full is not None:
            self.module.batch_size = batch
        try:
            with torch.device(device), _told(self.path, "get_inputs()"):
                inputs = list(self.module.get_inputs())
        finally:
            if full is not None:
                self.module.batch_size = full
        if batch is not None:
            inputs = [_cut(value, batch) for value in inputs]
        return [value.to(device) if torch.is_tensor(value) else value for value in inputs]


def _cut(value, batch: int):
    if not torch.is_tensor(value) or value.dim() == 0 or value.shape[0] == batch:
        return value
    if value.shape[0] < batch:
        raise UsageError(f"--batch {batch}: the reference's inputs have {value.shape[0]} samples")
    return value[:batch].contiguous()


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"reference {path}: no such file")
    name = "reference_" + hashlib.sha256(str(path).encode()).hexdigest()[:12]
    # Whatever the file's name ends with.
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    sys.modules[name] = module
    with _told(path, "the file"):
        loader.exec_module(module)
    return module


@contextlib.contextmanager
def _told(path: Path, what: str):
    """What goes wrong in a reference is the user's to mend; the device's memory is not."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise
    except (Exception, SystemExit) as error:
        first = (str(error).strip().splitlines() or ["no message"])[0]
        kind = type(error).__name__
        raise UsageError(f"reference {path}: {what} raised {kind}: {first}") from error


def cast(values: list, dtype: torch.dtype) -> list:
    """Floating-point tensors of `values` in `dtype`, the rest unchanged."""
    return [
        value.to(dtype) if torch.is_tensor(value) and value.is_floating_point() else value
        for value in values
    ]


def batch_of(values: list) -> int | None:
    """Number of samples: the first dimension of the first tensor of two or more dimensions."""
    for value in values:
        if torch.is_tensor(value) and value.dim() >= 2:
            return value.shape[0]
    return None
