"""How harness and worker talk: JSON messages over a socket, tensors as raw bytes in two files.

Nothing that comes from a worker is ever unpickled. A message is a four-byte length and a JSON
object; tensor bytes lie in anonymous memory files and are copied with pread/pwrite, never mapped,
so a file cut short shows as an error and a late write cannot change what has been read.
"""

import json
import math
import os
import select
import socket
import struct
import time

import torch

_LENGTH = struct.Struct(">I")
MAX_MESSAGE_BYTES = 1 << 20
_CHUNK_BYTES = 32 << 20
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}


class WireError(Exception):
    """A message or tensor that does not keep the protocol."""


def dtype_name(dtype: torch.dtype) -> str:
    """The name without its module: float32 for torch.float32."""
    return str(dtype).removeprefix("torch.")


def spec_bytes(spec: dict) -> int:
    """Size in bytes of the tensor described by {"shape": [..], "dtype": ".."}."""
    return math.prod(spec["shape"]) * DTYPES[spec["dtype"]].itemsize


def spec_of(tensor: torch.Tensor) -> dict:
    """The description of a tensor that travels in a message."""
    return {"shape": list(tensor.shape), "dtype": dtype_name(tensor.dtype)}


def anonymous_file() -> int:
    """File descriptor of a new anonymous file in memory."""
    return os.memfd_create("tensors", os.MFD_CLOEXEC)


def send_message(sock: socket.socket, message: dict) -> None:
    """Send one JSON object."""
    data = json.dumps(message, allow_nan=False).encode()
    sock.sendall(_LENGTH.pack(len(data)) + data)


def receive_message(sock: socket.socket, deadline: float | None = None, alive=None) -> dict:
    """Receive one JSON object.

    `deadline` is a time.monotonic() value; `alive()` is asked while waiting. Raises TimeoutError
    at the deadline, EOFError when the other side is gone, WireError for anything malformed.
    """
    (length,) = _LENGTH.unpack(_receive_exactly(sock, _LENGTH.size, deadline, alive))
    if length > MAX_MESSAGE_BYTES:
        raise WireError(f"a message of {length} bytes, allowed are {MAX_MESSAGE_BYTES}")
    data = _receive_exactly(sock, length, deadline, alive)
    try:
        message = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise WireError(f"a message that is not JSON ({error})") from None
    if not isinstance(message, dict):
        raise WireError("a message that is not a JSON object")
    return message


def _no_constant(text: str):
    raise ValueError(f"{text} is not a number")


def _receive_exactly(sock: socket.socket, count: int, deadline: float | None, alive) -> bytes:
    data = bytearray()
    while len(data) < count:
        remaining = None if deadline is None else deadline - time.monotonic()
        if remaining is not None and remaining <= 0:
            raise TimeoutError
        # A forked grandchild may hold the socket open, so a dead worker need not give end of file.
        wait = remaining if alive is None else min(0.25, remaining or 0.25)
        readable = select.select([sock], [], [], wait)[0]
        if not readable:
            if alive is not None and not alive() and not select.select([sock], [], [], 0)[0]:
                raise EOFError
            continue
        part = sock.recv(min(count - len(data), 1 << 16))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)


def write_tensor(fd: int, offset: int, tensor: torch.Tensor) -> int:
    """Write a tensor's elements in row-major order; returns the offset after them."""
    flat = _as_bytes(tensor.detach().resolve_conj().resolve_neg().contiguous())
    staging = _staging(flat)
    for begin in range(0, flat.numel(), _CHUNK_BYTES):
        chunk = flat[begin : begin + _CHUNK_BYTES]
        if staging is not None:
            chunk = staging[: chunk.numel()].copy_(chunk)
        _write_fully(fd, memoryview(chunk.numpy()), offset + begin)
    return offset + flat.numel()


def _write_fully(fd: int, view: memoryview, offset: int) -> None:
    while view.nbytes:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def read_tensor(fd: int, offset: int, spec: dict, device: torch.device) -> torch.Tensor:
    """A new tensor on `device` with the bytes at `offset`; WireError when there are fewer."""
    count = spec_bytes(spec)
    if count and os.fstat(fd).st_size < offset + count:
        raise WireError("fewer tensor bytes than announced")
    tensor = torch.empty(spec["shape"], dtype=DTYPES[spec["dtype"]], device=device)
    flat = _as_bytes(tensor)
    staging = _staging(flat)
    for begin in range(0, flat.numel(), _CHUNK_BYTES):
        target = flat[begin : begin + _CHUNK_BYTES]
        chunk = target if staging is None else staging[: target.numel()]
        _read_fully(fd, memoryview(chunk.numpy()), offset + begin)
        if staging is not None:
            target.copy_(chunk)
    return tensor


def _read_fully(fd: int, view: memoryview, offset: int) -> None:
    while view.nbytes:
        count = os.preadv(fd, [view], offset)
        if count == 0:
            raise WireError("fewer tensor bytes than announced")
        view, offset = view[count:], offset + count


def _staging(flat: torch.Tensor) -> torch.Tensor | None:
    """Page-locked memory to copy through, or None for a tensor the CPU can read directly."""
    if flat.device.type == "cpu":
        return None
    size = min(_CHUNK_BYTES, max(flat.numel(), 1))
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)
