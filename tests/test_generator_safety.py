"""References that do more than compute: their solution does the same, or they are refused."""

import re

import pytest
import torch

from generator.__main__ import main
from generator.emit import generate, solution_text
from generator.errors import Refusal
from generator.program import read_program
from generator.prove import with_formulas
from generator.static_rules import rejections, violations
from tests.sweeps import swept
from tests.test_generator import write_reference


def reference_with(folder, body, init="self.other = None", top="", extra="", decorator=""):
    """A reference with statements at module level and a decorator of forward."""
    path = write_reference(folder, body, init, extra)
    text = path.read_text().replace("\n\nclass Model", f"\n{top}\n\nclass Model", 1)
    path.write_text(text.replace("    def forward", f"    {decorator}\n    def forward"))
    return path


BUFFER = "self.register_buffer('n', torch.zeros(()))"
# Proved by generate: outputs, gradients, what is kept, in both modes.
RIGHT = {
    "dtypes of the input": {
        "body": "y = self.conv(x)\n"
        "to = torch.linspace(-1, 1, 3, device=x.device, dtype=x.dtype).to(y)\n"
        "return y[..., :3] * to + torch.linspace(0, 1, 3) + y.new_ones(3, dtype=torch.float32)"
    },
    "a layer that makes tensors": {
        "body": "return self.other(self.conv(x).flatten(2).mT)[0]",
        "init": "self.other = nn.LSTM(8, 3, batch_first=True)",
    },
    "methods of the class": {
        "body": "return self.twice(self.half(self.conv(x)))",
        "decorator": "@staticmethod\n    def half(v, by=2):\n        return v / by\n\n"
        "    @classmethod\n    def twice(cls, v):\n        return cls.half(v, 0.5) + 1\n\n",
    },
    "no_grad on forward": {"body": "return self.conv(x).relu()", "decorator": "@torch.no_grad()"},
    "no_grad inside": {
        "body": "with torch.no_grad():\n    y = self.conv(x)\nreturn y.tanh() * self.weight"
    },
    "enable_grad in no_grad": {
        "body": "with torch.no_grad():\n    y = x * 2\n    with torch.enable_grad():\n"
        "        y = self.conv(y)\n    z = y.detach() + 1\nreturn y * z"
    },
    "autocast inside": {
        "body": "with torch.autocast(x.device.type, torch.bfloat16, enabled=False):\n"
        "    y = self.conv(x)\nreturn y.tanh()"
    },
    "buffer in forward": {"body": "self.n.add_(1)\nreturn self.conv(x) * self.n", "init": BUFFER},
    "buffer between": {
        "body": "y = self.conv(x)\nself.n.add_(1)\nreturn y * self.n",
        "init": "self.register_buffer('n', torch.ones(8, 1, 1))",
    },
    "buffer anew": {"body": "self.n = self.n + 1\nreturn self.conv(x) * self.n", "init": BUFFER},
    "default dtype": {
        "body": "return self.conv(x) * torch.ones(8, 1, 1)",
        "top": "torch.set_default_dtype(torch.float64)",
    },
    "entry of a dictionary": {
        "body": "return self.conv(x) * cfg['o']",
        "top": "cfg = {'o': 5}\ncfg['o'] = 6",
    },
    "item of a list": {
        "body": "return self.conv(x) * self.k",
        "init": "self.k = dims[-1]",
        "top": "dims = [5]\ndims.append(6)",
    },
    "infinite bounds": {
        "body": "return self.conv(x).clamp(*self.b)",
        "init": "self.b = (-float('inf'), 0.5)",
    },
    "numpy": {
        "body": "return self.conv(x) * self.k + np.float32(0.5)",
        "init": "self.k = np.float64(2.5)",
        "top": "import numpy as np",
    },
    "keys": {
        "body": "return self.convs['a-b'](x)",
        "init": "self.convs = nn.ModuleDict({'a-b': nn.ConvTranspose2d(4, 2, 3)})",
    },
    "another dtype": {
        "body": "return self.conv(x) * self.s",
        "init": "self.register_buffer('s', torch.tensor(3))",
    },
    "global tensor": {"body": "return self.conv(x) * SCALE", "top": "SCALE = torch.rand(8, 1, 1)"},
    "tensor in a list": {
        "body": "return self.conv(x) * self.t[0]",
        "init": "self.t = [torch.full((8, 1, 1), 3.0)]",
    },
    "inherited": {"body": "return self.base(x)", "top": "class Base(nn.Module):\n    K = 3\n"},
    "keyword": {"body": "return self.conv(x) * k", "extra": ", *, k=2"},
    "several arguments": {"body": "return self.conv(xs[0])", "extra": ", *xs"},
    "sizes": {"body": "y = self.conv(x)\nreturn y.view(y.size(0), -1) / x.numel() * len(x)"},
    "size decides": {"body": "y = self.conv(x)\nreturn y * 2 if x.shape[2] > 4 else -y"},
    "named result": {"body": "return torch.max(self.conv(x), 1)"},
    "dtype and device": {
        "body": "return self.conv(x) * torch.ones(8, 1, 1, device=x.device).to(x.dtype)"
    },
    "view written to": {"body": "y = self.conv(x)\nz = y.view(y.size(0), -1)\nz.relu_()\nreturn y"},
    "item": {"body": "return self.conv(x) * x.mean().item()"},
    "function kept": {"body": "return self.act(self.conv(x))", "init": "self.act = torch.abs"},
    "own seed": {
        "body": "return self.conv(x) * self.z",
        "init": "torch.manual_seed(3)\n        self.z = nn.Parameter(torch.randn(8, 1, 1))",
    },
    "annotations": {"body": "return self.conv(x)", "extra": ": Optional[torch.Tensor]"},
}


