"""Runs what was written against the reference, in float64 on small sizes, before it is kept."""

import ast
import contextlib
import itertools
import traceback
from collections.abc import Callable, Iterator
from operator import floordiv, mod
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from generator.errors import Refusal
from generator.fold_formula import chain_of
from generator.front.watch import plain_state
from generator.ir import Value
from generator.kernels import kernels_of
from generator.program import Program
from generator.runtime.arguments import _make_conv, _make_pool

_SIDES = (6, 8, 16, 32, 64)  # of cut images, the first that the reference takes
_BATCH = 2
_MOST_ELEMENTS = 1 << 22  # of an input: larger ones are cut or refused to be run
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}


def prove(program: Program, text: str, built: bool = False) -> None:
    """Raises Refusal, saying where, if the solution `text` does something else than the reference:
    outputs, gradients of inputs and parameters, what is kept after a step, state_dict, in training
    and in eval mode.

    built: with the C++ half, which is compiled for it; else with PyTorch's functions in its place.
    """
    namespace = _executed(text) if built else with_formulas(program, text)
    for inputs in _small_inputs(program):
        _Proof(program, namespace, inputs).run()


class _Proof:
    def __init__(self, program: Program, namespace: dict, inputs: list):
        self._path = program.reference.path
        self._factories = program.reference.namespace["Model"], namespace["ModelNew"]
        self._arguments = program.reference.namespace["get_init_inputs"]
        self._inputs, self._folds = inputs, bool(program.folds)
        self._without_backward: set[bool] = set()  # modes in which the reference has none
        floats = [t for t in _tensors(inputs) if t.is_floating_point()]
        self._tolerance = _TOLERANCE[floats[0].dtype] if floats else _TOLERANCE[torch.float32]

    def run(self) -> None:
        models = [self._constructed(factory) for factory in self._factories]
        self._same("state_dict() of a new model", *(dict(m.state_dict()) for m in models))
        dtype = torch.float64 if self._tolerance == _TOLERANCE[torch.float64] else torch.float32
        models = [model.to(dtype) for model in models]
        for training in (True, False):
            mode = "training" if training else "eval"
            theirs, ours = (self._step(model, training) for model in models)
            for what in theirs:
                self._same(f"{what} in {mode} mode", theirs[what], ours[what])
        if self._folds:  # which run where no gradient is wanted
            theirs, ours = (self._evaluated(model) for model in models)
            self._same("the result in eval mode without a gradient", theirs, ours)

    def _constructed(self, factory: Callable) -> nn.Module:
        torch.manual_seed(0)
        try:
            return factory(*self._arguments())
        except Exception as error:  # noqa: BLE001
            if factory is self._factories[0]:
                raise
            raise self._refusal("construction", error) from error

    def _evaluated(self, model: nn.Module) -> Any:
        """Its result where no gradient is wanted, with statistics and weights like those of a
        trained model: new ones would hide a step that is missing.
        """
        generator = torch.Generator().manual_seed(4)
        given = _pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, self._inputs)
        with torch.no_grad():
            for tensor in itertools.chain(model.parameters(), model.buffers()):
                if tensor.is_floating_point():  # variances stay positive
                    made = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
                    tensor.mul_(0.5).add_(0.5 * made)
            return model.eval()(*given)

    def _step(self, model: nn.Module, training: bool) -> dict[str, Any]:
        """What one forward and backward leave behind, by what it is called in a message."""
        model.train(training)
        model.zero_grad()
        given = _pytree.tree_map_only(torch.Tensor, _leaf, self._inputs)
        ours = type(model) is not self._factories[0]
        torch.manual_seed(1)
        try:
            out = model(*given)
        except Exception as error:  # noqa: BLE001
            if not ours:
                raise
            mode = "training" if training else "eval"
            raise self._refusal(f"forward in {mode} mode", error) from error
        outputs = [t for t in _pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
        generator = torch.Generator().manual_seed(2)
        pairs = [
            (tensor, torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
            for tensor in outputs
            if tensor.requires_grad
        ]
        if pairs:
            tensors, weights = zip(*pairs, strict=True)
            try:
                torch.autograd.backward(
                    tensors, [w.to(t.dtype) for w, t in zip(weights, tensors, strict=True)]
                )
            except Exception as error:  # noqa: BLE001
                if ours and training not in self._without_backward:
                    raise self._refusal("backward", error) from error
                self._without_backward.add(training)
        leaves = _tensors(given)
        gradients = {
            "gradients of inputs": [leaf.grad for leaf in leaves],
            "gradients of parameters": {n: p.grad for n, p in model.named_parameters()},
        }
        kept = {
            "the result": _pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, out),
            "requires_grad of the result": [tensor.requires_grad for tensor in outputs],
            "the inputs after forward": [leaf.detach() for leaf in leaves],
            "state_dict() after a step": {
                name: tensor.clone() for name, tensor in model.state_dict().items()
            },
            "attributes after a step": {
                name: value for name, value in plain_state(model).items() if name != "training"
            },
        }
        return kept if training in self._without_backward else kept | gradients

    def _refusal(self, where: str, error: Exception) -> Refusal:
        told = (str(error).strip().splitlines() or ["no message"])[0]
        frames = traceback.extract_tb(error.__traceback__)
        code = next((f.line or "" for f in reversed(frames) if f.name == "forward"), "")
        return Refusal(
            f"{self._path}: the solution would fail at {where}, where the reference does not: "
            f"{type(error).__name__}: {told}{f' at `{code}`' if code else ''}"
        )

    def _same(self, what: str, theirs: Any, ours: Any) -> None:
        left, right = _pytree.tree_flatten(theirs), _pytree.tree_flatten(ours)
        if left[1] != right[1] and _structure(theirs) != _structure(ours):
            self._differs(what, "another structure")
        for (keys, expected), given in zip(
            _pytree.tree_leaves_with_path(theirs), right[0], strict=True
        ):
            name = f"{what}{_pytree.keystr(keys)}"
            if not isinstance(expected, torch.Tensor) or not isinstance(given, torch.Tensor):
                if expected is not given and expected != given:
                    self._differs(name, f"{_shown(given)} instead of {_shown(expected)}")
                continue
            if (expected.shape, expected.dtype) != (given.shape, given.dtype):
                self._differs(
                    name,
                    f"{given.dtype} {tuple(given.shape)} instead of {expected.dtype} "
                    f"{tuple(expected.shape)}",
                )
            self._close(name, expected, given)

    def _close(self, name: str, expected: torch.Tensor, given: torch.Tensor) -> None:
        if not expected.is_floating_point():
            if not torch.equal(expected, given):
                self._differs(name, "other values")
            return
        expected, given = expected.double(), given.double()
        finite = expected.isfinite()
        scale = float(expected[finite].abs().max()) if bool(finite.any()) else 0.0
        bound = self._tolerance * (scale + 1e-3)
        same = (expected == given) | (expected.isnan() & given.isnan())
        wrong = ~(same | ((expected - given).abs() <= bound))
        if bool(wrong.any()):
            place = tuple(wrong.nonzero()[0].tolist())
            self._differs(
                name,
                f"{given[place].item()!r} instead of {expected[place].item()!r} at {place}",
            )

    def _differs(self, what: str, how: str) -> None:
        raise Refusal(f"{self._path}: the solution would differ from the reference: {what}: {how}")


def _shown(value: Any) -> str:
    return "a tensor" if isinstance(value, torch.Tensor) else repr(value)


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone().requires_grad_(tensor.is_floating_point())


def _tensors(nested: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(nested) if isinstance(leaf, torch.Tensor)]


def _small_inputs(program: Program) -> Iterator[list]:
    """Inputs that the reference takes, as small as they can be; of two sizes where forward asks
    for sizes.
    """
    shapes = _shapes(program)
    wanted = 2 if program.watch.sizes else 1
    for dtype in (torch.float64, torch.float32):
        found = 0
        for side in (*_SIDES, None):
            inputs = _made(program, shapes, side, dtype)
            if inputs is None or not _runs(program, inputs, dtype):
                continue
            yield inputs
            found += 1
            if found == wanted:
                return
        if found:
            return
    raise Refusal(
        f"{program.reference.path}: the reference itself runs on no input small enough to prove "
        "its solution with"
    )


def _shapes(program: Program) -> dict:
    """By place, the traced shape of each input that forward reads."""
    found = {}
    for plan in program.plans:
        nodes = itertools.chain.from_iterable(
            item.nodes if hasattr(item, "conv") else [item] for item in plan.items
        )
        for node in nodes:
            for value in node.operands():
                if isinstance(value, Value) and value.kind == "input" and value.shape is not None:
                    found[value.source.argument, value.source.keys] = value.shape
    return found


def _made(program: Program, shapes: dict, side: int | None, dtype: torch.dtype) -> list | None:
    """Inputs with random values: open sizes cut, to `side` or not at all but for the batch."""
    inputs = _traced(program, shapes)
    sizes = _open_sizes([pair for pairs, _ in inputs for pair in pairs], side)
    generator = torch.Generator().manual_seed(3)
    made = []
    for pairs, spec in inputs:
        tensors = []
        for leaf, traced in pairs:
            if not isinstance(leaf, torch.Tensor):
                tensors.append(leaf)
                continue
            given = zip(traced, leaf.shape, strict=True)
            shape = [_size_of(size, sizes, of_leaf) for size, of_leaf in given]
            if torch.Size(shape).numel() > _MOST_ELEMENTS:
                return None
            if leaf.is_floating_point():
                values = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            else:
                values = torch.randint(0, 2, shape, generator=generator).to(leaf.dtype)
            tensors.append(values)
        made.append(_pytree.tree_unflatten(tensors, spec))
    return made


def _traced(program: Program, shapes: dict) -> list[tuple[list, Any]]:
    """Of each input its (leaf, traced shape or None), and how the leaves lie in it."""
    reference = program.reference
    names = list(reference.bound_arguments())
    found = []
    for index, given in enumerate(reference.inputs):
        leaves, spec = _pytree.tree_flatten(given)
        paths = [
            tuple(getattr(key, "idx", getattr(key, "key", None)) for key in keys)
            for keys, _ in _pytree.tree_leaves_with_path(given)
        ]
        name = names[min(index, len(names) - 1)]
        pairs = [
            (leaf, shapes.get((name, keys), tuple(leaf.shape)) if hasattr(leaf, "shape") else None)
            for keys, leaf in zip(paths, leaves, strict=True)
        ]
        found.append((pairs, spec))
    return found


def _open_sizes(pairs: list, side: int | None) -> dict[str, int]:
    """Values for the sizes that the trace leaves open, by their names in it."""
    sizes: dict[str, int] = {}
    for leaf, traced in pairs:
        for axis, size in enumerate(traced or ()):
            if isinstance(size, str) and size not in sizes and size.isidentifier():
                more = len(sizes) if side in (_SIDES[0], None) else 0
                cut = side + more % 2 if side is not None else leaf.shape[axis]
                sizes[size] = _BATCH if axis == 0 and len(traced) > 1 else cut
    return sizes


def _size_of(traced: int | str, sizes: dict[str, int], given: int) -> int:
    """A size that the trace has as a number, a name, or an expression of others' names."""
    if isinstance(traced, int):
        return traced
    names = sizes | {"FloorDiv": floordiv, "Mod": mod, "Max": max, "Min": min}
    try:
        return int(eval(traced, {"__builtins__": {}}, names))
    except (NameError, SyntaxError, TypeError, ArithmeticError):
        return given


def _runs(program: Program, inputs: list, dtype: torch.dtype) -> bool:
    reference = program.reference.namespace
    model = reference["Model"](*reference["get_init_inputs"]()).to(dtype).train()
    with contextlib.suppress(Exception), torch.no_grad():
        model(*_pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, inputs))
        return True
    return False


