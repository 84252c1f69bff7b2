"""The Hopper kernel's plan, without a GPU: every output is computed once, every tap reads the right
pixel of the line, the ring holds what is read for as long as it is read, and shared memory
suffices, for every cut that the plan allows of many random cases.
"""

import pytest

from tests.hopper_plan_checks import check
from tests.hopper_plan_probe import HEADERS, SHAPES, PlanCase, build_probe, random_plan_cases
from tests.solution_tools import ROOT
from tests.sweeps import swept


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    return build_probe(tmp_path_factory.mktemp("plan"))


@pytest.fixture(scope="module")
def probe_ahead(tmp_path_factory):
    return build_probe(tmp_path_factory.mktemp("plan"), ahead=True)


def check_all(probe, cases) -> dict[str, int]:
    """Checks every plan and cut of these; how many of each kind there were."""
    names = "pooled stacked single strips resident streamed wrapping twin ahead".split()
    kinds = dict.fromkeys([*names, "side by side"], 0)
    for case, (plan, pooled, cuts) in zip(cases, probe(cases), strict=True):
        for one in (plan, pooled, *cuts):
            if not one.usable:
                continue
            try:
                check(one, case)
            except AssertionError as error:
                raise AssertionError(f"{case}: {vars(one)}") from error
            kinds["pooled"] += one.pooled
            kinds["stacked"] += one.line_samples > 1
            kinds["side by side"] += one.ring_ic_blocks > 1
            kinds["twin"] += one.twin
            kinds["single"] += one.mirror_pixels == 0
            # A ring of so many windows, of which none wraps.
            windows = one.ring_units / one.window_units if one.mirror_pixels == 0 else 1
            assert windows in (1, 2, 3)
            kinds["ahead"] += windows > 1
            kinds["strips"] += one.num_strips > 1
            kinds["resident"] += one.resident_weights
            kinds["streamed"] += 1 - one.resident_weights
            kinds["wrapping"] += one.mirror_pixels > 0 and one.num_tiles > 4
    return kinds


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_known_layers(probe, shape):
    case = PlanCase(shape)
    assert probe([case])[0][0].usable
    check_all(probe, [case])


@pytest.mark.parametrize("seed", swept(range(4), ()))
def test_random_plan_cases(probe, seed):
    kinds = check_all(probe, random_plan_cases(60, seed))
    assert kinds.pop("ahead") == 0
    assert min(kinds.values()) >= 10, kinds  # the cases reach every kind of plan


@pytest.mark.parametrize("seed", swept(range(4), (0,)))
def test_random_plan_cases_that_load_ahead(probe_ahead, seed):
    kinds = check_all(probe_ahead, random_plan_cases(30, seed))
    assert min(kinds.values()) >= 5, kinds


