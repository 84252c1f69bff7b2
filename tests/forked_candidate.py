"""Candidates forked from a process that has imported PyTorch already, which takes seconds.

Everything else is as in `Candidate`: keeper, session, limits, the worker's code. What is different
is that /proc shows the forked process without its environment.
"""

import array
import atexit
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time

from harness.catalog import ROOT
from harness.judge.candidate import Candidate

_SUBREAPER = 36
_SOURCE = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
sys.dont_write_bytecode = True
import array, json, os, socket, tempfile, time
from harness.judge import keeper, worker
sys.path.remove({str(ROOT)!r})
channel = socket.socket(fileno=int(sys.argv[1]))
while True:
    data, control, _, _ = channel.recvmsg(1 << 20, socket.CMSG_SPACE(16))
    if not data:
        os._exit(0)
    fds = array.array("i")
    fds.frombytes(control[0][2])
    job, (control_fd, inbox, outbox, printed) = json.loads(data), fds
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        for fd in fds:
            os.close(fd)
        continue
    if pid := os.fork():
        channel.send(str(pid).encode())
        os._exit(0)
    channel.close()
    os.setsid()
    deadline = time.monotonic() + 10
    while os.getppid() != job["parent"]:
        if time.monotonic() > deadline:
            os._exit(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (printed, 1), (printed, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(printed)
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])
    tempfile.tempdir = None
    sys.argv[:] = ["-c", *map(str, (control_fd, inbox, outbox)), *job["arguments"]]
    keeper.stay_below_a_keeper()
    worker.main()
"""
_channel: socket.socket | None = None


class Adopted:
    """As much of subprocess.Popen as a candidate needs, of a child that another process forked."""

    def __init__(self, pid: int, stdout):
        self.pid, self.stdout, self.returncode = pid, stdout, None

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("forked candidate", timeout)
            time.sleep(0.002)
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class ForkedCandidate(Candidate):
    """A candidate that is there at once."""

    def _launched(self, arguments: list[str], environment: dict, fds: tuple) -> Adopted:
        channel = _forker()
        reading, printed = os.pipe2(os.O_CLOEXEC)
        job = {
            "arguments": arguments[3:],
            "environment": environment,
            "folder": str(self.folder),
            "parent": os.getpid(),
        }
        sent = array.array("i", [*fds, printed])
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)]
        channel.sendmsg([json.dumps(job).encode()], rights)
        os.close(printed)
        return Adopted(int(channel.recv(64)), os.fdopen(reading, "rb", buffering=0))


def _forker() -> socket.socket:
    """The channel to this process's forker, started on the first call."""
    global _channel
    if _channel is None:
        # What the forker's children leave behind becomes this process's child, as with Popen.
        ctypes.CDLL(None).prctl(_SUBREAPER, 1)
        _channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", "-c", _SOURCE, str(theirs.fileno())]
        forker = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        atexit.register(forker.kill)
    return _channel