def _executed(text: str) -> dict:
    namespace: dict = {"__name__": "solution"}
    torch.manual_seed(0)
    exec(compile(text, "<solution>", "exec"), namespace)
    return namespace


def with_formulas(program: Program, text: str) -> dict:
    """The solution's namespace with PyTorch's functions in the place of its operators, so that
    nothing is compiled.
    """
    tree = ast.parse(text)
    tree.body = [node for node in tree.body if not _registers(node)]
    namespace: dict = {"__name__": "solution"}
    torch.manual_seed(0)
    exec(compile(tree, "<solution>", "exec"), namespace)
    namespace["_VOLUME_DEVICES"] = ()  # no operator for whole volumes either
    namespace["_folded_volumes"] = lambda *given: None
    chains = [chain_of(fold) for fold in program.folds.values()]
    namespace["_folded_operator"] = lambda number: _chained(chains[number], False)
    for fused, suffix in kernels_of(program):
        if fused.activation is not None:
            namespace[f"_forward_and_track{suffix}"] = _pooled(namespace[f"_ACTIVATION{suffix}"])
        else:
            has_norm = fused.entry == "conv_group_norm"
            namespace[f"_operator{suffix}"] = _chained(namespace[f"_CHAIN{suffix}"], has_norm)
    return namespace


