"""What compilers, exporters and tracers make of a solution, and what runs it without data."""

import copy
import subprocess
import sys

import pytest
import torch
import torch._dynamo.testing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from tests.pytorch_tools import (
    MODE_IDS,
    MODES,
    assert_same,
    assert_same_state,
    gradients,
    input_of,
    pair_of,
)
from tests.solution_tools import load_text
from tests.sweeps import swept

modes = pytest.mark.parametrize(("name", "training"), MODES, ids=MODE_IDS)


@pytest.mark.sweep
def test_compile_max_autotune(shelf):
    model, new = pair_of(shelf, "19", dtype=torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(new, mode="max-autotune")
    x = input_of("19", torch.float32)
    with torch.no_grad():
        assert_same(compiled(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "training"), swept(MODES, (1, 3), names=2), ids=MODE_IDS)
def test_compile_dynamic_makes_one_graph(shelf, name, training):
    """Batch, height and width symbolic from the first call on."""
    model, new = pair_of(shelf, name, training)
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("eager")
    compiled = torch.compile(new, dynamic=True, fullgraph=True, backend=counter)
    x = input_of(name, batch=4).repeat(1, 1, 2, 2)  # no size that is a number of channels, too
    parts = x[:3], x, x[:3, :, :, :-1], x[:3, :, 1:]
    for part in (part.clone() for part in parts):  # a view and its base would make two graphs
        assert_same(compiled(part), model(part))
    assert counter.frame_count == 1
    assert_same_state(new, model)


def test_a_compiled_training_step(shelf):
    """A whole step, loss and optimizer included, with the model compiled in between."""
    model, new = pair_of(shelf, "19")
    torch._dynamo.reset()
    for candidate, call in ((model, model), (new, torch.compile(new, backend="aot_eager"))):
        optimizer = torch.optim.SGD(candidate.parameters(), lr=1e-3)
        call(input_of("19")).square().mean().backward()
        optimizer.step()
    assert_same_state(new, model)


LOAD = """
import sys, torch
namespace = {"__name__": "solution"}
exec(compile(open(sys.argv[1]).read(), "<solution>", "exec"), namespace)
program = torch.export.load(sys.argv[2])
x = torch.load(sys.argv[3])
with torch.no_grad():
    torch.save([program.module()(x[:2]), program.module()(x)], sys.argv[4])
"""


@modes
def test_exported_programs_have_the_operator(shelf, name, training):
    model, new = pair_of(shelf, name, training)
    x = input_of(name, batch=4)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(new, (x[:2],), dynamic_shapes=({0: batch},))
    assert_same(program.module()(x), model(x))
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert sum("tconv_" in target for target in targets) == 1, targets


@pytest.mark.parametrize("name", ["11"])
def test_export_and_load_in_a_fresh_process(shelf, name, tmp_path):
    """Where the solution's file has been executed, under whatever file name."""
    model, new = pair_of(shelf, name, training=False)
    x = input_of(name, batch=4)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(new, (x[:2],), dynamic_shapes=({0: batch},))
    solution, saved, inputs, outputs = (str(tmp_path / n) for n in ("s.py", "p.pt2", "x", "y"))
    (tmp_path / "s.py").write_text(shelf[name].text)
    torch.export.save(program, saved)
    torch.save(x, inputs)
    with shelf.build_folder():
        command = [sys.executable, "-c", LOAD, solution, saved, inputs, outputs]
        run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr[-1500:]
    first, second = torch.load(outputs)
    assert_same(first, model(x[:2]).detach())
    assert_same(second, model(x).detach())


@modes
def test_trace(shelf, name, training):
    """torch.jit.trace, on other values and another batch; a trace's gradients; saved and loaded."""
    model, new = pair_of(shelf, name, training)
    copies = copy.deepcopy(model), copy.deepcopy(new)
    x = input_of(name)
    traced = torch.jit.trace(copies[1], (x,), check_trace=False)
    state = copy.deepcopy(model.state_dict())
    copies[0].load_state_dict(state), copies[1].load_state_dict(state)  # as before the tracing call
    other = input_of(name, batch=3, seed=4)
    assert_same(traced(other), copies[0](other))
    assert_same(gradients(traced, other), gradients(copies[0], other))
    assert_same_state(traced, copies[0])


@modes
def test_a_saved_trace(shelf, name, training, tmp_path):
    model, new = pair_of(shelf, name, training)
    made = load_text(shelf[name].text)["ModelNew"](*shelf[name].reference["get_init_inputs"]())
    made.double().train(training).load_state_dict(new.state_dict())
    x = input_of(name)
    traced = torch.jit.trace(made, (x,), check_trace=False)
    model(x)  # as the tracing call
    traced.save(tmp_path / "traced.pt")
    loaded = torch.jit.load(tmp_path / "traced.pt")
    other = input_of(name, seed=4)
    assert_same(loaded(other), model(other))
    assert_same_state(loaded, model)


def test_script_refuses(shelf):
    """torch.jit.script reads Python's source, which a solution executed from a string has not."""
    with pytest.raises((RuntimeError, OSError)):
        torch.jit.script(shelf["65"].pair()[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@modes
def test_fake_tensors(shelf, name, training, dtype):
    """Shapes, dtypes and devices without data, forward and backward; no statistics move."""
    model, new = pair_of(shelf, name, training, dtype)
    before = copy.deepcopy(new.state_dict())
    seen = []
    for candidate in (model, new):
        mode = FakeTensorMode()
        fake = {k: mode.from_tensor(v) for k, v in candidate.state_dict().items()}
        x = mode.from_tensor(input_of(name, dtype)).requires_grad_()
        with mode:
            y = torch.func.functional_call(candidate, fake, (x,))
            (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
            seen.append([(t.shape, t.dtype, t.device) for t in (y, grad)])
    assert seen[0] == seen[1]
    assert all(torch.equal(before[key], value) for key, value in new.state_dict().items())


@modes
def test_meta_device(shelf, name, training):
    """A model built under torch.device("meta") answers shapes; to_empty makes it a real one."""
    seen = []
    for kind in ("reference", "solution"):
        namespace = getattr(shelf[name], kind)
        with torch.device("meta"):
            made = namespace["Model" if kind == "reference" else "ModelNew"](
                *shelf[name].reference["get_init_inputs"]()
            )
        y = made.train(training)(input_of(name, torch.float32).to("meta"))
        seen.append((y.shape, y.dtype, y.device.type))
    assert seen[0] == seen[1] and seen[0][2] == "meta"
    model, _ = pair_of(shelf, name, training)
    made = made.to_empty(device="cpu").double()
    made.load_state_dict(model.state_dict())
    assert_same(made(input_of(name)), model(input_of(name)))


@modes
def test_flop_counter(shelf, name, training):
    """The forward's count is PyTorch's; backward adds what it recomputes of the convolution."""
    counts = []
    for candidate in pair_of(shelf, name, training, torch.float32):
        x = input_of(name, torch.float32).requires_grad_()
        with FlopCounterMode(display=False) as forward:
            y = candidate(x)
        with FlopCounterMode(display=False) as backward:
            y.square().sum().backward()
        counts.append((forward.get_total_flops(), backward.get_total_flops()))
    (forward, backward), (our_forward, our_backward) = counts
    assert our_forward == forward > 0
    assert backward <= our_backward <= backward + forward


def test_flop_counter_of_a_compiled_model(shelf):
    """What compilers see of the operator is counted too, once."""
    model, new = pair_of(shelf, "19", dtype=torch.float32)
    torch._dynamo.reset()
    counts = []
    for call in (model, torch.compile(new, backend="aot_eager")):
        with torch.no_grad():
            call(input_of("19", torch.float32))
            with FlopCounterMode(display=False) as counter:
                call(input_of("19", torch.float32))
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0