@pytest.mark.parametrize("name", swept(RIGHT, range(0, len(RIGHT), 3)))
def test_the_solution_does_the_same(name, tmp_path):
    parts = RIGHT[name]
    path = reference_with(tmp_path, **parts)
    text = path.read_text()
    if name == "inherited":
        text = text.replace("class Model(nn.Module)", "class Model(Base)")
        text = text.replace("self.base(x)", "self.conv(x) * self.K")
    if name == "several arguments":
        text = text.replace("self, x, *xs", "self, *xs")
    if name == "annotations":
        text = f"from __future__ import annotations\n{text}"
    path.write_text(text)
    before = torch.get_default_dtype()
    assert "_operator(" in generate(path, tmp_path / "solution.py")
    assert torch.get_default_dtype() is before


INDENTED = "return torch.relu(self.conv(x)) * 2"


@pytest.mark.parametrize("how", ["tabs", "two spaces", "BOM", "CRLF", "name", "long name"])
def test_the_shape_of_the_text_does_not_matter(how, tmp_path):
    path = reference_with(tmp_path, INDENTED, decorator="# Umlaute: äöü")
    lines = path.read_text().split("\n")
    depths = [(len(line) - len(line.lstrip())) // 4 for line in lines]
    if how == "tabs":
        lines = ["\t" * d + line.lstrip() for d, line in zip(depths, lines, strict=True)]
    elif how == "two spaces":
        lines = ["  " * d + line.lstrip() for d, line in zip(depths, lines, strict=True)]
    text = "\n".join(lines)
    if how == "name":
        path = tmp_path / "größer – よ.py"
    elif how == "long name":
        path = tmp_path / f"{'long' * 55}.py"
    if how == "CRLF":
        text = text.replace("\n", "\r\n")
    path.write_bytes((b"\xef\xbb\xbf" if how == "BOM" else b"") + text.encode())
    made = generate(path, tmp_path / "solution.py")
    (slug,) = re.findall(r"^_SLUG = '(\w+)'$", made, re.MULTILINE)
    assert slug.isascii() and len(slug) <= 60


CONSTRUCTED = """self.cfg = {"scale": scale}
        self.act = nn.ReLU() if act == "relu" else nn.Tanh()
        self.layers = nn.Sequential(*(nn.ConvTranspose2d(4, 4, 3) for _ in range(depth)))
        self.extra = nn.Conv2d(4, 4, 1) if extra else None
        self.left = nn.Softmax(1) if act == "relu" else nn.Softmin(1)"""
OTHERS = {
    "number": ({"scale": 3.0}, "cfg = {'scale': 2.0}"),
    "class": ({"act": "tanh"}, "ReLU as act, the model has a Tanh"),
    "length": ({"depth": 3}, r"len\(layers\) = 2, the model has 3"),
    "more": ({"extra": True}, "extra = None"),
}


def constructed(folder):
    path = write_reference(
        folder,
        "y = self.act(self.layers(x)) * self.cfg['scale']\n"
        "if self.extra is not None:\n    y = self.extra(y)\nreturn self.left(y)",
        CONSTRUCTED,
    )
    arguments = "self, scale=2.0, act='relu', depth=2, extra=False"
    path.write_text(path.read_text().replace("__init__(self)", f"__init__({arguments})"))
    program = read_program(path)
    return program, with_formulas(program, solution_text(program, folder / "solution.py"))


@pytest.mark.parametrize("name", OTHERS)
def test_other_arguments_are_refused_at_construction_and_changes_at_the_call(name, tmp_path):
    _, solution = constructed(tmp_path)
    arguments, message = OTHERS[name]
    with pytest.raises(ValueError, match=message):
        solution["ModelNew"](**arguments)
    model = solution["ModelNew"]()
    model(torch.rand(2, 4, 5, 5))
    model.cfg["scale"] = 5
    with pytest.raises(ValueError, match="'scale': 5"):
        model(torch.rand(2, 4, 5, 5))


def test_layers_of_another_size_and_kind_compute_what_they_are(tmp_path):
    """A layer that forward calls may be any; sizes may differ where none was compiled in."""
    program, solution = constructed(tmp_path)
    ours, theirs = solution["ModelNew"](), program.reference.namespace["Model"]()
    for model in (ours, theirs):
        torch.manual_seed(1)
        model.layers[0] = torch.nn.ConvTranspose2d(7, 4, 5, stride=3)
        model.left = torch.nn.Hardshrink()
    ours.load_state_dict(theirs.state_dict())
    x = torch.rand(3, 7, 4, 6)
    torch.testing.assert_close(ours(x), theirs(x))


def test_a_layer_that_is_gone_is_named_at_construction(tmp_path):
    path = write_reference(
        tmp_path,
        "y = self.conv(x)\nreturn self.head(y) if self.head is not None else y",
        "self.head = nn.Conv2d(8, 2, 1) if head else None",
    )
    path.write_text(path.read_text().replace("__init__(self)", "__init__(self, head=True)"))
    program = read_program(path)
    solution = with_formulas(program, solution_text(program, tmp_path / "solution.py"))
    with pytest.raises(ValueError, match="the layer head, the model has None"):
        solution["ModelNew"](head=False)


def test_sizes_that_were_compiled_in_are_compared(tmp_path):
    path = write_reference(tmp_path, "y = self.conv(x)\nreturn y * x.size(1) * y.size(1)")
    program = read_program(path)
    solution = with_formulas(program, solution_text(program, tmp_path / "solution.py"))
    model = solution["ModelNew"]()
    reference = program.reference.namespace["Model"]()
    reference.load_state_dict(model.state_dict())
    for shape in ((2, 4, 5, 5), (3, 4, 7, 2)):
        x = torch.rand(shape)
        torch.testing.assert_close(model(x), reference(x))
    with pytest.raises(ValueError, match=r"x.dim\(\) = 4, the model has 3"):
        model(torch.rand(4, 5, 5))


def test_a_reference_that_differs_from_run_to_run_is_refused(tmp_path):
    path = reference_with(
        tmp_path,
        "return self.conv(x) * self.k",
        "self.k = next(counted)",
        top="import itertools\n\ncounted = itertools.count(1)",
    )
    with pytest.raises(Refusal, match="would (differ|fail)"):
        generate(path, tmp_path / "solution.py")


def test_text_that_a_checker_takes_for_cheating_is_refused(tmp_path):
    path = write_reference(
        tmp_path,
        "return self.conv(x)",
        "try:\n            self.k = 1\n        finally:\n            self.l = 2",
    )
    with pytest.raises(Refusal, match="checker takes for cheating.*try:"):
        generate(path, tmp_path / "solution.py")


def test_of_complex_numbers_the_file_says_that_no_kernel_is_ours(tmp_path):
    path = write_reference(
        tmp_path,
        "weight = torch.complex(self.up.weight, self.up.weight)\n"
        "return nn.functional.conv_transpose2d(torch.complex(x, x), weight).abs()",
        "self.up = nn.ConvTranspose2d(4, 2, 3)",
    )
    text = generate(path, tmp_path / "solution.py")
    assert "no kernel of ours, everything is left to PyTorch" in text.partition("\n")[0]
    assert "CUDA_SOURCE" not in text
    assert "the kernels compute no torch.complex64" in text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return self.conv(x) * len(x)", r"x.size\(0\) = 2, the model has 3"),
        ("return sum(self.conv(row) for row in x)", r"x.size\(0\) = 2, the model has 3"),
        ("y = self.conv(x)\nreturn y * 2 if x.shape[0] < 3 else -y", r"x.size\(0\)"),
    ],
)
def test_a_batch_that_was_compiled_in_is_compared(body, message, tmp_path):
    program = read_program(write_reference(tmp_path, body))
    solution = with_formulas(program, solution_text(program, tmp_path / "solution.py"))
    model = solution["ModelNew"]()
    model(torch.rand(2, 4, 5, 5))
    with pytest.raises(ValueError, match=message):
        model(torch.rand(3, 4, 5, 5))


