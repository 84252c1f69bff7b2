"""Solutions keep the rules of the benchmark's text checker, and our statement of the rules has
teeth.
"""

import ast
import builtins

import pytest

from generator.operator_layer import RUNTIME
from generator.statements import split
from generator.static_rules import findings, violations
from tests.solution_tools import PROBLEMS, REFERENCES, generated, load_text
from tests.sweeps import swept

CLEAN = "_f = load_inline(r'''__global__ void kernel() {}''')\n"
NO_KERNEL = ["missing a CUDA kernel (__global__)", "missing a build (load_inline)"]
SOURCES = [*PROBLEMS, *sorted(REFERENCES.glob("*.py"))]
MANY = swept(SOURCES, range(0, len(SOURCES), 4))


def test_a_clean_text_is_clean():
    assert violations(CLEAN) == []


@pytest.mark.parametrize(
    "bad",
    [
        "try:",
        "except ValueError:",
        "    pass",
        "import threading",
        "from concurrent.futures import x",
        "multiprocessing.Pool(2)",
        "class A(torch.Tensor):",
        "torch.Tensor._make_subclass(x)",
        "torch.cuda.Event = Fake",
        "torch.cuda.synchronize = f",
        "time.perf_counter = f",
        "torch.nn.Linear(2, 2)",
        "y = torch.conv_transpose2d(x)",
        "torch.relu(x)",
        "nn.functional.gelu(x)",
        "F.conv2d(x)",
        "torch.cuda.Stream()",
        "s.wait_stream(t)",
        "__float2half(v)",
        "x.half()",
        "x.to(torch.float16)",
        "x.to(dtype=torch.half)",
        "static_cast<__half>(v)",
    ],
)
def test_every_rule_catches(bad):
    assert len(violations(CLEAN + bad + "\n")) == 1
    assert violations(CLEAN + f"# {bad}\n// {bad}\n") == []


@pytest.mark.parametrize(
    "fine",
    [
        "bypass = passed",
        "torch.nn.Module",
        "import torch.nn as nn",
        "torch.ops.aten.relu(x)",
        "torch.cuda.current_stream()",
    ],
)
def test_no_rule_catches_honest_words(fine):
    assert violations(CLEAN + fine + "\n") == []


WARNED = ["torch.nn.Linear(2, 2)", "torch.relu(x)", "F.conv2d(x)", "torch.cuda.Stream()"]
WARNED += ["x.half()"]
ERRORS = ["try:", "    pass", "import threading", "time.time = f", "class A(torch.Tensor):"]


@pytest.mark.parametrize("bad", WARNED + ERRORS)
def test_errors_and_warnings_are_apart(bad):
    found = findings(CLEAN + bad + "\n", "float32")
    assert (len(found.errors), len(found.warnings)) == ((1, 0) if bad in ERRORS else (0, 1))


def test_narrowing_is_counted_in_float32_alone():
    assert findings(CLEAN + "x.half()\n", "float16").warnings == []


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ("x = 1", ["missing a CUDA kernel (__global__)", "missing a build (load_inline or"]),
        ("x = '__global__'; import torch.utils.cpp_extension", []),
        ("import triton\n", ["missing a Triton kernel"]),
        ("import triton\n@triton.jit\ndef f(): tl.load(0)", []),
        ("import tilelang", ["missing a TileLang kernel"]),
        ("import tilelang\n@T.prim_func", []),
        ("x = 'cute::copy'", []),
    ],
)
def test_a_kernel_of_some_language_is_asked_for(text, errors):
    found = findings(text + "\n", "float32").errors
    assert len(found) == len(errors)
    assert all(told.startswith(error) for told, error in zip(found, errors, strict=True))


@pytest.mark.parametrize("path", PROBLEMS, ids=lambda path: path.stem)
def test_nothing_is_found_in_our_solutions(path):
    found = findings(generated(path), "float32")
    assert found.errors == found.warnings == []


def test_missing_kernels_are_noticed():
    assert violations("x = 1\n") == NO_KERNEL


@pytest.mark.parametrize("path", MANY, ids=lambda path: path.stem)
def test_solutions_keep_every_rule(path):
    assert violations(generated(path)) == []


@pytest.mark.parametrize("path", MANY, ids=lambda path: path.stem)
def test_solutions_share_names_with_the_reference_only_by_meaning_the_same(path):
    """One namespace: what the reference defines keeps its value; all else has a name of our own."""
    reference = load_text(path.read_text())
    shared = {"ModelNew", "CUDA_SOURCE", "CPU_SOURCE", "OPERATOR_SOURCE", "torch", "nn"}
    shared |= {"build_libraries"}
    shared |= {
        f"{p}_{of}_SOURCE"
        for p in ("GRADIENT", "NORM_GRADIENT", "POOL_GRADIENT", "BATCH_NORM", "GROUP_NORM")
        for of in ("CUDA", "OPERATOR")
    }
    shared |= {f"TAIL_{p}{of}_SOURCE" for p in ("", "GRADIENT_") for of in ("CUDA", "OPERATOR")}
    for statement in split(generated(path)):
        for name in statement.defines - shared:
            assert name.startswith("_") or name in reference, name
            if isinstance(statement.node, ast.Assign) and name in reference:
                assert reference[name] == eval(ast.unparse(statement.node.value), dict(reference))


def test_modules_of_the_runtime_share_names_only_where_they_say_the_same():
    """In a solution the last one holds for all. Not asked: those that stand in for others."""
    others = "conv", "chained_", "tensors_", "packed_", "masked_", "generated", "no_norm"
    others += ("pytorch_gradients",)
    texts: dict[str, set[str]] = {}
    for path in sorted(RUNTIME.glob("*.py")):
        if not path.stem.startswith(others):
            for statement in split(path.read_text()):
                for name in statement.defines if not statement.is_import else ():
                    texts.setdefault(name, set()).add(ast.unparse(statement.node))
    assert [name for name, found in texts.items() if len(found) > 1] == []


@pytest.mark.parametrize("path", MANY, ids=lambda path: path.stem)
def test_solutions_use_no_name_that_they_do_not_define(path):
    tree = ast.parse(generated(path))
    defined = set(dir(builtins)) | {"__name__"}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.alias):
            defined.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    assert used <= defined
