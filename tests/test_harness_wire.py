"""How harness and worker talk: tensors arrive as they were, anything malformed is refused."""

import os
import socket
import struct

import pytest
import torch

from harness.errors import Rejected
from harness.judge import check, wire
from harness.judge.candidate import checked_specs

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", list(wire.DTYPES.values()))
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)])
def test_tensors_travel_as_they_are(dtype, shape):
    fd = wire.anonymous_file()
    tensor = torch.randint(0, 2, shape).to(dtype)
    end = wire.write_tensor(fd, 16, tensor)
    assert end == 16 + wire.spec_bytes(wire.spec_of(tensor))
    assert check.same_bits(wire.read_tensor(fd, 16, wire.spec_of(tensor), CPU), tensor)
    os.close(fd)


def test_strided_tensor_travels_in_row_major_order():
    fd = wire.anonymous_file()
    tensor = torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)
    wire.write_tensor(fd, 0, tensor)
    assert torch.equal(wire.read_tensor(fd, 0, wire.spec_of(tensor), CPU), tensor)
    os.close(fd)


def test_too_few_bytes_are_an_error():
    fd = wire.anonymous_file()
    wire.write_tensor(fd, 0, torch.zeros(3))
    with pytest.raises(wire.WireError):
        wire.read_tensor(fd, 0, {"shape": [1 << 38], "dtype": "float32"}, CPU)
    os.close(fd)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        struct.pack(">I", 3) + b"[1]",
        struct.pack(">I", 3) + b"{,}",
        struct.pack(">I", 10) + b'{"a": NaN}',
        struct.pack(">I", 4) + b"\xff\xfe\xfd\xfc",
        struct.pack(">I", 200_000) + b"[" * 200_000,
    ],
)
def test_malformed_messages_are_refused(data):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        with pytest.raises(wire.WireError):
            wire.receive_message(ours)


@pytest.mark.parametrize(
    "entries",
    [
        None,
        [1],
        [{"shape": [1], "dtype": "object"}],
        [{"shape": [1], "dtype": ["float32"]}],
        [{"shape": [-1], "dtype": "float32"}],
        [{"shape": [True], "dtype": "float32"}],
        [{"shape": 3, "dtype": "float32"}],
        [{"shape": [1], "dtype": "float32", "pickle": "x"}],
    ],
)
def test_malformed_tensor_descriptions_are_refused(entries):
    with pytest.raises(Rejected, match="protocol_violation"):
        checked_specs(entries)
