"""Which kernel calls of any size take on GPUs that are only described, and what they say of it:
each sentence of kernels_src/reasons.h is some call's.
"""

import pytest

from harness.measure.machine_code_calls import DTYPES
from tests.builds_ahead import VOLUME_ONLY
from tests.cuda_emulator.emulator import AMPERE, TURING
from tests.emulated_tools import needs_cuda_headers
from tests.explain_probe import build, reasons
from tests.test_explain import ON_A_CPU

pytestmark = [needs_cuda_headers, pytest.mark.sweep]  # of four builds
CALLS = {
    "69": "ConvOnlyCall",
    "19": "ConvGroupNormCall",
    "11": "ConvBatchNormPoolGroupNormCall",
}
HALF = {"dtype": DTYPES["float16"]}
DOUBLE = {"dtype": DTYPES["float64"], "math": 1}
STRICT = {"math": 1}
LARGE = {"in_h": 256, "in_w": 256}
ONE_PIXEL = {"in_h": 1, "in_w": 1, "kernel_h": 1, "kernel_w": 1, "padding_h": 0, "padding_w": 0}
ONE_BY_ONE = HALF | {"groups": 64}  # a channel of each to a group


@pytest.fixture(scope="module")
def ask(emulated_solutions, emulated_volumes, tmp_path_factory):
    """ask(name, **changes): what the solution of that problem says of a call."""
    probes = {
        name: build(tmp_path_factory.mktemp(name), emulated_solutions[name].kernels, call)
        for name, call in CALLS.items()
    }
    place = tmp_path_factory.mktemp(VOLUME_ONLY)
    probes[VOLUME_ONLY] = build(place, emulated_volumes.kernels, "ConvOnlyCall", volumes=True)
    return lambda name, **changes: probes[name](**changes)


