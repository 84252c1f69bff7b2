"""The Ray cluster that --ray evaluates on. Ray is imported here alone, and only when asked for."""

import contextlib
import io
import os
import signal
import socket
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import torch

from harness.catalog import ROOT
from harness.errors import EnvironmentUnfit, UsageError
from harness.run import ray_node

_CONNECT_SECONDS = 10
_LOCAL_STORE_BYTES = 256 << 20
# What the driver's user may have set and an evaluation elsewhere has to see as well.
_FORWARDED = ("TCONV_KERNEL", "TORCH_CUDA_ARCH_LIST", "CXX", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass
class Cluster:
    """A connection: what each task runs on, and how many run at a time.

    `device` is what a task sees; `slug` names the folder of records; `resources` are a task's.
    """

    ray: ModuleType
    device: torch.device
    slug: str
    places: int
    resources: dict
    bundle: object  # the harness, in the cluster's store

    def submit(self, files: dict[str, bytes], arguments: list[str], limit: float):
        """Start `ray_node.evaluate`; the reference of its result."""
        environment = {name: os.environ.get(name) for name in _FORWARDED}
        job = {"files": files, "arguments": arguments, "environment": environment, "limit": limit}
        task = self.ray.remote(ray_node.evaluate)
        # Not tried again: a candidate that brings its node down would do so once more.
        return task.options(max_retries=0, **self.resources).remote(self.bundle, job)


@contextlib.contextmanager
def connected(device: str | None) -> Iterator[Cluster]:
    """Connect to the cluster of RAY_ADDRESS, or start one on this machine for as long as needed.

    `device` is "cpu", "cuda" or None: CUDA if the cluster has GPUs. A task then has one GPU, or on
    the CPU a whole node. Raises EnvironmentUnfit when Ray is not installed, the cluster cannot be
    reached, it has no such device, or its machines differ.
    """
    if device not in (None, "cpu", "cuda"):
        raise UsageError(f"--device {device!r}: with --ray allowed are cpu and cuda")
    ray = _imported()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        _connect(ray)
        for number, handler in handlers.items():
            signal.signal(number, handler)  # Ray puts its own in their place
        ray.cloudpickle.register_pickle_by_value(ray_node)
        yield _surveyed(ray, device)
    finally:
        ray.shutdown()


def _imported() -> ModuleType:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        told = f"--ray needs Ray, which is not installed here (pip install ray): {error}"
        raise EnvironmentUnfit(told) from None
    return ray


def _connect(ray: ModuleType) -> None:
    address = os.environ.get("RAY_ADDRESS")
    options: dict = {"address": address or "local"}
    if address:
        _require_reachable(address)
    else:
        # Ray would otherwise kill an evaluation before the harness names what filled the memory.
        os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
        options |= {"include_dashboard": False, "object_store_memory": _LOCAL_STORE_BYTES}
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", configure_logging=True, **options)
    except Exception as error:
        where = f"RAY_ADDRESS={address}" if address else "a cluster on this machine"
        told = f"--ray: no connection to {where}: {type(error).__name__}: {error}"
        raise EnvironmentUnfit(" ".join(told.split())[:600]) from None


def _require_reachable(address: str) -> None:
    """Ray itself tries for minutes and then ends the process."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        told = f"--ray: no connection to RAY_ADDRESS={address}: {error}"
        raise EnvironmentUnfit(told) from None


def _surveyed(ray: ModuleType, text: str | None) -> Cluster:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if text is None:
        text = "cuda" if any(node["Resources"].get("GPU") for node in nodes) else "cpu"
    kind = "GPU" if text == "cuda" else "CPU"
    amounts = {n["NodeID"]: int(n["Resources"].get(kind, 0)) for n in nodes}
    amounts = {node: amount for node, amount in amounts.items() if amount >= 1}
    if not amounts:
        raise EnvironmentUnfit(f"--ray --device {text}: the cluster offers no {kind}")
    bundle = ray.put(bundled())
    found = _described(ray, bundle, list(amounts), text)
    if text == "cuda":
        resources, places = {"num_gpus": 1, "num_cpus": 0}, sum(amounts.values())
    else:
        # A node does one at a time with all its processors: two would disturb each other's times.
        most = max(amounts.values())
        resources = {"num_cpus": most}
        places = sum(amount == most for amount in amounts.values())
    device = torch.device("cuda", 0) if text == "cuda" else torch.device("cpu")
    return Cluster(ray, device, found["slug"], places, resources, bundle)


def _described(ray: ModuleType, bundle, nodes: list[str], text: str) -> dict:
    """What all these nodes evaluate on; times of different machines do not belong in one table."""
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    task = ray.remote(ray_node.describe)
    options = {"num_cpus": 0, "max_retries": 0}
    references = [
        task.options(scheduling_strategy=strategy(node, soft=False), **options).remote(bundle, text)
        for node in nodes
    ]
    try:
        found = ray.get(references)
    except ray.exceptions.RayError as error:
        told = f"--ray: a node could not be asked: {type(error).__name__}: {error}"
        raise EnvironmentUnfit(" ".join(told.split())[:600]) from None
    for entry in found:
        if "error" in entry:
            raise EnvironmentUnfit(f"--ray: a node cannot evaluate: {entry['error']}")
    kinds = sorted({f"{name}, PyTorch {e['torch']}" for e in found for name in e["names"]})
    if len(kinds) > 1:
        raise EnvironmentUnfit(f"--ray: the cluster's machines differ: {'; '.join(kinds)}")
    return found[0]


def bundled() -> bytes:
    """The harness as a zip archive: what run_eval.py needs to evaluate a pair of files."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        rules = [ROOT / "generator" / name for name in ("__init__.py", "static_rules.py")]
        harness = sorted((ROOT / "harness").rglob("*.py"))
        for path in [ROOT / "run_eval.py", *rules, *harness]:
            archive.write(path, path.relative_to(ROOT))
    return stream.getvalue()
