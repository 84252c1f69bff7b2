"""What a node of a Ray cluster does for --ray: unpack the harness, evaluate one candidate.

Both functions travel to the node by value, with everything they need as bytes; no disk is shared.
Only the standard library is imported: the harness itself runs in processes of its own, in the
version that the driver sent, whatever lies on the node.
"""

import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import zipfile

# The evaluation ends with the process that started it, whatever becomes of that.
_BOOT = (
    "import ctypes, os, runpy, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGTERM); "
    "os.getppid() == int(sys.argv.pop(1)) or os._exit(1); sys.argv[0] = 'run_eval.py'; "
    "runpy.run_path('run_eval.py', run_name='__main__')"
)
_DESCRIBE = (
    "import json, sys, torch; from harness import devices; "
    "device = devices.resolve_device(sys.argv[1]); "
    "count = torch.cuda.device_count() if device.type == 'cuda' else 1; "
    "names = {devices.device_name(torch.device(device.type, i)) for i in range(count)}; "
    "print(json.dumps({'names': sorted(names), 'slug': devices.device_slug(device), "
    "'torch': torch.__version__}))"
)
_STOP_SECONDS, _KEPT_ERROR, _DESCRIBE_SECONDS = 20, 4000, 120


def evaluate(bundle: bytes, job: dict) -> dict:
    """Evaluate one candidate: {"status", "said" (last line of standard error), "record" (bytes)}.

    `bundle` is the harness as a zip archive. `job` holds `files` (bytes by path), `arguments` for
    run_eval.py with paths relative to those files' folder, `environment` (None removes a variable)
    and `limit` in seconds. `record` is None where the evaluation wrote none.
    """
    with tempfile.TemporaryDirectory(prefix="candidate-", ignore_cleanup_errors=True) as name:
        folder = _unpacked(bundle, pathlib.Path(name))
        for path, data in job["files"].items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        command = [sys.executable, "-c", _BOOT, str(os.getpid()), *job["arguments"]]
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                [*command, "--json", "record.json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                cwd=folder,
                env=_environment(job["environment"]),
                start_new_session=True,
            )
            try:
                status = _ended(process, job["limit"])
            finally:  # also when the driver takes the task back
                _end(process)
            if status is None:
                return {"status": 3, "said": f"no end within {job['limit']:g} s", "record": None}
            said.seek(max(0, said.seek(0, os.SEEK_END) - _KEPT_ERROR))
            lines = said.read().decode(errors="replace").strip().splitlines() or [""]
        told = lines[-1].removeprefix("run_eval.py: error: ")
        if status < 0:
            told = f"the evaluating process died of {signal.Signals(-status).name} ({told})"
        written = folder / "record.json"
        return {
            "status": status,
            "said": told,
            "record": written.read_bytes() if written.is_file() else None,
        }


def describe(bundle: bytes, device: str) -> dict:
    """What evaluations on this node run on: {"names", "slug", "torch"}, or {"error"}."""
    with tempfile.TemporaryDirectory(prefix="describe-") as name:
        folder = _unpacked(bundle, pathlib.Path(name))
        done = subprocess.run(
            [sys.executable, "-c", _DESCRIBE, device],
            cwd=folder,
            env=_environment({"CUDA_VISIBLE_DEVICES": None}),  # Ray hides them from such a task
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_DESCRIBE_SECONDS,
        )
    if done.returncode != 0:
        return {"error": (done.stderr.strip().splitlines() or ["it told nothing"])[-1]}
    return json.loads(done.stdout)


def _unpacked(bundle: bytes, folder: pathlib.Path) -> pathlib.Path:
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        archive.extractall(folder)
    return folder


def _environment(changes: dict) -> dict:
    merged = {**os.environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def _ended(process: subprocess.Popen, limit: float) -> int | None:
    """The exit status, None after `limit` seconds; asks often, so that a task can be taken back."""
    deadline = time.monotonic() + limit
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    return process.poll()


def _end(process: subprocess.Popen) -> None:
    """Ask, so that it can end what it has started; then force."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
