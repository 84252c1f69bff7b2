"""Numbers in the text of README.md and docs/ are those of the records, or of the code.

Rendered tables are compared by `python -m harness.report --check`. Here: every number with a unit
that stands in the text lies in a fragment of FACTS, which is made anew from its source.
"""

import json
import re

import pytest

from harness import host_time
from harness.judge import bounds
from harness.measure import clock
from harness.measure import profile_counters as counters
from harness.report import doubts, page_tables
from harness.run import evaluate
from tests.page_tools import PAGES, prose
from tests.solution_tools import ROOT

UNIT = re.compile(
    r"(?<![\w.])\d[\d.,]*\s?(?:ms|µs|s|GB/s|TB/s|TFLOP/s|GiB|MiB|GB|MB|GHz|×|%|products)(?![\w])"
)
RESULTS = ROOT / "results"
PROFILE = json.loads((RESULTS / "nvidia-h200" / "profile.json").read_text())["profiles"]


def record(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())


def median(name: str) -> str:
    return f"{record(name)['ms']['solution']['median']:.3g} ms"


def counted(name: str, *problems: str, form: str = "{:.0f} %", scale: float = 1) -> list[str]:
    """A counter of the longest kernel of each profile of some problems, in the record's order."""
    found = [p for p in PROFILE if p["problem"] in problems]
    return [form.format(p["kernels"][0]["counters"][name] * scale) for p in found]


def ends(values: list[str]) -> tuple[str, str]:
    """The least and the largest."""
    ordered = sorted(values, key=lambda value: float(value.split()[0]))
    return ordered[0], ordered[-1]


def shares(folder: str) -> tuple[str, str]:
    found = [json.loads(path.read_text()) for path in (RESULTS / folder).glob("?_*.json")]
    return ends([f"{100 * page_tables.floor_share(one):.0f} %" for one in found])


def constant(name: str) -> str:
    """A number of the kernels' sources, as its text."""
    found = {
        match
        for path in (ROOT / "kernels_src").rglob("*.*h")
        for match in re.findall(rf"\b{name} = ([^;,\"]+)[;,]", path.read_text())
    }
    assert len(found) == 1, (name, found)
    return found.pop()


def facts() -> dict[str, list[str]]:
    """By page, fragments of its text as their sources say them."""
    l1 = ends(counted(counters.L1, "1/65", "1/69"))
    tensor = ends(counted(counters.TENSOR, "1/65", "1/69"))
    clocks = ends(counted(counters.CLOCK, "1/65", "1/69", form="{:.2f} GHz", scale=1e-9))
    held = counted(counters.TENSOR, "2/19"), counted(counters.DRAM, "2/19")
    read, written = (
        counted(name, "2/19", form="{:.3g} GB", scale=1e-9)[0]
        for name in (counters.DRAM_READ, counters.DRAM_WRITTEN)
    )
    portable = shares("nvidia-h200-portable")
    built = record("nvidia-h200-backward/2_19")
    factor = f"{bounds.OWN_ERROR_FACTOR:g} × PyTorch's own"
    few = int(constant("kFewProducts").split("<<")[1])
    least = constant("kLeastStrictProducts")
    packed = re.search(r"\{(\d+)\} << 20", constant("kMostPackedBytes"))[1]
    spare = re.search(r"\{(\d+)\} << 20", constant("kSpareBytes"))[1]
    share = int(constant("kSpareShare"))
    return {
        "README.md": [
            f"{built['build_s']:.0f} s with CUDA on {built['versions']['cpu_threads']} cores",
        ],
        "docs/kernels.md": [
            f"nearest to a peak, {l1[0]} to {l1[1]}; the tensor cores follow with {tensor[0]} to "
            f"{tensor[1]}",
            f"{clocks[0].removesuffix(' GHz')} to {clocks[1]} under this load",
            f"the tensor cores work {' and '.join(held[0])} of the time, "
            f"DRAM {' and '.join(held[1])}",
            f"reads {read} and writes {written}",
            f"{median('nvidia-h200-parts/2_11_convolution')} of the {median('nvidia-h200/2_11')}",
            f"reaches {portable[0]} to {portable[1]} of the floor",
            f"fewer than {least} products an output",
            f"at most 2^{few} products",
            f"at most {constant('kMostProducts')} products an output",
            "2 × 2",
        ],
        "docs/gradients.md": [
            f"stays below {packed} MiB",
            f"a spare workspace of {spare} MiB, or {100 / share:g} %",
            f"at most 2^{few} products",
        ],
        "docs/precision.md": [
            f"at most 2^{few} products",
            f"fewer than {least} products an output",
        ],
        "docs/measuring.md": [
            f"max(b, {factor} relative error)",
            f"max(2 b max|ref|, {factor} largest error)",
            f"{factor} error)",
            f"about {evaluate._CPU_EAGER_SECONDS:g} s;",
            f"a write of {clock._COLD_FLUSH_BYTES >> 20} MiB",
            f"median of {host_time._CALLS} calls",
            f"above {doubts.SHARE_LIMIT:.0%}".replace("%", " %"),
            f"above {doubts.SPREAD_LIMIT:.0%}".replace("%", " %"),
            "FLOPs are 2 × N",
        ],
        "docs/results.md": ["none may be below 0.8×"],  # tests/test_harness_shapes.py
    }


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


FACTS = facts()
MEASURED = [page for page in PAGES if page.name != "family.md"]  # which counts operators: 2 × mean


@pytest.mark.parametrize("page", MEASURED, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_number_with_a_unit_has_its_source(page):
    text = flat(prose(page))
    fragments = FACTS.get(str(page.relative_to(ROOT)), [])
    assert [fragment for fragment in fragments if fragment not in text] == []
    known = [m.span() for f in fragments for m in re.finditer(re.escape(f), text)]
    unknown = [
        text[max(0, match.start() - 60) : match.end()]
        for match in UNIT.finditer(text)
        if not any(begin <= match.start() and match.end() <= end for begin, end in known)
    ]
    assert unknown == []


def test_the_ranges_of_fp16_containers_are_the_kernels():
    """docs/precision.md in words, kernels_src/ in numbers."""
    assert float(constant("kInputScale").removesuffix("f")) == 2**8
    assert constant("kSmallestExact") == "0x1p-22f"
    assert constant("kSmall") == "0x1p-12f * kInputScale"
    assert constant("kFewGroupChannels") == "8" and constant("kMinUsefulFraction") == "1.0 / 32"
    assert constant("kMaxPhases") == "16"


def test_the_table_of_roundoffs_is_the_bounds():
    rows = re.findall(
        r"^\| (fp\S+|bf16)([^|]*) \| (\S+) \| (\S+) \| (\S+) \|$",
        (ROOT / "docs" / "measuring.md").read_text(),
        re.MULTILINE,
    )
    names = {"fp32, TF32 forbidden": "float32", "fp32, TF32 allowed (CUDA)": "tf32"}
    names |= {"fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
    told = {names[a + b]: tuple(_power(value) for value in rest) for a, b, *rest in rows}
    known = {n: (p.operand, p.output, p.accumulate) for n, p in bounds.PRECISIONS.items()}
    assert told == known


def _power(text: str) -> float:
    base, _, exponent = text.partition("^")
    return float(base) ** int(exponent) if exponent else float(base)
