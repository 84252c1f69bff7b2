"""What watches a GPU and its clocks, exercised without one."""

import contextlib
import math
import os
import platform
import subprocess
import sys
import time

import pytest
import torch

from harness import devices
from harness.errors import Rejected
from harness.judge import blame, check, keeper, truth
from harness.measure import clock, own_clock
from harness.measure.device_memory import DeviceMemory
from harness.measure.quiet import QuietProbe

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
GIB = 1 << 30


@pytest.fixture
def gpu_memory(monkeypatch):
    """Free bytes of a device, and bytes reserved in this process; both can be set."""
    state = {"free": 100 * GIB, "reserved": 0}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (state["free"], 140 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: state["reserved"])
    return state


def test_device_memory_that_is_not_the_harnesss_own_is_the_solutions(gpu_memory):
    memory = DeviceMemory(CUDA)
    gpu_memory |= {"free": 60 * GIB, "reserved": 40 * GIB}
    assert memory.held() == 0
    memory.blame()
    gpu_memory["free"] = 5 * GIB
    assert memory.held() == 55 * GIB
    memory.require_room()
    with pytest.raises(Rejected, match="out_of_memory: .* hold 56320 MiB of the device's memory"):
        memory.blame()
    gpu_memory |= {"free": 5 * GIB, "reserved": 4 * GIB}
    with pytest.raises(Rejected, match="out_of_memory"):
        memory.require_room()


def test_on_the_cpu_no_device_memory_is_watched():
    memory = DeviceMemory(CPU)
    memory.require_room()
    memory.blame()
    QuietProbe(CPU).require_quiet()


def probe(alone: float, *later: float) -> QuietProbe:
    made = QuietProbe(CPU)
    made.device, made.alone_ms = CUDA, alone
    times = list(later)
    made.milliseconds = lambda: times.pop(0) if len(times) > 1 else times[0]
    return made


def test_a_shared_gpu_is_not_quiet_and_one_slow_try_is_no_proof(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    probe(30.0, 31.0).require_quiet()
    probe(30.0, 70.0, 60.0, 33.0).require_quiet()
    for busy in (60.0, math.nan):
        with pytest.raises(Rejected, match="background_work: the GPU works on"):
            probe(30.0, busy).require_quiet()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "device_error"),
        (RuntimeError("CUDA error: device-side assert triggered"), "device_error"),
        (RuntimeError("CUDA error: out of memory"), "out_of_memory"),
        (torch.cuda.OutOfMemoryError("CUDA out of memory."), "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (SystemExit(0), "exit"),
        (ValueError("made for one size"), "runtime_error"),
    ],
)
def test_exceptions_are_called_by_their_cause(error, code):
    with pytest.raises(blame.Failure) as caught, blame.blamed("runtime_error"):
        raise error
    assert caught.value.code == code


def test_a_copy_is_of_plain_tensors_and_a_sample_of_finite_elements():
    output = torch.arange(24.0).reshape(2, 3, 4).transpose(0, 2)
    copy = clock.copied(output)
    output[0, 0, 0] = 99.0
    assert copy[0, 0, 0] == 0.0 and clock.copied((1,)) == (1,)
    flat = output.reshape(-1).tolist()
    assert clock.sampled(output, [0, 5, 23]) == [flat[0], flat[5], flat[23]]
    output[0, 0, 0] = math.nan
    assert clock.sampled(output, [0, 1]) == [None, flat[1]]
    assert clock.sampled(output, [24]) == [None] and clock.sampled("no tensor", [0]) == [None]


class Event:
    """Stands in for torch.cuda.Event, and notes when it is recorded."""

    notes: list = []

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.notes.append("event")

    def elapsed_time(self, other):
        return 1.0


def test_the_kept_output_is_what_the_stream_had_when_the_calls_last_event_was_queued(monkeypatch):
    """Work on another stream is done by the time everything is waited for, but not before."""
    late = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(clock, "_wait", lambda: [out.fill_(1.0) for out in late])
    monkeypatch.setattr(clock, "_spin", lambda cycles: Event.notes.append("spin"))
    stopwatch = clock.Stopwatch(CPU)
    stopwatch.device, stopwatch._flush = CUDA, torch.zeros(1)
    stopwatch._spin_cycles_per_s = 1e9

    def call(x):
        Event.notes.append("call")
        late.append(torch.zeros(3))
        return late[-1]

    times, kept = stopwatch.slice(call, lambda scale: [scale], [0.5, 0.6, 0.7], keep=1)
    assert times == [1.0] * 3 and Event.notes == ["event", "call", "event"] * 3
    assert kept.tolist() == [0.0] * 3 and late[1].tolist() == [1.0] * 3
    del Event.notes[:]
    assert stopwatch.slice(call, lambda scale: [scale], [0.5])[1] is None
    # Now it knows how long the host takes, and gives it a head start.
    assert Event.notes == ["spin", "event", "call", "event"]