def test_of_what_the_checker_warns_the_generator_tells(tmp_path, capsys):
    """It does not reject it: a function of torch.nn kept as a constant."""
    path = write_reference(
        tmp_path,
        "return self.kept['relu'](self.conv(x))",
        "self.kept = {'relu': F.relu}",
    )
    output = tmp_path / "solution.py"
    assert main([str(path), "-o", str(output)]) == 0
    told = capsys.readouterr().err
    assert told.startswith("KernelBench's checker warns, and does not reject, of a torch.nn func")
    assert rejections(output.read_text()) == [] and "ConvTranspose2d -> relu" in output.read_text()


@pytest.mark.parametrize(
    "line",
    [
        "import torch, torch.nn as nn, torch.nn.functional as F",
        "import torch, torch.nn as nn; import torch.nn.functional as F, math",
    ],
)
def test_several_imports_in_a_line(line, tmp_path):
    path = write_reference(
        tmp_path,
        "import math as m, torch.nn.functional as G\nreturn G.relu(F.elu(self.conv(x))) * m.pi",
    )
    text = path.read_text()
    first, last = "import torch\n", "import torch.nn.functional as F\n"
    begin, end = text.index(first), text.index(last) + len(last)
    path.write_text(text[:begin] + line + "\n" + text[end:])
    made = generate(path, tmp_path / "solution.py")
    assert violations(made) == [] and "torch.nn.functional as" not in made


