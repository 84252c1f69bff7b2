"""The one way anything is timed here, used by the harness for baselines and by the worker.

CUDA: device events around each call, the L2 cache flushed before it, all calls of a slice queued
behind a kernel that only waits, half as long again as the host took to queue so many calls before:
on either side of a comparison the time is the device's, also where a call is shorter than its
launch.
CPU: time.perf_counter around each call, after a pause in which the other process comes to rest.

A cold call is timed otherwise, as benchmark suites do it: alone, on a GPU that has nothing else to
do, so that what the host takes to launch it is part of its time.
"""

import contextlib
import ctypes
import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence

import torch

_CPU_PAUSE_S = 0.02
_COLD_FLUSH_BYTES = 256 << 20  # what KernelBench writes before each call of its own clock
_MAX_HEAD_START_S = 0.25  # the first slice compiles, which says nothing of the next
# Bound before any solution could put something else in its place; None in a build without CUDA.
_wait = getattr(torch._C, "_cuda_synchronize", None)
_spin = getattr(torch._C, "_cuda_sleep", None)  # so many cycles of the device
_now = time.perf_counter
_reset_l2 = None  # the driver's cuCtxResetPersistingL2Cache; None without a driver
with contextlib.suppress(OSError, AttributeError):
    _reset_l2 = ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache


