"""Notes what forward does while it is traced that leaves no trace in the graph."""

import contextlib
import copy
import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as _module
from torch.overrides import TorchFunctionMode

from generator.errors import Refusal
from generator.reference import Reference
from generator.runtime.described import _described as described

_PRIVATE = frozenset(vars(nn.Module())) | frozenset(vars(nn.Module))
# What tells a size, or gives as many results as there are rows.
_SIZES = {"size", "shape", "numel", "dim", "ndim", "ndimension", "__len__", "nelement", "stride"}
_SIZES |= {"__iter__", "unbind", "split", "chunk", "tensor_split", "unflatten"}
# Files of PyTorch that stand between a traced file and what it calls.
_TRACERS = (
    "/torch/fx/",
    "/torch/_export/",
    "/torch/export/",
    "/torch/overrides.py",
    "/_compile.py",
)
MISSING = object()


@dataclasses.dataclass
class Call:
    """One call of a module: whether it took one tensor and nothing else, and gave one."""

    is_simple: bool


@dataclasses.dataclass
class Watch:
    """`read`: attributes by (path of the module, name), MISSING where there was none. `calls`: of
    each module in order. `sizes`: lines that ask a tensor for its sizes. `modes`: paths of modules
    whose flag `training` was read by the file's own text. `branches`: sizes that a condition
    depended on, by line. `autocasts`: (device type, dtype, enabled) asked for, in order.
    """

    read: dict[tuple[str, str], Any] = dataclasses.field(default_factory=dict)
    calls: dict[nn.Module, list[Call]] = dataclasses.field(default_factory=dict)
    sizes: set[int] = dataclasses.field(default_factory=set)
    modes: set[str] = dataclasses.field(default_factory=set)
    branches: list[tuple[int, Any, bool]] = dataclasses.field(default_factory=list)
    autocasts: list[tuple] = dataclasses.field(default_factory=list)
    inference: list[int] = dataclasses.field(default_factory=list)
    changed: list[str] = dataclasses.field(default_factory=list)

    def merge(self, other: "Watch") -> None:
        self.read = other.read | self.read
        for module, calls in other.calls.items():
            self.calls.setdefault(module, calls)
        self.sizes |= other.sizes
        self.modes |= other.modes
        self.branches += [b for b in other.branches if b not in self.branches]
        self.autocasts = self.autocasts or other.autocasts


@contextlib.contextmanager
def watching(reference: Reference) -> Iterator[Watch]:
    """Notes what the model's forward does until the end of the block."""
    watch = Watch()
    own = {
        kind
        for module in reference.model.modules()
        for kind in type(module).__mro__
        if kind.__module__ == reference.module_name
    }
    with contextlib.ExitStack() as stack:
        for kind in own:
            stack.enter_context(_reads_noted(kind, reference, watch))
        stack.enter_context(_calls_noted(reference, watch))
        stack.enter_context(_branches_noted(reference, watch))
        stack.enter_context(_switches_noted(reference, watch))
        stack.enter_context(_Sizes(reference, watch))
        yield watch


def reference_line(reference: Reference, depth: int = 2) -> int | None:
    """The line of the file that called, not through anything of PyTorch but its tracing."""
    frame = sys._getframe(depth)
    while frame is not None:
        name = frame.f_code.co_filename
        if name == str(reference.path):
            return frame.f_lineno
        if name != __file__ and not any(part in name for part in _TRACERS):
            return None
        if "_export/" in name and frame.f_code.co_name != "__torch_function__":
            return None  # what PyTorch asks for on its own, where forward takes an item
        frame = frame.f_back
    return None