class Sampled:
    """Answers bursts with given milliseconds and the elements of factor * base."""

    def __init__(self, milliseconds, base, wrong_at=None):
        self.left, self.base, self.wrong_at = list(milliseconds), base, wrong_at

    def burst(self, factors, count, indices):
        took = self.left.pop(0)
        values = self.base * factors[(count - 1) % 2] * (0.5 if took == self.wrong_at else 1.0)
        return took, clock.sampled(values, indices)


@pytest.mark.parametrize("wrong_at", [None, 9.0, 4.0])
def test_the_elements_of_the_burst_that_counts_are_the_last_calls(wrong_at):
    base = torch.linspace(1.0, 2.0, 500)
    looks = []
    candidate = Sampled([9.0, 8.0, 4.0, 6.0, 5.0], base, wrong_at)
    best = own_clock.OwnClock(candidate, base.numel()).settle(4.0, lambda *told: looks.append(told))
    assert best.milliseconds == 4.0 and len(looks) == 1 and len(best.indices) == 64
    own = base * best.factor
    answer = truth.Expected(own.double(), own, {}, {})
    if wrong_at == 4.0:  # the others do not count
        with pytest.raises(Rejected, match="wrong_when_timed: element"):
            check.require_sample(best.sample, best.indices, answer, "float32", 9)
    else:
        check.require_sample(best.sample, best.indices, answer, "float32", 9)
    with pytest.raises(Rejected, match="wrong_when_timed"):
        check.require_sample([None] * 64, best.indices, answer, "float32", 9)


def test_a_busy_machine_gets_further_bursts_and_a_slow_solution_no_better_clock(monkeypatch):
    monkeypatch.setattr(own_clock, "_BURST_PAUSE_S", 0.001)
    base = torch.ones(10)
    busy = Sampled([50.0, 60.0, 40.0, *[30.0] * 20, 1.5], base)
    assert own_clock.OwnClock(busy, 10).settle(1.0, lambda *told: None).milliseconds == 1.5
    monkeypatch.setattr(own_clock, "_PATIENCE_S", 0.2)
    slow = Sampled([50.0] * 10_000, base)
    assert own_clock.OwnClock(slow, 10).settle(1.0, lambda *told: None).milliseconds == 50.0


def test_a_machine_that_becomes_busy_after_the_rounds_blames_no_solution():
    """Bursts between the rounds saw what the reported times saw."""
    clock_of_rounds = own_clock.OwnClock(Sampled([9.0, 1.5, *[50.0] * 10], torch.ones(10)), 10)
    clock_of_rounds.tick()
    clock_of_rounds.tick()
    assert clock_of_rounds.settle(1.0, lambda *told: None).milliseconds == 1.5


def test_a_process_whose_main_thread_has_ended_is_not_gone():
    """Another thread may still be in the GPU's driver, with its memory."""
    work = "import threading, time, ctypes; threading.Thread(target=time.sleep, args=[60]).start()"
    work += "; ctypes.CDLL(None).syscall(60, 0)"  # exit of this thread alone
    if platform.machine() != "x86_64":
        pytest.skip("the number of a system call is that of x86-64")
    with subprocess.Popen([sys.executable, "-c", work], env={"EVALUATION_NONCE": "x1"}) as process:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            fields = keeper._stat(process.pid)
            if fields and fields[0] == b"Z":
                break
            time.sleep(0.02)
        assert fields[0] == b"Z" and int(fields[17]) > 1
        assert process.pid in keeper.family(os.getpid(), "")
        process.kill()
    assert process.pid not in keeper.family(os.getpid(), "")


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H200", "nvidia-h200"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100"),
        ("NVIDIA A100-SXM4-80GB", "nvidia-a100-sxm4"),
        ("NVIDIA GeForce RTX 4090", "nvidia-geforce-rtx-4090"),
    ],
)
def test_a_folder_is_named_after_the_gpu_without_its_memory(name, slug):
    assert devices.slug_of(name) == slug