@pytest.mark.parametrize(("size", "share"), [(7, 0.7), (14, 0.75)])
def test_small_images_fill_tiles(probe, size, share):
    """Most pixels of the tiles are outputs."""
    plan = probe([PlanCase((512, 128, 128, 1, (size, size), (3, 3), (1, 1), (1, 1), (1, 1)))])[0][0]
    tiles = -(-512 // plan.line_samples) * plan.num_tiles
    assert 512 * size * size >= share * tiles * plan.tile_pixels


def test_the_cheapest_cut_is_taken(probe):
    compared = 0
    for plan, pooled, cuts in probe(random_plan_cases(60, 11)):
        for best, is_pooled in ((plan, 0), (pooled, 1)):
            # Narrow images are not cut into strips.
            others = [
                cut.cost
                for cut in cuts
                if cut.pooled == is_pooled and cut.tile_w == max(f.count_w for f in cut.phases)
            ]
            assert best.usable or not others
            assert not others or best.cost <= min(others)
            compared += len(others) > 1
    assert compared >= 30


# Each a mistake in the headers that the checks above must see.
MISTAKES = {
    "pitch too small": ("round_up(pitch < 8 ? 8 : pitch, kVectorPixels)", "tile_pitch(pitch)"),
    "left zeros not shared": ("right > left ? right", "right > left + 8 ? right"),
    "reach without columns": ("beyond_h) * plan.pitch + beyond_w;", "beyond_h) * plan.pitch;"),
    "reach of the last phase only": ("raise(beyond_h, rows);", "beyond_h = rows;"),
    "first phase's place for all": ("= phase.row_shift * plan.pitch", "= 0 * plan.pitch"),
    "windows given back too early": (
        "plan.last_tapped_phase = plan.num_phases - 1;",
        "plan.last_tapped_phase = 0;",
    ),
    "twins of other strides": ("p.stride_w != 2 || p.out_w < 2", "p.out_w < 2"),
    "twins of one column": ("p.stride_w != 2 || p.out_w < 2", "p.stride_w != 2"),
    "steps over a lap": ("* plan.ring_ic_blocks < shape.producer_warps", "< 0"),
    "turns with shared stages": (
        "blocks_per_sweep == shape.consumers &&",
        "blocks_per_sweep > 0 &&",
    ),
    "windows aligned to units": ("plan.reach + kUnitPixels - 1", "plan.reach"),
    "mirror too short": ("single ? 0 : round_up(n, kBatchPixels)", "single ? 0 : n / 64 * 32"),
    "store buffers forgotten": ("smem_limit - store_bytes - kBarrierBytes", "smem_limit"),
    "half pairs of rows": (
        "n / (2 * plan.pitch) * (2 * plan.pitch)",
        "n / plan.pitch * plan.pitch",
    ),
    "last tile missing": (
        "plan.num_tiles = ceil_div(longest, plan.tile_pixels)",
        "plan.num_tiles = ceil_div(longest, plan.tile_pixels) - (longest > plan.tile_pixels)",
    ),
    "places of one line too few": (
        "plan.total_tiles = static_cast<int>(lines * line_tiles);",
        "plan.total_tiles = static_cast<int>(lines * line_tiles) - line_tiles;",
    ),
    "chunks without tiles": (
        "consider(tiles, round_up(plan.num_tiles, tiles), 1.0);",
        "consider(tiles, round_up(plan.num_tiles, tiles) + tiles, 1.0);",
    ),
    "two batches without registers": ("return !shape.wide || sixteen_bit", "return true"),
    "images too close": (
        "raise(plan.image_rows, max_h);",
        "plan.image_rows = max_h > 1 ? max_h - 1 : 1;",
    ),
    "taps of the next image": (
        "plan.image_rows = below + plan.row_offset;",
        "plan.image_rows = below + 2 * plan.row_offset;",
    ),
    "taps the wrong way": ("h.offset_first - (h.tap_count - 1)", "h.offset_first - (h.tap_count)"),
}


@pytest.mark.parametrize("name", swept(MISTAKES, (0, 7, 14)))
def test_the_checks_can_fail(tmp_path, name):
    right, wrong = MISTAKES[name]
    texts = [(ROOT / "kernels_src" / "cuda" / header).read_text() for header in HEADERS]
    assert sum(text.count(right) for text in texts) == 1
    helper = "inline int tile_pitch(int pitch) { return pitch < 12 ? 8 : (pitch - 4) / 4 * 4; }\n"
    begin = "inline Plan plan_geometry"
    probe = build_probe(
        tmp_path, lambda text: text.replace(right, wrong).replace(begin, helper + begin, 1)
    )
    one_column = PlanCase((1, 64, 64, 1, (3, 1), (1, 1), (2, 2), (0, 0), (1, 1)))
    with pytest.raises(AssertionError):
        check_all(probe, [one_column, *random_plan_cases(60, 0)])


def test_too_many_phases_are_refused(probe):
    plan = probe([PlanCase((1, 64, 64, 1, (8, 8), (5, 5), (5, 5), (0, 0), (1, 1)))])[0][0]
    assert not plan.usable and "phases" in plan.reason


def test_columns_two_apart_are_stored_together(probe):
    """Also where only one phase of four has a tap; not where three output channels share a tile."""
    for shape in (
        (32, 128, 64, 1, (64, 64), (3, 3), (2, 2), (1, 1), (1, 1)),
        (16, 64, 64, 1, (128, 128), (1, 1), (2, 2), (0, 0), (1, 1)),
    ):
        assert probe([PlanCase(shape)])[0][0].twin
    few = (64, 64, 3, 1, (128, 128), (4, 4), (2, 2), (1, 1), (1, 1))
    assert not probe([PlanCase(few)])[0][0].twin


def test_warpgroups_take_turns_with_weights_of_their_own(probe):
    """1/69 and 2/11: two blocks of output channels. 2/19's weights are resident."""
    (p69, _, _), (_, p11, _), (p19, _, _), (p65, _, _) = probe(
        [PlanCase(SHAPES[i]) for i in (1, 2, 3, 0)]
    )
    assert [plan.alternate for plan in (p69, p11, p19, p65)] == [1, 1, 0, 0]