@contextlib.contextmanager
def _reads_noted(kind: type, reference: Reference, watch: Watch) -> Iterator[None]:
    had = kind.__dict__.get("__getattribute__")
    base = kind.__getattribute__
    paths = {id(vars(module)): path for path, module in reference.model.named_modules()}

    def read(self, name):
        if name in _PRIVATE or name.startswith("__"):
            value = base(self, name)
            if name == "training" and sys._getframe(1).f_code.co_filename == str(reference.path):
                watch.modes.add(paths.get(_identity(self), ""))
            return value
        try:
            value = base(self, name)
        except AttributeError:
            path = paths.get(_identity(self))
            registered = any(
                name in base(self, "__dict__").get(kept, ())
                for kept in ("_parameters", "_buffers", "_modules")
            )
            if (
                path is not None
                and not registered
                and not isinstance(getattr(type(self), name, None), property)
            ):
                watch.read.setdefault((path, name), MISSING)
            elif path is not None and registered and self.__getattr__(name) is None:
                watch.read.setdefault((path, name), None)
            raise
        path = paths.get(_identity(self))
        known = getattr(type(self), name, None)
        if path is not None and not isinstance(known, property) and not _is_method(value, self):
            if not isinstance(value, torch.Tensor | nn.Module):
                if (path, name) not in watch.read:
                    watch.read[path, name] = _kept(value)
        return value

    kind.__getattribute__ = read
    try:
        yield
    finally:
        if had is None:
            del kind.__getattribute__
        else:
            kind.__getattribute__ = had


def _identity(module: nn.Module) -> int:
    """The same for a module and for what torch.export puts in its place, which shares its
    attributes.
    """
    return id(object.__getattribute__(module, "__dict__"))


def _kept(value: Any) -> Any:
    """A value as it is now, whatever becomes of it."""
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - what cannot be copied is compared by its description
        return value


def _is_method(value: Any, owner: Any) -> bool:
    return callable(value) and getattr(value, "__self__", None) is owner


def plain_state(model: nn.Module) -> dict[str, str]:
    """What modules keep beside tensors and modules, described."""
    return {
        f"{path}.{name}" if path else name: repr(described(value))
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if name not in _PRIVATE and not isinstance(value, torch.Tensor)
    }


@contextlib.contextmanager
def _calls_noted(reference: Reference, watch: Watch) -> Iterator[None]:
    before = plain_state(reference.model)
    originals = {_identity(module): module for module in reference.model.modules()}

    def note(module, args, kwargs, output):
        module = originals.get(_identity(module), module)
        simple = len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor)
        watch.calls.setdefault(module, []).append(Call(simple and isinstance(output, torch.Tensor)))
        if module is reference.model:
            after = plain_state(module)
            watch.changed += [
                name for name in before | after if before.get(name, MISSING) != after.get(name)
            ]

    handle = _module.register_module_forward_hook(note, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def _branches_noted(reference: Reference, watch: Watch) -> Iterator[None]:
    original = torch.SymBool.__bool__

    def decide(self):
        value = original(self)
        line = reference_line(reference)
        if line is not None:
            watch.branches.append((line, self.node.expr, value))
        return value

    torch.SymBool.__bool__ = decide
    try:
        yield
    finally:
        torch.SymBool.__bool__ = original


@contextlib.contextmanager
def _switches_noted(reference: Reference, watch: Watch) -> Iterator[None]:
    autocast, inference = torch.autocast.__init__, torch.inference_mode.__enter__

    def note_autocast(self, device_type, dtype=None, enabled=True, cache_enabled=None):
        watch.autocasts.append((device_type, dtype, enabled))
        autocast(self, device_type, dtype, enabled, cache_enabled)

    def note_inference(self):
        line = reference_line(reference)
        decorated = sys._getframe(1).f_code.co_filename.endswith("_contextlib.py")
        if line is not None or decorated:
            watch.inference.append(line or 0)
        inference(self)

    torch.autocast.__init__, torch.inference_mode.__enter__ = note_autocast, note_inference
    try:
        yield
    finally:
        torch.autocast.__init__, torch.inference_mode.__enter__ = autocast, inference


class _Sizes(TorchFunctionMode):
    def __init__(self, reference: Reference, watch: Watch):
        super().__init__()
        self._reference, self._watch = reference, watch

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = getattr(getattr(func, "__self__", None), "__name__", "")
        if name in _SIZES:
            line = reference_line(self._reference)
            if line is not None:
                self._watch.sizes.add(line)
        return func(*args, **(kwargs or {}))


def refuse_side_effects(reference: Reference, watch: Watch) -> None:
    """Raises Refusal for what the emitted forward could not do again."""
    if watch.changed:
        raise Refusal(
            f"{reference.path}:{reference.forward_line}: forward changes `{watch.changed[0]}`, "
            "which is no buffer; a graph of operators cannot keep that"
        )
    if watch.inference:
        raise Refusal(
            f"{reference.path}:{watch.inference[0] or reference.forward_line}: "
            "torch.inference_mode inside forward cannot be traced; torch.no_grad can"
        )
