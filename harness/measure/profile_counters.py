"""Which counters a profile reads, and ncu's table of them."""

import csv
import math
import re

from harness.measure.shapes_run import short_name

STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
TIME = "gpu__time_duration.sum"
CLOCK = "gpc__cycles_elapsed.avg.per_second"
ISSUED = "sm__issue_active.avg.pct_of_peak_sustained_elapsed"
TENSOR = "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed"
L1 = "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed"
L1_CYCLES = "l1tex__cycles_elapsed.sum"
SHARED = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
SHARED_LOADS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
SHARED_STORES = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
L2 = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
L2_SECTORS = "lts__t_sectors_srcunit_tex.sum"
L2_HITS = "lts__t_sector_hit_rate.pct"
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
DRAM_READ = "dram__bytes_read.sum"
DRAM_WRITTEN = "dram__bytes_write.sum"
METRICS = (TIME, CLOCK, ISSUED, TENSOR, L1, L1_CYCLES, SHARED, SHARED_LOADS, SHARED_STORES)
METRICS += (CONFLICTS, L2, L2_SECTORS, L2_HITS, DRAM, DRAM_READ, DRAM_WRITTEN)
# Why warps wait is a family of counters that differs from one architecture to the next.
SECTIONS = ("WarpStateStats",)


def read_counters(text: str) -> list[dict]:
    """The kernels of `ncu --csv --page raw --print-units base`, the longest first.

    Each {"kernel": name, "us": microseconds, "counters": {metric: value}}; a counter that this GPU
    does not have, or that is no number, is left out. Empty where the text holds no such table.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID",')), None)
    if start is None:
        return []
    head, _units, *rows = csv.reader(lines[start:])
    found = []
    for row in rows:
        values = dict(zip(head, row, strict=False))
        counters = {name: _number(value) for name, value in values.items() if _wanted(name)}
        counters = {name: value for name, value in counters.items() if value is not None}
        if TIME in counters:
            name = short_name(values["Kernel Name"])
            found.append({"kernel": name, "us": counters[TIME] / 1e3, "counters": counters})
    return sorted(found, key=lambda kernel: -kernel["us"])


def _wanted(name: str) -> bool:
    return name in METRICS or STALL.fullmatch(name) is not None


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None
