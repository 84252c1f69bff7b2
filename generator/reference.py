"""Loads a reference file and constructs its model and its inputs."""

import ast
import dataclasses
import inspect
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from generator.errors import Refusal


@dataclasses.dataclass
class Reference:
    """A reference in KernelBench format: its text, its namespace, its model from
    get_init_inputs(), and inputs without data, as get_inputs() shapes them.
    """

    path: Path
    source: str
    tree: ast.Module
    namespace: dict[str, Any]
    model: nn.Module
    inputs: list

    @property
    def module_name(self) -> str:
        return self.namespace["__name__"]

    @property
    def forward_line(self) -> int:
        """Where the model's forward begins, in whatever class of the file."""
        code = getattr(inspect.unwrap(type(self.model).forward), "__code__", None)
        if code is not None and code.co_filename == str(self.path):
            return code.co_firstlineno
        return next(
            node.lineno
            for node in self.tree.body
            if isinstance(node, ast.ClassDef) and node.name == "Model"
        )

    def bound_arguments(self) -> dict[str, Any]:
        """The inputs by the names of forward's parameters, defaults among them."""
        signature = inspect.signature(self.model.forward)
        bound = signature.bind(*self.inputs)
        bound.apply_defaults()
        return dict(bound.arguments)


def load_reference(path: Path) -> Reference:
    """Executes the file and constructs its Model. Raises Refusal where that is impossible."""
    if not path.is_file():
        raise Refusal(f"{path}: no such file")
    source = attempt("reading the file", path, lambda: _read(path))
    module = types.ModuleType(f"_tconv_reference_{path.stem}")
    module.__file__ = str(path)

    def execute() -> ast.Module:
        tree = ast.parse(source, filename=str(path))
        sys.modules[module.__name__] = module  # where dataclasses look for their annotations
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            exec(compile(tree, str(path), "exec"), module.__dict__)
        return tree

    tree = attempt("executing the file", path, execute)
    for name in ("Model", "get_inputs", "get_init_inputs"):
        if not callable(getattr(module, name, None)):
            raise Refusal(f"{path}: a reference must define {name}")
    with torch.random.fork_rng(devices=[]):
        model = attempt(
            "Model(*get_init_inputs())", path, lambda: module.Model(*module.get_init_inputs())
        )
    if not isinstance(model, nn.Module):
        raise Refusal(f"{path}: Model must be a torch.nn.Module, got {type(model).__name__}")
    inputs = attempt("get_inputs()", path, lambda: _shaped_inputs(module.get_inputs))
    reference = Reference(path, source, tree, module.__dict__, model, inputs)
    attempt("forward(*get_inputs())", path, reference.bound_arguments)
    return reference


def _read(path: Path) -> str:
    text = path.read_bytes().decode("utf-8-sig")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _shaped_inputs(get_inputs: Callable[[], list]) -> list:
    """Its inputs on the CPU without data: nothing of their memory is touched."""
    with torch.random.fork_rng(devices=[]):
        made: Any = None
        try:
            with torch.device("meta"):
                made = list(get_inputs())
        except Exception:  # noqa: BLE001 - what looks into its tensors needs them
            made = list(get_inputs())
    return torch.utils._pytree.tree_map_only(torch.Tensor, _empty_like, made)


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    return empty.requires_grad_(tensor.requires_grad)


def attempt(what: str, path: Path, action: Callable[[], Any]) -> Any:
    """action(), or a Refusal with the last line of the file that its exception went through."""
    try:
        return action()
    except Refusal:
        raise
    except (Exception, SystemExit) as error:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == str(path)
        ]
        line = error.lineno if isinstance(error, SyntaxError) else (lines or [None])[-1]
        place = f"{path}:{line}" if line else str(path)
        told = (str(error).strip().splitlines() or ["no message"])[0]
        raise Refusal(f"{place}: {what} raised {type(error).__name__}: {told}") from error
