"""The process above a solution's process: what a solution starts stays below it and ends with it.

Only the standard library is imported, so that the fork costs nothing.
"""

import ctypes
import os
import resource
import signal
import time
from pathlib import Path

NONCE = "EVALUATION_NONCE"
_PDEATHSIG, _CHILD_SUBREAPER = 1, 36


def stay_below_a_keeper() -> None:
    """Fork. The parent becomes the keeper and never returns; the child is the solution's process.

    The keeper adopts every orphan below it (PR_SET_CHILD_SUBREAPER), so a child that leaves the
    process group, the session or its parent is still found. When the solution's process ends, or
    the harness does, the keeper kills all of them and ends the way the solution's process ended.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    harness, keeper = os.getppid(), os.getpid()
    prctl(_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        os.setsid()
        prctl(_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(1)
        return
    nonce = os.environ.get(NONCE, "")

    def orphaned(*_):
        if os.getppid() != harness:
            end_all(keeper, nonce)
            os._exit(1)

    signal.signal(signal.SIGTERM, orphaned)
    prctl(_PDEATHSIG, signal.SIGTERM)
    orphaned()
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    ended, status = 0, 0
    while ended != child:
        ended, status = os.waitpid(-1, 0)
    end_all(keeper, nonce)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(keeper, -code)
    os._exit(code)


def family(root: int | None, nonce: str) -> set[int]:
    """Living processes below `root`, and any that were started with the nonce; never `root`."""
    parents, marked = {}, set()
    sign = f"{NONCE}={nonce}".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        pid = int(folder.name)
        fields = _stat(pid)
        if fields is None or _ended(fields):
            continue
        parents[pid] = int(fields[1])
        try:
            if nonce and sign in (folder / "environ").read_bytes().split(b"\0"):
                marked.add(pid)
        except OSError:
            continue
    found = marked
    if root is not None:
        grown = True
        while grown:
            below = {pid for pid, above in parents.items() if above == root or above in found}
            grown = not below <= found
            found = found | below
    return found - {root, os.getpid()}


def _ended(fields: list[bytes]) -> bool:
    """Dead, and no other thread is left: one may still be in the GPU's driver, with its memory."""
    return fields[0] == b"X" or fields[0] == b"Z" and int(fields[17]) <= 1


def end_all(root: int | None, nonce: str, seconds: float = 5.0) -> set[int]:
    """Kill the family until nobody is left; returns who was still there after `seconds`."""
    deadline = time.monotonic() + seconds
    while alive := family(root, nonce):
        if time.monotonic() > deadline:
            return alive
        signal_all(alive, signal.SIGSTOP)  # first, so that nobody forks on meanwhile
        signal_all(family(root, nonce), signal.SIGKILL)
        time.sleep(0.005)
    return set()


def signal_all(pids: set[int], number: int) -> None:
    """Send a signal to processes of which some may be gone already."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def cpu_seconds(pids: set[int]) -> float:
    """Processor time the processes have used so far, their reaped children's included."""
    ticks = 0
    for pid in pids:
        fields = _stat(pid)
        if fields is not None:
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_bytes(pids: set[int]) -> int:
    """Memory of their own (not shared, not file-backed) that the processes hold."""
    pages = 0
    for pid in pids:
        try:
            _, resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[:3]
        except (OSError, ValueError):
            continue
        pages += max(int(resident) - int(shared), 0)
    return pages * os.sysconf("SC_PAGE_SIZE")


def available_bytes() -> int:
    """Memory that could be handed out now without swapping (MemAvailable)."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _stat(pid: int) -> list[bytes] | None:
    """The fields of /proc/<pid>/stat from the state on; None when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
