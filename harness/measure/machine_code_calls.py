"""What a solution's call at a record's problem launches, found out without a GPU.

The solution's host code runs in a program of its own (machine_code_driver.h) on a device that is
only described, with addresses that are only made up.
"""

import hashlib
import math
import struct
import subprocess
from pathlib import Path

import torch
from torch import nn

from generator.errors import Refusal
from generator.program import program_of
from generator.reference import load_reference
from harness.errors import UsageError
from harness.measure.machine_code_build import Built

# By cudaDeviceAttr's numbers: compute capability, processors, shared memory of a processor, of a
# block, kept by the runtime, and bytes of L2.
_HOPPER = {75: 9, 76: 0, 16: 132, 81: 233472, 97: 232448, 111: 1024}
DEVICES = {
    "nvidia-h100": {**_HOPPER, 38: 50 << 20},
    "nvidia-h200": {**_HOPPER, 38: 60 << 20},
}
# As kernels_src/common.h numbers them, and conv_group_norm_passes.cuh the last.
DTYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}
KERNELS = {
    "auto": 0,
    "plain": 1,
    "portable": 2,
    "hopper": 3,
    "direct": 4,
    "held": 5,
    "slices": 7,
}
_TF32, _STRICT = 0, 1
_FILLS = (0x00, 0xFF)
_AXES = ((0, "h"), (1, "w"))
_WORD = struct.Struct("<Q")
# machine_code_driver.h: the first of its buffers' addresses, and how far apart they are.
_BUFFERS, _APART, _ALIGNMENT = 0x5AA5 << 48, 1 << 40, 256


def launches(built: Built, record: dict, reference: Path) -> list[str]:
    """One line for each kernel and each memset of one call, in order; of a record of many shapes
    those of each shape under its name.

    A kernel is named by the head of its code's SHA-256, its arguments by that of theirs; of
    addresses counts which buffer they point into and how they are aligned, not where. Of shapes of
    one or three dimensions there are none: Python makes calls of two dimensions of them.

    Raises UsageError for a record of a device, dtype or problem that cannot be described, and for a
    solution whose host code asks for what machine_code_runtime.cpp does not have.
    """
    if any(len(entry["input_shape"]) != 4 for entry in record.get("shapes", ())):
        return []
    device = _device(record["device"])
    try:
        loaded = load_reference(reference)
        (fused,) = program_of(loaded).kernels.values()
    except Refusal as refusal:
        raise UsageError(f"the call of {reference} is not known: {refusal}") from None
    except ValueError:
        raise UsageError(f"{reference} is not one call of one kernel") from None
    vectors = len(fused.vectors)
    if "shapes" not in record:
        if "input_shape" not in record:
            record = {**record, "input_shape": _input_shape(reference)}
        return trace_call(built, device, _told(_fields(loaded.model, vectors, record)))
    lines = []
    for entry in record["shapes"]:
        with torch.device("meta"):
            model = type(loaded.model)(*entry["arguments"])
        call = {**record, **entry}
        if record.get("backward"):  # an entry then names all kernels that took long
            call["kernel"] = "auto"
        told = _told(_fields(model, vectors, call))
        lines += [f"shape {entry['name']}", *trace_call(built, device, told)]
    return lines


def _input_shape(reference: Path) -> list[int]:
    """That of the problem's own input, without making one."""
    namespace: dict = {"__name__": "reference"}
    with torch.device("meta"):
        exec(compile(reference.read_text(), str(reference), "exec"), namespace)
        return list(namespace["get_inputs"]()[0].shape)


def _told(fields: dict) -> list[str]:
    return [f"set {name} {value}" for name, value in fields.items()]


def trace_call(built: Built, device: dict[int, int], told: list[str]) -> list[str]:
    """The same, of a call whose fields are told as lines."""
    lines = [f"device {attribute} {value}" for attribute, value in device.items()]
    for kernel in built.cubin.kernels:
        sizes = " ".join(map(str, kernel.parameters))
        lines.append(f"kernel {kernel.name} {len(kernel.parameters)} {sizes}")
    given = "\n".join([*lines, *told, ""])
    first, second = (_run(built.driver, byte, given) for byte in _FILLS)
    if len(first) != len(second):
        raise UsageError("a call's launches depend on memory that nobody wrote")
    digests = {kernel.name: kernel.digest for kernel in built.cubin.kernels}
    return [_line(*pair, digests) for pair in zip(first, second, strict=True)]