# The problem, what differs from tests.explain_probe's call, the kernel, and of those that are ruled
# out the reason's name.
CONVOLUTIONS = [
    ({}, "hopper", {}),
    ({"kernel_choice": "portable"}, "portable", {"hopper": "kForced"}),
    ({"kernel_choice": "direct"}, "direct", dict.fromkeys(("hopper", "portable"), "kForced")),
    (
        {"kernel_choice": "plain"},
        "plain",
        dict.fromkeys(("hopper", "portable", "direct"), "kForced"),
    ),
    (DOUBLE, "plain", dict.fromkeys(("hopper", "portable", "direct"), "kFP64")),
    (
        {"in_h": 40000, "in_w": 40000},
        "plain",
        {"hopper": "kNoHopperTile", "portable": "kLongIndices", "direct": "kForFewChannels"},
    ),
    (
        STRICT | {"in_channels": 4, "kernel_h": 1, "kernel_w": 1},
        "direct",
        {"hopper": "kStrictFP32", "portable": "kFewStrictProducts"},
    ),
    ({"groups": 32}, "direct", dict.fromkeys(("hopper", "portable"), "kFewGroupChannels")),
    (
        {"batch": 1, "in_h": 2, "in_w": 2},
        "direct",
        dict.fromkeys(("hopper", "portable"), "kFewProducts"),
    ),
    (ONE_BY_ONE, "direct", dict.fromkeys(("hopper", "portable"), "kMostlyPadding")),
    ({"device": AMPERE}, "portable", {"hopper": "kNotHopper"}),
    (
        {"device": TURING},
        "plain",
        {"hopper": "kNotHopper", "portable": "kNoTensorCores", "direct": "kForFewChannels"},
    ),
    (STRICT, "portable", {"hopper": "kStrictFP32"}),
    (HALF | {"in_channels": 3}, "portable", {"hopper": "kFewInputChannels"}),
    (HALF | {"in_channels": 8, "out_channels": 8}, "portable", {"hopper": "kFewChannels"}),
    ({"stride_w": 3}, "portable", {"hopper": "kColumnsApart"}),
    ({"stride_h": 9, "stride_w": 2}, "portable", {"hopper": "kManyPhases"}),
    (HALF | ONE_PIXEL | {"batch": 2**30 + 1}, "portable", {"hopper": "kLongExtent"}),
    (
        HALF | {"in_h": 1, "kernel_h": 1, "stride_h": 3, "more_h": 2},
        "portable",
        {"hopper": "kNoTaps"},
    ),
    ({"dilation_h": 60, "in_w": 256}, "portable", {"hopper": "kNoHopperTile"}),
    (
        HALF | {"batch": 2**31},
        "plain",
        {"hopper": "kLongExtent", "portable": "kNoPortableTile", "direct": "kForFewChannels"},
    ),
    (
        ONE_BY_ONE | {"stride_h": 9, "kernel_h": 9},
        "plain",
        {"hopper": "kMostlyPadding", "portable": "kMostlyPadding", "direct": "kWideStride"},
    ),
    (
        HALF | {"in_channels": 256, "out_channels": 1, "kernel_h": 15, "kernel_w": 15},
        "plain",
        {"hopper": "kMostlyPadding", "portable": "kMostlyPadding", "direct": "kManyWeights"},
    ),
    (
        ONE_BY_ONE | {"batch": 2**30},
        "plain",
        {"hopper": "kMostlyPadding", "portable": "kMostlyPadding", "direct": "kManyBlocks"},
    ),
]
INTERLEAVED = [  # images, of a library with the interleaved kernel and joined columns
    (
        {"in_channels": 8, "stride_w": 4},
        "direct",
        {"hopper": "kColumnsApart", "portable": "kFewProductsEach"},
    ),
    ({"stride_w": 4}, "portable", {"hopper": "kColumnsApart"}),
    ({"in_channels": 8, "stride_h": 9, "stride_w": 4}, "portable", {"hopper": "kColumnsApart"}),
    (
        {"in_channels": 8, "stride_w": 3},
        "direct",
        dict.fromkeys(("hopper", "portable"), "kFewProductsEach"),
    ),
    ({"stride_w": 3}, "hopper", {}),
    ({"stride_w": 3, "dilation_w": 2}, "portable", {"hopper": "kColumnsApart"}),
    ({"in_channels": 8, "stride_h": 9, "stride_w": 3}, "portable", {"hopper": "kFewProductsEach"}),
]
PAIRED = HALF | {"out_channels": 32, "stride_w": 1}
LONG = [  # samples of over 2^31 values, which the kernel behind such layers cannot index
    (PAIRED, "hopper", {}),
    (PAIRED | {"in_h": 6000, "in_w": 6000}, "hopper", {}),
    (PAIRED | {"in_h": 6000, "in_w": 6000, "stride_w": 2}, "hopper", {}),
]
SLICES = {"slices": 1, "groups": 8, "out_channels": 32}  # of volumes, 8 input channels a group
GROUPED = [
    (SLICES, "direct", dict.fromkeys(("hopper", "portable"), "kFewGroupChannels")),
    (SLICES | HALF, "direct", dict.fromkeys(("hopper", "portable"), "kHalfTiles")),
    (SLICES | HALF | {"groups": 4}, "hopper", {}),
    # What the taps of a strip read does not fit.
    (SLICES | HALF | {"out_channels": 256, "kernel_h": 31}, "hopper", {}),
]
HELD = [
    (LARGE, "held", {}),
    (LARGE | {"together": 0}, "hopper", {"held": "kNotAtOnce"}),
    (LARGE | {"kernel_choice": "hopper"}, "hopper", {"held": "kForced"}),
    (LARGE | {"kernel_choice": "slices"}, "hopper", {"held": "kForced"}),
    (LARGE | {"groups": 2}, "hopper", {"held": "kStridesOrGroups"}),
    (LARGE | {"in_channels": 128}, "hopper", {"held": "kOver64Channels"}),
    (LARGE | {"kernel_w": 64}, "hopper", {"held": "kLongWeightRow"}),
    ({"in_h": 1024, "in_w": 1024}, "hopper", {"held": "kLargeSample"}),
    (
        {"in_w": 4, "dilation_h": 300},
        "portable",
        {"held": "kNoHeldTile", "hopper": "kNoHopperTile"},
    ),
    ({"in_h": 9240, "in_w": 2}, "hopper", {"held": "kIdleProcessors"}),
    (LARGE | {"device": AMPERE}, "portable", dict.fromkeys(("held", "hopper"), "kNotHopper")),
    (LARGE | STRICT, "portable", dict.fromkeys(("held", "hopper"), "kStrictFP32")),
    (
        LARGE | {"in_channels": 8, "out_channels": 8},
        "portable",
        dict.fromkeys(("held", "hopper"), "kFewChannels"),
    ),
    (
        {"batch": 1, "in_h": 2, "in_w": 2},
        "direct",
        dict.fromkeys(("held", "hopper", "portable"), "kFewProducts"),
    ),
    (DOUBLE, "plain", dict.fromkeys(("held", "hopper", "portable", "direct"), "kFP64")),
]
POOLING = "hopper with pooling"
POOLED = [
    ({}, "hopper", {}),
    ({"conv_out": 1}, "", {POOLING: "kComputedBefore"}),  # and no other kernel runs
    ({"pool_kernel": 3}, "hopper", {POOLING: "kOtherWindows"}),
    ({"pool_padding": 1}, "hopper", {POOLING: "kOtherWindows"}),
    ({"in_w": 1, "kernel_w": 1, "padding_w": 0}, "hopper", {POOLING: "kNoWholeWindow"}),
    ({"kernel_choice": "portable"}, "portable", dict.fromkeys((POOLING, "hopper"), "kForced")),
    ({"stride_w": 2}, "hopper", {POOLING: "kNoHopperTile"}),
    ({"device": AMPERE}, "portable", dict.fromkeys((POOLING, "hopper"), "kNotHopper")),
    ({"in_channels": 3}, "portable", dict.fromkeys((POOLING, "hopper"), "kFewInputChannels")),
    (DOUBLE, "plain", dict.fromkeys((POOLING, "hopper", "portable", "direct"), "kFP64")),
]
CASES = [
    (name, *case)
    for name, cases in (
        ("69", CONVOLUTIONS),
        (VOLUME_ONLY, INTERLEAVED),
        (VOLUME_ONLY, GROUPED),
        (VOLUME_ONLY, LONG),
        ("19", HELD),
        ("11", POOLED),
    )
    for case in cases
]
# Of forced kernels that cannot: the problem, the call, the reason.
REFUSALS = [
    ("69", {"kernel_choice": "held"}, "kNoSuchKernel"),
    ("69", {"kernel_choice": "hopper"} | STRICT, "kStrictFP32"),
    ("69", {"kernel_choice": "portable", "device": TURING}, "kNoTensorCores"),
    ("69", {"kernel_choice": "direct", "stride_h": 9}, "kWideStride"),
    ("19", {"kernel_choice": "held", "groups": 2} | LARGE, "kStridesOrGroups"),
    ("19", {"kernel_choice": "held"} | LARGE | DOUBLE, "kFP64"),
    ("11", {"kernel_choice": "hopper", "device": AMPERE}, "kNotHopper"),
]
WAYS = [
    ("19", LARGE, "with GroupNorm"),
    ("19", LARGE | {"kernel_choice": "slices"}, "then GroupNorm, in slices of the batch"),
    ("19", STRICT, "then GroupNorm"),
    ("11", {}, "with pooling, then BatchNorm, activation and GroupNorm"),
    ("11", STRICT, "then BatchNorm, activation, pooling and GroupNorm"),
    ("11", {"conv_out": 1}, "then BatchNorm, activation, pooling and GroupNorm"),
    ("69", {}, ""),
]


def test_every_reason_is_some_calls():
    told = {reason for *_, ruled_out in CASES for reason in ruled_out.values()}
    told |= {reason for *_, reason in REFUSALS}
    assert told | ON_A_CPU == set(reasons())


@pytest.mark.parametrize(("name", "changes", "kernel", "ruled_out"), CASES)
def test_what_runs_and_what_does_not(ask, name, changes, kernel, ruled_out):
    said = ask(name, **changes)
    assert (said["status"], said["failure"], said["kernel"]) == (0, "", kernel)
    known = reasons()
    assert said["ruled_out"] == {other: known[reason] for other, reason in ruled_out.items()}


@pytest.mark.parametrize(("name", "changes", "reason"), REFUSALS)
def test_why_a_forced_kernel_cannot(ask, name, changes, reason):
    said = ask(name, **changes)
    assert (said["status"], said["failure"]) == (-2, reasons()[reason])


@pytest.mark.parametrize(("name", "changes", "way"), WAYS)
def test_the_way_of_a_pattern(ask, name, changes, way):
    assert ask(name, **changes)["way"] == way