class Stopwatch:
    """Times calls on one device, each on an input written just before it."""

    def __init__(self, device: torch.device):
        self.device = device
        self._flush = None
        self._queueing_s = 0.0  # what the host takes for a call, from the last slice
        if device.type == "cuda":
            cache_bytes = torch.cuda.get_device_properties(device).L2_cache_size
            size = 2 * max(cache_bytes, 16 << 20)
            self._flush = torch.empty(size, dtype=torch.int8, device=device)
            self._spin_cycles_per_s = self._measured_spin()

    def _measured_spin(self) -> float:
        """Cycles that the device spins in a second: its clock is no fixed number."""
        cycles = 4_000_000
        with torch.cuda.device(self.device):
            for _ in range(2):  # the first launch is slower
                synchronize(self.device)
                began = _now()
                _spin(cycles)
                synchronize(self.device)
        return cycles / (_now() - began)  # by this clock: a solution may tell anything of events

    def slice(
        self,
        call: Callable,
        prepare: Callable[[float], list],
        scales: Sequence[float],
        keep: int | None = None,
    ):
        """Time one call for each scale.

        `prepare(scale)` makes the arguments off the clock, `call(*arguments)` is timed. Returns
        the times in milliseconds and the result of call `keep`, None without. On CUDA that is a
        copy, queued right behind the call's last event: what another stream has not finished by
        then is missing in it.
        """
        if self.device.type == "cuda":
            return self._slice_cuda(call, prepare, scales, keep)
        return self._slice_cpu(call, prepare, scales, keep)

    def _slice_cpu(self, call, prepare, scales, keep):
        times, kept, result, arguments = [], None, None, None
        settle(self.device)
        for index, scale in enumerate(scales):
            # Freed first, so that every call finds the allocator in the same state.
            result = arguments = None
            arguments = prepare(scale)
            begin = time.perf_counter()
            result = call(*arguments)
            times.append((time.perf_counter() - begin) * 1e3)
            if index == keep:
                kept = result
        return times, kept

    def _slice_cuda(self, call, prepare, scales, keep):
        events, kept, result, arguments = [], None, None, None
        with torch.cuda.device(self.device):
            reset_persisting_l2()
            head_start = min(1.5 * self._queueing_s * len(scales), _MAX_HEAD_START_S)
            if head_start > 0:
                _spin(int(head_start * self._spin_cycles_per_s))
            began = time.perf_counter()
            for index, scale in enumerate(scales):
                result = arguments = None
                arguments = prepare(scale)
                begin = torch.cuda.Event(enable_timing=True)
                end = torch.cuda.Event(enable_timing=True)
                self._flush.zero_()
                begin.record()
                result = call(*arguments)
                end.record()
                events.append((begin, end))
                if index == keep:
                    kept = copied(result)
            self._queueing_s = (time.perf_counter() - began) / len(scales)
            synchronize(self.device)
        return [begin.elapsed_time(end) for begin, end in events], kept

    def cold(
        self,
        call: Callable,
        prepare: Callable[[float], list],
        scales: Sequence[float],
        keep: int | None = None,
    ):
        """Time one cold call with gradients enabled for each scale; otherwise as `slice`.

        On CUDA, as KernelBench's clock: wait until the device has nothing to do, queue a flush of
        the caches, an event, the call, an event, and wait. The device may be through with the flush
        before the call's first kernel arrives; it then waits on the clock.
        """
        with torch.enable_grad():  # outside of what is timed
            if self.device.type == "cuda":
                return self._cold_cuda(call, prepare, scales, keep)
            return self._slice_cpu(call, prepare, scales, keep)

    def _cold_cuda(self, call, prepare, scales, keep):
        times, kept, result, arguments = [], None, None, None
        with torch.cuda.device(self.device):
            reset_persisting_l2()
            flush = torch.empty(_COLD_FLUSH_BYTES // 8, dtype=torch.int64, device=self.device)
            for index, scale in enumerate(scales):
                result = arguments = None
                arguments = prepare(scale)
                begin = torch.cuda.Event(enable_timing=True)
                end = torch.cuda.Event(enable_timing=True)
                synchronize(self.device)
                flush.fill_(index)
                begin.record()
                result = call(*arguments)
                end.record()
                if index == keep:
                    kept = copied(result)
                synchronize(self.device)
                times.append(begin.elapsed_time(end))
        return times, kept


def reset_persisting_l2() -> None:
    """Make ordinary lines of those that earlier work has L2 keep: writing twice its size does not
    drive them out. It takes effect at once, so that it can be done before a slice alone.
    """
    if _reset_l2 is not None:
        _reset_l2()  # its status: where nothing can persist there is nothing to reset


def settle(device: torch.device) -> None:
    """On the CPU, let the other process's idle threads spin, which they do for milliseconds."""
    if device.type == "cpu":
        time.sleep(_CPU_PAUSE_S)


def synchronize(device: torch.device) -> None:
    """Wait for the device's queued work; nothing to do on the CPU."""
    if device.type == "cuda":
        torch.cuda.init()
        with torch.cuda.device(device):
            _wait()


def release_memory(device: torch.device) -> None:
    """Give cached device memory back, so that the other process can have it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def copied(output):
    """A copy of a plain tensor, or of a list of them, made on the current stream alone; anything
    else as it is.
    """
    if type(output) is list:
        return [copied(value) for value in output]
    return output.detach().clone() if type(output) is torch.Tensor else output


def sampled(output, indices: list[int]) -> list[float | None]:
    """Elements of a plain tensor by flat index; None for what is not finite, or not there.

    Reading them waits for the stream that the output was made on, whatever else has been patched.
    """
    if type(output) is not torch.Tensor or output.numel() <= max(indices):
        return [None for _ in indices]
    at = torch.tensor(indices, device=output.device)
    values = torch.take(output.detach(), at).double().tolist()
    return [value if math.isfinite(value) else None for value in values]


def scaled(arguments: Sequence, scale: float) -> list:
    """Fresh arguments: every floating-point tensor multiplied by `scale`, the rest unchanged.

    Harness and worker both call this, on the same device type, so both get the same bits.
    """
    return [
        value * scale if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for value in arguments
    ]


def forward_call(model) -> Callable:
    """What is timed for the forward pass: the model under no_grad."""

    def call(*arguments):
        with torch.no_grad():
            return model(*arguments)

    return call


def training_call(model, grad_output: torch.Tensor) -> Callable:
    """Forward and backward, as one call."""

    def call(*arguments):
        output = model(*arguments)
        output.backward(grad_output)
        return output.detach()

    return call


def training_prepare(model, base: Sequence) -> Callable[[float], list]:
    """Arguments for `training_call`: fresh leaves; the parameters' gradients are cleared."""

    def prepare(scale: float) -> list:
        for parameter in model.parameters():
            parameter.grad = None
        arguments = scaled(base, scale)
        return [
            value.detach().requires_grad_(True)
            if isinstance(value, torch.Tensor) and value.is_floating_point()
            else value
            for value in arguments
        ]

    return prepare


def summarize(times: Sequence[float]) -> dict:
    """Median and inter-quartile range, in the unit of `times`."""
    if len(times) < 2:
        return {"median": times[0], "iqr": 0.0}
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return {"median": median, "iqr": high - low}
