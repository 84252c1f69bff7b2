"""Loads a reference file and traces its model."""

import ast
import dataclasses
import functools
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from generator.errors import Refusal


@dataclasses.dataclass
class Reference:
    """A reference in KernelBench format: its text, and its model from get_init_inputs().

    `called`: every name of every module inside the model that its forward calls; trace finds them.
    """

    path: Path
    source: str
    tree: ast.Module
    model: nn.Module
    called: list[str] = dataclasses.field(default_factory=list)


class _Tracer(fx.Tracer):
    """Notes for every node the line of the reference file it came from, as node.meta["line"], and
    the modules that forward calls, those whose own forward is traced included.
    """

    def __init__(self, file_name: str):
        super().__init__()
        self._file_name = file_name
        self.called: set[nn.Module] = set()

    def call_module(self, m: nn.Module, *args: Any) -> Any:
        self.called.add(m)
        return super().call_module(m, *args)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        frame: types.FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_filename != self._file_name:
            frame = frame.f_back
        if frame is not None:
            node.meta["line"] = frame.f_lineno
        return node


def load_reference(path: Path) -> Reference:
    """Executes the file and constructs its Model. Raises Refusal where that is impossible."""
    if not path.is_file():
        raise Refusal(f"{path}: no such file")
    source = _attempt("reading the file", path, lambda: path.read_text(encoding="utf-8"))
    module = types.ModuleType(f"_tconv_reference_{path.stem}")
    module.__file__ = str(path)

    def execute() -> ast.Module:
        tree = ast.parse(source, filename=str(path))
        exec(compile(tree, str(path), "exec"), module.__dict__)
        return tree

    tree = _attempt("executing the file", path, execute)
    for name in ("Model", "get_inputs", "get_init_inputs"):
        if not callable(getattr(module, name, None)):
            raise Refusal(f"{path}: a reference must define {name}")
    with torch.random.fork_rng(devices=[]):
        model = _attempt(
            "Model(*get_init_inputs())", path, lambda: module.Model(*module.get_init_inputs())
        )
    if not isinstance(model, nn.Module):
        raise Refusal(f"{path}: Model must be a torch.nn.Module, got {type(model).__name__}")
    return Reference(path, source, tree, model)


def trace(reference: Reference) -> fx.Graph:
    """The graph of the model's forward, the same in training and in eval mode. Raises Refusal."""
    graphs = []
    for training in (False, True):
        reference.model.train(training)
        tracer = _Tracer(str(reference.path))
        graphs.append(
            _attempt(
                "tracing forward",
                reference.path,
                functools.partial(tracer.trace, reference.model),
            )
        )
    named = reference.model.named_modules(remove_duplicate=False)
    reference.called = [name for name, module in named if module in tracer.called]
    in_eval, in_training = graphs
    for left, right in zip(in_eval.nodes, in_training.nodes, strict=False):
        if _describe(left) != _describe(right):
            raise Refusal(
                f"{reference.path}:{right.meta.get('line', '?')}: forward does something else in "
                "eval mode than in "
                f"training mode at `{right.format_node() or right.name}`"
            )
    if len(in_eval.nodes) != len(in_training.nodes):
        raise Refusal(
            f"{reference.path}: forward has other operations in eval mode than in training mode"
        )
    return in_training


def _describe(node: fx.Node) -> tuple:
    return node.op, node.target, str(node.args), str(node.kwargs)


def _attempt(what: str, path: Path, action: Callable[[], Any]) -> Any:
    try:
        return action()
    except (Exception, SystemExit) as error:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == str(path)
        ]
        line = error.lineno if isinstance(error, SyntaxError) else (lines or [None])[-1]
        place = f"{path}:{line}" if line else str(path)
        raise Refusal(f"{place}: {what} raised {type(error).__name__}: {error}") from error