def test_statements_in_a_line_are_executed_once(tmp_path):
    """In their order, with what stands around semicolons."""
    top = (
        'k = [1.0]\nk.append(2.0); m = "é"; k.append(3.0)  # why\nn = (2 if k else\n     5); p = 7;'
    )
    path = reference_with(
        tmp_path,
        "return self.conv(x) * self.k + n * p + self.a * self.b",
        "self.k = sum(k) * len(m); self.l = k",
        top,
        decorator="a = (1.5 +\n      1); b = 2.5\n",
    )
    text = generate(path, tmp_path / "solution.py")
    assert text.count("\n    b = 2.5\n") == text.count("a = (1.5") == 1
    lines = [line for line in text.splitlines() if line[:1] in ("k", "m", "n", "p", " ")]
    at = lines.index("k = [1.0]")
    wanted = ["k = [1.0]", "k.append(2.0)", 'm = "é"', "k.append(3.0)  # why", "n = (2 if k else"]
    assert lines[at : at + 7] == [*wanted, "     5)", "p = 7"]


def test_words_of_a_reference_that_do_nothing_do_not_keep_it_out(tmp_path):
    """`pass`, and docstrings in which the checker would find it, or what else it looks for."""
    top = (
        'class Helper(nn.Module):\n    """A low-pass filter.\n\n    try: it\n    """\n\n'
        '    def __init__(self):\n        """First pass."""\n        super().__init__()\n'
        "        for i in range(2):\n            pass\n\n"
        '    def forward(self, x):\n        """Forward pass."""\n        return x * 0.5\n\n\n'
        "class Empty(nn.Module): pass\n"
    )
    init = "self.helper = Helper(); self.empty = Empty()"
    path = reference_with(tmp_path, "return self.helper(self.conv(x))", init, top)
    text = generate(path, tmp_path / "solution.py")
    assert violations(text) == [] and "class Empty(nn.Module): ..." in text
    kept = path.read_text().replace("A low-pass filter", "Unusual")
    path.write_text(kept.replace("try: it", "kept"))
    assert "Unusual" in generate(path, tmp_path / "solution.py")