_REGISTERING = ("_register", "_make_functions", "_make_result_functions")


def _registers(node: ast.stmt) -> bool:
    """Whether a statement builds or registers an operator."""
    called = getattr(getattr(node, "value", None), "func", None)
    name = getattr(called, "id", "")
    return isinstance(node, ast.Assign) and name.startswith(_REGISTERING)


def _convolved(x, weight, bias, stride, padding, output_padding, dilation, groups):
    stride, padding, output_padding, dilation, groups = _make_conv(
        stride, padding, output_padding, dilation, groups
    )
    return nn.functional.conv_transpose2d(
        x, weight, bias, stride, padding, output_padding, groups, dilation
    )


def _chained(chain: tuple, has_norm: bool) -> Callable:
    def operator(*args):
        value, rest = _convolved(*args[:8]), args[8:]
        norm, vectors = (rest[:4], rest[4:]) if has_norm else (None, rest)
        unbatched = value.dim() == 3
        value = value[None] if unbatched else value
        for step in chain:
            value = step.forward(value, vectors)
        if norm is not None:
            num_groups, weight, bias, eps = norm
            value = nn.functional.group_norm(value, num_groups, weight, bias, eps)
        return value[0] if unbatched else value

    return operator


def _pooled(activation: Any) -> Callable:
    def operator(norm, x, weight, bias, conv, pool, group_norm):
        kernel, stride, padding, dilation, ceil_mode = _make_pool(*pool)
        value = activation.forward(norm(_convolved(x, weight, bias, *conv)), ())
        value = nn.functional.max_pool2d(
            value, kernel, stride, padding, dilation, ceil_mode=ceil_mode
        )
        return nn.functional.group_norm(value, *group_norm)

    return operator


def _structure(nested: Any) -> Any:
    """Without the leaves. A named tuple is its name and fields: the solution has a class of its
    own.
    """
    if isinstance(nested, dict):
        return type(nested), [(key, _structure(item)) for key, item in nested.items()]
    if isinstance(nested, tuple | list):
        fields = getattr(nested, "_fields", None)
        kind = type(nested) if fields is None else (type(nested).__name__, fields)
        return kind, [_structure(item) for item in nested]
    return None if isinstance(nested, torch.Tensor) else type(nested)
