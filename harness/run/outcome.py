"""What is asked of an evaluation and what it finds out."""

from dataclasses import dataclass, field
from pathlib import Path

import torch

from harness.measure import timing
from harness.measure.pass_times import PassTimes
from harness.names import BASELINES


@dataclass(frozen=True)
class Options:
    """How to evaluate; the command line's options under their own names."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    tf32: str = "forbid"
    batch: int | None = None
    backward: bool = False
    eval: bool = False
    kernel: str = "auto"  # what TCONV_KERNEL forces, which solutions read themselves
    baselines: tuple[str, ...] = BASELINES
    timeout: float = 600.0
    check_only: bool = False
    build_dir: Path | None = None
    one_size: bool = False
    kernelbench: bool = False  # what KernelBench would not take rejects
    seed: int = 2026


@dataclass
class Outcome:
    """What an evaluation found out; `reasons` is empty for an accepted solution."""

    reasons: list[str] = field(default_factory=list)
    batch: int | None = None
    problem_batch: int | None = None
    shape: list[int] = field(default_factory=list)
    precision: str = ""
    errors: dict = field(default_factory=dict)
    kernelbench: dict | None = None
    constant: list[str] = field(default_factory=list)  # cases to which a constant is an answer
    outputs: str | None = None  # the structure of several, which are joined to one tensor
    measurement: timing.Measurement | None = None
    baselines_not_offered: dict[str, str] = field(default_factory=dict)  # and why
    own_clock_ms: float | None = None
    passes: dict[str, PassTimes] = field(default_factory=dict)  # the parts of a training step
    peak_by_pass: dict[str, int] = field(default_factory=dict)
    roofline: dict | None = None
    other_size: dict | None = None
    non_finite: dict | None = None
    second_instance: dict | None = None
    weights_copied: str = ""  # how entries of the state_dicts were matched
    does_not_drop_in: str | None = None  # why KernelBench would not take an accepted solution
    static_checker: dict[str, list[str]] = field(default_factory=dict)  # errors and warnings
    other_arguments: dict | None = None
    build_s: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    peak_bytes: int | None = None
    reduction_length: int | None = None
    seeds: dict = field(default_factory=dict)
    solution_sha256: str = ""