def _run(driver: Path, byte: int, given: str) -> list[list[str]]:
    """The words of each line that the driver prints, without the status."""
    done = subprocess.run([driver, str(byte)], input=given, capture_output=True, text=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    if done.returncode or not lines:
        why = done.stderr.strip() or f"exit status {done.returncode}"
        raise UsageError(f"a call cannot be followed without a GPU: {why}")
    *lines, (_, status) = lines
    if status != "0":
        raise UsageError(f"the call fails with status {status}, so it launches nothing to compare")
    return lines


def _line(words: list[str], others: list[str], digests: dict[str, str]) -> str:
    """One launch in words; `others` are those of the same launch over another stack."""
    if words[0] == "memset":
        return f"memset value {words[1]} bytes {words[2]}"
    name, grid, block, shared = words[1], words[2:5], words[5:8], words[8]
    end = 10 + 2 * int(words[9])
    attributes = "".join(
        f" attribute {number} {value.removeprefix('0x').rstrip('0') or '0'}"
        for number, value in zip(words[10:end:2], words[11:end:2], strict=True)
    )
    if words[: end + 1] != others[: end + 1]:
        raise UsageError(f"how {name} is launched depends on memory that nobody wrote")
    arguments = [
        _argument(bytes.fromhex(one[2:]), bytes.fromhex(other[2:]))
        for one, other in zip(words[end + 1 :], others[end + 1 :], strict=True)
    ]
    return (
        f"kernel {digests[name][:16]} grid {'x'.join(grid)} block {'x'.join(block)} "
        f"shared {shared}{attributes} arguments {_short(repr(arguments).encode())}"
    )


def _argument(one: bytes, other: bytes) -> list:
    """Its words, without padding: bytes that hold what filled the stack are none of it."""
    written = bytes(a if a == b else 0 for a, b in zip(one, other, strict=True))
    whole = len(written) // _WORD.size * _WORD.size
    words = [_word(*found) for found in _WORD.iter_unpack(written[:whole])]
    return [*words, written[whole:].hex()]


def _word(value: int) -> int | str:
    buffer, offset = divmod(value - _BUFFERS, _APART)
    if 0 <= buffer < 64:
        return f"buffer {buffer} modulo {_ALIGNMENT}: {offset % _ALIGNMENT}"
    return value


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _device(slug: str) -> dict[int, int]:
    if slug not in DEVICES:
        raise UsageError(f"device {slug!r}: described are only {', '.join(DEVICES)}")
    return DEVICES[slug]


def _fields(model: nn.Module, vectors: int, record: dict) -> dict[str, int | float]:
    """The fields of the argument block of a record's call (kernels_src/call.h)."""
    dtype, kernel = record["dtype"], record.get("kernel", "auto")
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r}: known are {', '.join(DTYPES)}")
    if kernel not in KERNELS:
        raise UsageError(f"kernel {kernel!r}: known on CUDA are {', '.join(KERNELS)}")
    modules = list(model.to("meta").modules())
    conv = _only(modules, nn.ConvTranspose2d)
    out = conv(torch.empty(record["input_shape"], device="meta"))
    fields = {
        **_conv_fields(conv, record["input_shape"], out.shape),
        "dtype": DTYPES[dtype],
        "math": _TF32 if dtype == "float32" and record["tf32"] == "allow" else _STRICT,
        "kernel_choice": KERNELS[kernel],
        "channel_vectors": vectors,
    }
    if any(type(module) is nn.BatchNorm2d for module in modules):
        batch_norm = _only(modules, nn.BatchNorm2d)
        pool = _only(modules, nn.MaxPool2d)
        fields |= _batch_norm_fields(batch_norm, bool(record.get("eval")))
        fields |= _pool_fields(pool, pool(out).shape)
    if any(type(module) is nn.GroupNorm for module in modules):
        group_norm = _only(modules, nn.GroupNorm)
        fields |= {
            "num_groups": group_norm.num_groups,
            "group_norm_eps": group_norm.eps,
            "group_norm_weight": int(group_norm.weight is not None),
            "group_norm_bias": int(group_norm.bias is not None),
        }
    return fields


def _only(modules: list, kind: type):
    found = [module for module in modules if type(module) is kind]
    if len(found) != 1:
        raise UsageError(f"models with one {kind.__name__} can be described, not {len(found)}")
    return found[0]


def _pairs(module, *names: str) -> dict[str, int]:
    """name_h and name_w of a module's parameters that are a number or a pair."""
    values = {}
    for name in names:
        value = getattr(module, name)
        values[name] = (value, value) if isinstance(value, int) else value
    return {f"{name}_{axis}": pair[i] for name, pair in values.items() for i, axis in _AXES}


def _conv_fields(conv: nn.ConvTranspose2d, x_shape, out_shape) -> dict[str, int]:
    named = _pairs(conv, "kernel_size", "stride", "padding", "dilation")
    return {
        **{name.replace("kernel_size", "kernel"): value for name, value in named.items()},
        "batch": math.prod(x_shape[:-3]),
        "in_channels": conv.in_channels,
        "out_channels": conv.out_channels,
        "groups": conv.groups,
        "in_h": x_shape[-2],
        "in_w": x_shape[-1],
        "out_h": out_shape[-2],
        "out_w": out_shape[-1],
        **dict.fromkeys(("x", "weight", "out", "workspace"), 1),
        "bias": int(conv.bias is not None),
    }


def _batch_norm_fields(norm: nn.BatchNorm2d, in_eval_mode: bool) -> dict[str, int | float]:
    return {
        "use_batch_stats": int(not in_eval_mode or not norm.track_running_stats),
        "batch_norm_eps": norm.eps,
        "batch_norm": 1,
        "batch_norm_weight": int(norm.weight is not None),
        "batch_norm_bias": int(norm.bias is not None),
    }


def _pool_fields(pool: nn.MaxPool2d, pooled) -> dict[str, int]:
    named = _pairs(pool, "kernel_size", "stride", "padding", "dilation")
    fields = {f"pool_{name.replace('_size', '')}": value for name, value in named.items()}
    return {**fields, "pooled_h": pooled[-2], "pooled_w": pooled[-1]}
