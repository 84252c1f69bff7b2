"""References of random graphs: several transposed convolutions of one to three dimensions among
what networks have around them, with branches, joins, layers used twice and two values returned.
"""

import random

import torch
import torch.nn.functional as F
from torch import nn

HEAD = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x):
        {body}


def get_inputs():
    return [torch.randn({shape})]


def get_init_inputs():
    return []
"""
POINTWISE = """
F.relu(V) | torch.tanh(V) | F.leaky_relu(V, 0.2) | F.gelu(V) | torch.sigmoid(V) * V | V.clamp(-1, 1)
V.softmax(1) | V * 0.5 | 2 - V | V + 0.25 | F.silu(V) | F.softplus(V) | V.abs() + 0.5
F.dropout(V, 0.0) | F.hardswish(V) | V / 3 | -V | V * V | V + F.relu(V) | V.detach() * V
V * torch.tanh(F.softplus(V))
"""
LINES = [line.strip() for line in POINTWISE.strip().replace("\n", " | ").split("|")]
MOST_ELEMENTS, STEPS = 20000, (3, 9)


class _Writer:
    """Draws statements and keeps those that PyTorch executes."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.module = nn.Module()  # what `self` is in the texts
        self.names = {"torch": torch, "nn": nn, "F": F, "self": self.module}
        self.init: list[str] = []
        self.body: list[str] = []
        self.values: dict[str, torch.Tensor] = {}
        self.transposed: list[str] = []  # values that a transposed convolution is in
        self.layers: list[str] = []  # transposed convolutions
        self.drawn = 0
        dimensions = self.rng.randint(1, 3)
        sides = [self.rng.randint(4, 7) for _ in range(dimensions)]
        self.shape = [2, self.rng.choice([2, 4, 6]), *sides]
        self.values["x"] = torch.randn(self.shape)

    def write(self) -> str:
        draws = [self._transposed] * 4 + [self._pointwise] * 4 + [self._join] * 3
        draws += [self._norm, self._pool, self._convolution, self._vector, self._again]
        draws += [self._functional] + [self._dimensions] * 3
        self._until_done(self._transposed)
        for _ in range(self.rng.randint(*STEPS)):
            self.rng.choice(draws)()
        last = self.transposed[-1]
        others = [name for name in self.transposed if name != last]
        if others and self.rng.random() < 0.25:
            last += f", {self.rng.choice(others)}"
        self.body.append(f"return {last}")
        shape = ", ".join(map(str, self.shape))
        lines = [part or ["pass"] for part in (self.init, self.body)]
        init, body = ("\n        ".join(part) for part in lines)
        return HEAD.format(init=init, body=body, shape=shape)

    def _until_done(self, draw) -> None:
        while not draw():
            pass

    def _name(self, kind: str) -> str:
        """Of a new attribute."""
        self.drawn += 1
        return f"self.{kind}{self.drawn}"

    def _value(self, least: int = 3, most: int = 5) -> str:
        """A value with so many dimensions, mostly a late one."""
        names = [name for name, v in self.values.items() if least <= v.dim() <= most]
        if not names:
            return "x"
        return names[-1] if self.rng.random() < 0.6 else self.rng.choice(names)

    def _add(self, expression: str, sources: list[str], layers: tuple[str, ...] = ()) -> bool:
        """Whether it could be computed and is small."""
        name = f"v{len(self.values)}"
        try:
            with torch.no_grad():
                for layer in layers:
                    exec(layer, self.names)
                made = eval(expression, self.names, dict(self.values))
        except (RuntimeError, ValueError):
            return False
        if not made.numel() or made.numel() > MOST_ELEMENTS or min(made.shape[2:]) < 2:
            return False
        self.init += layers
        self.body.append(f"{name} = {expression}")
        self.values[name] = made
        if "transpose" in expression or "self.up" in expression:
            self.transposed.append(name)
        elif any(source in self.transposed for source in sources):
            self.transposed.append(name)
        return True

    def _parameters(self, dimensions: int) -> str:
        """kernel, stride, padding, output_padding, dilation as keywords."""
        rng, rows = self.rng, []
        for _ in range(dimensions):
            stride, dilation = rng.choice([1, 1, 2, 2, 3, 4]), rng.choice([1, 1, 1, 2])
            kernel = rng.choice([1, 2, 3, 4, stride, 2 * stride])
            rows.append((kernel, stride, rng.randint(0, 1), rng.randrange(stride), dilation))
        if rng.random() < 0.4:
            rows = [rows[0]] * dimensions
        columns = [list(column) for column in zip(*rows, strict=True)]
        texts = [
            str(c[0]) if len(set(c)) == 1 else f"({', '.join(map(str, c))}{',' * (len(c) == 1)})"
            for c in columns
        ]
        names = ("kernel_size", "stride", "padding", "output_padding", "dilation")
        return ", ".join(f"{name}={text}" for name, text in zip(names, texts, strict=True))

    def _transposed(self) -> bool:
        source = self._value()
        shape, rng = self.values[source].shape, self.rng
        groups = rng.choice([1, 1, 1, 2])
        out_channels = groups * rng.choice([1, 2, 3, 4])
        parameters = self._parameters(len(shape) - 2)
        layer = f"nn.ConvTranspose{len(shape) - 2}d({shape[1]}, {out_channels}, {parameters}"
        layer += f", groups={groups}, bias={rng.random() < 0.6})"
        if rng.random() < 0.15:
            layer = f"nn.utils.parametrizations.weight_norm({layer})"
        name = self._name("up")
        if not self._add(f"{name}({source})", [source], (f"{name} = {layer}",)):
            return False
        self.layers.append(name)
        return True

    def _functional(self) -> bool:
        source = self._value()
        shape, rng = self.values[source].shape, self.rng
        kernel = [rng.randint(1, 3) for _ in shape[2:]]
        size = ", ".join(map(str, [shape[1], rng.randint(1, 4), *kernel]))
        name = self._name("weight")
        call = f"F.conv_transpose{len(shape) - 2}d({source}, {name}, stride={rng.randint(1, 3)})"
        return self._add(call, [source], (f"{name} = nn.Parameter(torch.randn({size}) * 0.3)",))

    def _pointwise(self) -> bool:
        source = self._value()
        return self._add(self.rng.choice(LINES).replace("V", source), [source])

    def _join(self) -> bool:
        first = self._value()
        shape = self.values[first].shape
        alike = [name for name, value in self.values.items() if value.shape == shape]
        second = self.rng.choice(alike)
        form = self.rng.choice(["{} + {}", "{} * {}", "torch.cat([{}, {}], 1)", "{} - 2 * {}"])
        return self._add(form.format(first, second), [first, second])

    def _norm(self) -> bool:
        source = self._value()
        channels, dimensions = self.values[source].shape[1], self.values[source].dim() - 2
        name = self._name("norm")
        groups = next(g for g in (3, 2, 1) if channels % g == 0)
        affine = self.rng.random() < 0.5
        layer = self.rng.choice(
            [
                f"nn.BatchNorm{dimensions}d({channels})",
                f"nn.GroupNorm({groups}, {channels})",
                f"nn.InstanceNorm{dimensions}d({channels}, affine={affine})",
            ]
        )
        return self._add(f"{name}({source})", [source], (f"{name} = {layer}",))

    def _pool(self) -> bool:
        source = self._value()
        dimensions = self.values[source].dim() - 2
        kind = self.rng.choice(["max", "avg"])
        return self._add(f"F.{kind}_pool{dimensions}d({source}, 2)", [source])

    def _convolution(self) -> bool:
        source = self._value()
        channels, dimensions = self.values[source].shape[1], self.values[source].dim() - 2
        name = self._name("conv")
        layer = f"nn.Conv{dimensions}d({channels}, {self.rng.randint(1, 4)}, 3, padding=1)"
        return self._add(f"{name}({source})", [source], (f"{name} = {layer}",))

    def _dimensions(self) -> bool:
        """From two dimensions to one or three, and back; a convolution follows."""
        source = self._value()
        dimensions = self.values[source].dim() - 2
        forms = ["{}.mean(2)", "{}.flatten(2)", "{}.amax(-1)"] if dimensions > 1 else []
        if dimensions < 3:
            kept = ", -1" * dimensions
            forms.append(f"{{}}.unsqueeze(2).expand(-1, -1, 2{kept})")
        return self._add(self.rng.choice(forms).format(source), [source]) and self._transposed()

    def _vector(self) -> bool:
        source = self._value()
        channels, dimensions = self.values[source].shape[1], self.values[source].dim() - 2
        name = self._name("vector")
        size = ", ".join(map(str, [channels, *[1] * dimensions]))
        form = self.rng.choice(["{} + {}", "{} * {}", "torch.minimum({}, {})"])
        read = name
        if self.rng.random() < 0.4:
            ones = ", 1" * dimensions
            views = f"{name}.view(1, -1{ones})", f"{name}.reshape(-1{ones})"
            views += (f"{name}[:{', None' * dimensions}]",)
            size, read = str(channels), self.rng.choice(views)
        parameter = f"{name} = nn.Parameter(torch.randn({size}))"
        return self._add(form.format(source, read), [source], (parameter,))

    def _again(self) -> bool:
        """A transposed convolution that is there, on another value."""
        source = self._value()
        return self._add(f"{self.rng.choice(self.layers)}({source})", [source])


def random_model(seed: int) -> str:
    """The text of a reference file."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return _Writer(seed).write()
