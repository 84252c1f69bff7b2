"""BatchNorm in eval mode in the convolution's kernel, built for a CPU: against float64, with what
statistics may be, and its gradients, which come from elsewhere.
"""

import copy
import random

import pytest
import torch

from tests.folded_norm_tools import built_in, inputs, trained

# The largest relative error of a result that is rounded once, and what sums may add.
ROUNDED = {
    torch.float64: (0, 1e-13),
    torch.float32: (0, 3e-6),
    torch.float16: (2**-11, 2e-6),
    torch.bfloat16: (2**-8, 2e-6),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(the reference, the solution, by which calls of it a fold's kernel ran)"""
    with built_in(tmp_path_factory.mktemp("folded")) as made:
        yield made


def pair(built, **options):
    """Of models in eval mode with the same state."""
    reference, solution, ran = built
    theirs = trained(reference["Model"](**options)).eval()
    ours = solution["ModelNew"](**options).eval()
    ours.load_state_dict(theirs.state_dict())
    ran.clear()
    return theirs, ours


def assert_near(given, truth, dtype):
    once, sums = ROUNDED[dtype]
    for ours, exact in zip(given, truth, strict=True):
        assert ours.dtype == dtype and ours.shape == exact.shape and ours.is_contiguous()
        bound = once * exact.abs() + sums * exact.abs().max()
        assert bool(((ours.double() - exact).abs() <= bound).all())


@pytest.mark.parametrize("dtype", ROUNDED)
def test_it_is_rounded_once(built, dtype):
    """Statistics and parameters are read as they are, in 16 bits too."""
    theirs, ours = pair(built)
    theirs, ours = theirs.to(dtype), ours.to(dtype)
    given = [x.to(dtype) for x in inputs()]
    with torch.no_grad():
        truth = copy.deepcopy(theirs).double()(*(x.double() for x in given))
        found = ours(*given)
    assert built[2] == [True] * 3
    assert_near(found, truth, dtype)


@pytest.mark.parametrize("seed", range(3))
def test_random_layers(built, seed):
    rng = random.Random(f"folded {seed}")
    groups, stride = rng.choice((1, 2, 3)), rng.randint(1, 4)
    options = {"channels": groups * rng.randint(1, 5), "out_channels": groups * rng.randint(1, 9)}
    options |= {"kernel": rng.randint(1, 5), "groups": groups, "stride": stride}
    options |= {"output_padding": rng.randrange(stride), "bias": rng.random() < 0.5}
    options["padding"] = rng.randint(0, (options["kernel"] - 1) // 2)
    theirs, ours = pair(built, **options)
    sizes = [tuple(rng.randint(3, 9) for _ in range(count)) for count in (1, 2, 3)]
    given = inputs(rng.randint(1, 3), options["channels"], sizes, seed)
    with torch.no_grad():
        found, truth = ours(*given), theirs.double()(*(x.double() for x in given))
    assert built[2] == [True] * 3, options
    assert_near(found, truth, torch.float32)


@pytest.mark.parametrize(
    ("statistic", "value"),
    [("running_mean", "nan"), ("running_mean", "inf"), ("running_var", "inf")]
    + [("running_var", "nan"), ("running_var", "-1"), ("running_var", "0")],
)
def test_statistics_that_are_no_ordinary_numbers(built, statistic, value):
    theirs, ours = pair(built)
    for model in (theirs, ours):
        for norm in (model.row_norm, model.image_norm, model.volume_norm):
            getattr(norm, statistic)[3] = float(value)
    with torch.no_grad():
        found, wanted = ours(*inputs()), theirs(*inputs())
    assert built[2] == [True] * 3
    for given, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_channels_last_stay_so(built):
    theirs, ours = pair(built)
    x, y, z = inputs()
    y, z = (
        v.contiguous(memory_format=f)
        for v, f in ((y, torch.channels_last), (z, torch.channels_last_3d))
    )
    with torch.no_grad():
        found, wanted = ours(x, y, z), theirs(x, y, z)
    assert built[2] == [True] * 3
    assert found[1].is_contiguous(memory_format=torch.channels_last)
    assert found[2].is_contiguous(memory_format=torch.channels_last_3d)
    for given, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-4)


def test_gradients_in_eval_mode(built):
    """They are wanted, so the convolution and the norm run one after the other: of inputs and of
    every parameter.
    """
    theirs, ours = pair(built)
    found = []
    for model in (theirs.double(), ours.double()):
        given = [x.double().requires_grad_() for x in inputs()]
        sum((out**2).sum() for out in model(*given)).backward()
        found.append([*given, *model.parameters()])
    assert built[2] == [False] * 3
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got.grad, expected.grad, rtol=1e-10, atol=1e-10)


def test_an_empty_batch_and_a_wrong_one(built):
    _, ours = pair(built)
    with torch.no_grad():
        assert [out.shape[0] for out in ours(*inputs(0))] == [0, 0, 0]
        with pytest.raises(RuntimeError):
            ours(*inputs(2, 4))
