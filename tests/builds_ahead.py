"""Slow builds, by g++ and nvcc, that begin with the session, while other tests run."""

import functools
import os
import re
import shutil
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from torch.utils.cpp_extension import COMMON_NVCC_FLAGS

from generator.few_channels import few_channels_header, few_channels_layers
from generator.fuse import Fused
from generator.program import ambient_kept, read_program
from generator.runtime.build import _CUDA_FLAGS, _parts
from generator.sources import KERNELS, ROOT, gradient_cuda_source, resolve
from generator.step_table import epilogue_header, gradient_header
from tests.cuda_emulator import emulator
from tests.norm_gradient_tools import MASKED_CHAINS, chains_header
from tests.pool_gradient_tools import activations_header
from tests.solution_tools import REFERENCES, SolutionShelf, generated
from tests.tail_tools import long_tails_header, tails_header

EMULATED = ("69", "19", "11")
VOLUME_ONLY = "volume_only"
MANY_CHANNELS = "many_channels"
RESIDUAL = "residual_blocks"
JOINED = "joined_upsampling"
FEW_CHANNELS = "few_channels"
EXTREMA = "channel_extrema"
FULL_BLOCKS = "full_blocks"
CLAMPED = "clamped_volumes"
ARCHITECTURES = [flag for flag in _CUDA_FLAGS if flag.startswith("-gencode=")]
_FLAGS = [flag for flag in _CUDA_FLAGS if flag not in ARCHITECTURES]


GRADIENTS = KERNELS / "cuda" / "entry_gradients.cu"  # the same source for all solutions
# Likewise but for the chains.
NORM_GRADIENTS = KERNELS / "cuda" / "entry_group_norm_gradient.cu"
POOL_GRADIENTS = KERNELS / "cuda" / "entry_batch_norm_pool_gradient.cu"
BATCH_NORM = KERNELS / "cuda" / "entry_batch_norm.cu"
GROUP_NORM = KERNELS / "cuda" / "entry_group_norm.cu"
TAILS = KERNELS / "cuda" / "entry_tail.cu"  # those of tests/tail_tools.py
TAIL_GRADIENTS = KERNELS / "cuda" / "entry_tail_gradient.cu"  # likewise
# Those of them that take most registers.
LONG_TAILS, LONG_TAIL_GRADIENTS = Path("long_tails"), Path("long_tail_gradients")
# For nvcc, with all kernels of GRADIENTS and MANY_CHANNELS_GRADIENTS, of VOLUME_GRADIENTS but what
# FEW_CHANNELS_ALONE has, and the chains of references that need most registers.
CHAIN_GRADIENTS = Path("chain_gradients")
LONG_VOLUME_CHAINS = Path("long_volume_chain_gradients")  # and with chains that read a mask
_STORAGES = "float", "__half", "__nv_bfloat16"
_LONG_CHAINS = ("every_step", "soft_activations")
VOLUME_GRADIENTS = Path("volume_gradients")  # GRADIENTS of solutions with three dimensions
# GRADIENTS with the chains of NORM_GRADIENTS, and some that read tensors of the output's shape.
CHAINED_GRADIENTS = Path("chained_gradients")
# Without those, with a spare workspace for one image: the batch goes by in several slices.
SLICED_GRADIENTS = Path("sliced_gradients")
# VOLUME_GRADIENTS with the chains of NORM_GRADIENTS, and some that read a mask, packed a few small
# volumes at a time.
VOLUME_CHAIN_GRADIENTS = Path("volume_chain_gradients")
MANY_CHANNELS_GRADIENTS = Path("many_channels_gradients")  # GRADIENTS with the gathered kernel
VOLUME_NORM_GRADIENTS = Path("volume_norm_gradients")  # NORM_GRADIENTS with three dimensions
RESIDUAL_GRADIENTS = Path("residual_gradients")  # NORM_GRADIENTS of RESIDUAL
RESIDUAL_JOIN = Path("residual_join")  # its tail over the outputs, alone
FEW_CHANNELS_ALONE = Path("few_channels_alone")  # the kernel of FEW_CHANNELS without the others
# Of these the Hopper kernels of at most 128 columns, whose epilogues are their own, of CLAMPED and
# FULL_BLOCKS (in turns) more, too; and what stands behind EXTREMA's. Of CLAMPED without fp32_1: its
# kernel of 104 twin columns spills 16 bytes, and 8 where no mask is kept (lab/training_behind.md).
HOPPER_PARTS = {
    Path(f"{name}_{part}"): (name, part)
    for name, parts in {
        EXTREMA: ("fp32_1", "fp16_0"),
        JOINED: ("fp32_1", "fp16_0"),
        FULL_BLOCKS: ("fp32_0", "fp16_0", "bf16_0"),
        CLAMPED: ("fp32_0", "fp16_0"),
    }.items()
    for part in parts
}
EXTREMA_BEHIND = Path("extrema_behind")

# Solutions whose kernels others have, too, with shorter chains. They are compiled without bf16,
# whose kernels are fp16's but for conversions.
LONGER_CHAINS = [REFERENCES / f"{name}.py" for name in ("tanh_gelu_norm", "soft_activations")]

# Libraries beside the forward by the fixture that has them emulated.
EMULATED_GRADIENTS = {
    "emulated_gradients": GRADIENTS,
    "emulated_norm_gradients": NORM_GRADIENTS,
    "emulated_volume_norm_gradients": VOLUME_NORM_GRADIENTS,
    "emulated_pool_gradients": POOL_GRADIENTS,
    "emulated_batch_norm": BATCH_NORM,
    "emulated_group_norm": GROUP_NORM,
    "emulated_tail": TAILS,
    "emulated_tail_gradients": TAIL_GRADIENTS,
    "emulated_volume_gradients": VOLUME_GRADIENTS,
    "emulated_volume_chain_gradients": VOLUME_CHAIN_GRADIENTS,
    "emulated_chained_gradients": CHAINED_GRADIENTS,
    "emulated_sliced_gradients": SLICED_GRADIENTS,
    "emulated_many_channels_gradients": MANY_CHANNELS_GRADIENTS,
    "emulated_residual_gradients": RESIDUAL_GRADIENTS,
}
# What is emulated for less time than -O2 takes to build it.
OPTIMISED = dict.fromkeys(
    (
        *(VOLUME_ONLY, MANY_CHANNELS, RESIDUAL, RESIDUAL_GRADIENTS, FEW_CHANNELS, EXTREMA),
        *(FULL_BLOCKS, CLAMPED),
        *(GRADIENTS, VOLUME_GRADIENTS, CHAINED_GRADIENTS, SLICED_GRADIENTS),
        *(MANY_CHANNELS_GRADIENTS, VOLUME_CHAIN_GRADIENTS, VOLUME_NORM_GRADIENTS),
    ),
    "-O1",
)


def cuda_source_of(path: Path) -> str:
    """Of a reference's solution, or of a library beside it."""
    if path in (GRADIENTS, NORM_GRADIENTS, POOL_GRADIENTS, BATCH_NORM, GROUP_NORM):
        chains = {NORM_GRADIENTS: chains_header(), POOL_GRADIENTS: activations_header()}.get(path)
        return gradient_cuda_source(path.stem.removeprefix("entry_"), chains=chains)
    if path in (TAILS, TAIL_GRADIENTS):
        tails = tails_header(gradients=path == TAIL_GRADIENTS)
        return gradient_cuda_source(path.stem.removeprefix("entry_"), tails=tails)
    if path == LONG_TAILS:
        return gradient_cuda_source("tail", tails=long_tails_header(gradients=False))
    if path == LONG_TAIL_GRADIENTS:
        return gradient_cuda_source("tail_gradient", tails=long_tails_header())
    if path in HOPPER_PARTS:
        name, part = HOPPER_PARTS[path]
        return _parts(cuda_source_of(REFERENCES / f"{name}.py"))[part]
    if path == EXTREMA_BEHIND:
        return _extrema_behind()
    if path in (CHAIN_GRADIENTS, LONG_VOLUME_CHAINS):
        volumes = path == LONG_VOLUME_CHAINS
        forms = {"short": True, "skipped": True, "ahead": True, "several": True}
        forms |= {"volumes": True, "masked": True} if volumes else {"split": True}
        return gradient_cuda_source(chains=_long_chains(masked=volumes), **forms)
    if path in (CHAINED_GRADIENTS, SLICED_GRADIENTS):
        if path == SLICED_GRADIENTS:
            return _in_small_slices(gradient_cuda_source(chains=chains_header(counted=True)))
        forms = {"tensors": True, "short": True, "skipped": True, "ahead": True}
        return gradient_cuda_source(chains=chains_header(True, True), **forms)
    if path == RESIDUAL_JOIN:
        headers = {"generated_epilogue.h": epilogue_header(_fused(RESIDUAL).steps, True)}
        text = resolve(KERNELS / "cuda" / "join_tensors.cuh", headers, tensors=True)
        return f"{text}auto* const launch = tconv::cuda::launch_join;\n"
    if path == FEW_CHANNELS_ALONE:
        return _few_channels_alone()
    if path == VOLUME_NORM_GRADIENTS:
        return gradient_cuda_source("group_norm_gradient", volumes=True, chains=chains_header())
    if path == RESIDUAL_GRADIENTS:
        chains = gradient_header([_fused(RESIDUAL).steps], tensors=True)
        return gradient_cuda_source("group_norm_gradient", chains=chains, tensors=True)
    if path == MANY_CHANNELS_GRADIENTS:
        return gradient_cuda_source(split=True, ahead=True)
    if path == VOLUME_GRADIENTS:
        forms = {"short": True, "skipped": True, "ahead": True}
        return gradient_cuda_source(volumes=True, few_channels=_few_channels(), **forms)
    if path == VOLUME_CHAIN_GRADIENTS:
        forms = {"short": True, "skipped": True, "ahead": True}
        chains = chains_header(counted=True, masked=True)
        source = gradient_cuda_source(volumes=True, chains=chains, masked=True, **forms)
        return _in_small_goes(source)
    return _of_solution(path)


@functools.cache
def _of_solution(path: Path) -> str:
    return re.search(r'CUDA_SOURCE = r"""(.*?)"""', generated(path), re.DOTALL)[1]


def _in_small_slices(text: str) -> str:
    """A batch of the tests' layers is then cut, as large ones are."""
    given = "kSpareBytes = int64_t{96} << 20"
    assert text.count(given) == 1
    return text.replace(given, "kSpareBytes = 0")


def _in_small_goes(text: str) -> str:
    """Volumes of the tests' layers are then packed one by one, or two at a time."""
    given = "kPackedBytes = int64_t{256} << 20, kMostPackedBytes = int64_t{640} << 20"
    assert text.count(given) == 1
    return text.replace(given, "kPackedBytes = 600 << 10, kMostPackedBytes = kPackedBytes")


def _few_channels() -> str:
    """The text of generated_few_channels.h."""
    with ambient_kept():
        calls = read_program(REFERENCES / f"{FEW_CHANNELS}.py").calls
    return few_channels_header(few_channels_layers(calls))


def _few_channels_alone() -> str:
    headers = {
        "generated_epilogue.h": epilogue_header(_fused(FEW_CHANNELS).steps),
        "generated_few_channels.h": _few_channels(),
    }
    path = KERNELS / "cuda" / "conv_transpose_few_channels_launch.cuh"
    text = resolve(path, headers, volumes=True, few=True)
    return text + "".join(
        f"auto* const launch_{number} = tconv::cuda::launch_few_channels<{storage}>;\n"
        for number, storage in enumerate(_STORAGES)
    )


def _extrema_behind() -> str:
    headers = {"generated_epilogue.h": epilogue_header(_fused(EXTREMA).steps)}
    text, given = "", ()
    for name in ("channel_extremum_fallback", "channel_extremum_join"):
        text += resolve(KERNELS / "cuda" / f"{name}.cuh", headers, given, reduced=True)
        given = tuple(ROOT / file for file in re.findall(r"^// ---- (\S+)$", text, re.MULTILINE))
    text += "auto* const fallback = tconv::cuda::launch_extremum_fallback;\n"
    return text + "".join(
        f"auto* const join_{number} = tconv::cuda::launch_extremum_join<{storage}>;\n"
        for number, storage in enumerate(_STORAGES)
    )


def _long_chains(masked: bool = False) -> str:
    """The text of generated_gradient.h; masked: with those that read a mask."""
    chains = [one.steps for name in _LONG_CHAINS for one in _all_fused(name)]
    chains += [steps for steps, _ in MASKED_CHAINS] if masked else []
    return gradient_header(chains, counted=True, masked=masked)


def _all_fused(name: str) -> list[Fused]:
    with ambient_kept():
        return list(read_program(REFERENCES / f"{name}.py").kernels.values())


def _fused(name: str) -> Fused:
    """Of a reference with one kernel."""
    (fused,) = _all_fused(name)
    return fused


class BuildsAhead:
    """Futures of the builds that a session's tests ask for, on all cores but one.

    `emulated` has those of the object files of EMULATED, VOLUME_ONLY ... FULL_BLOCKS, by name;
    `gradients` those of the libraries beside the forward, by source; `compiled` those of (the
    kernels' file, nvcc's run) by reference, or by source. They are empty where no test asks, or the
    compiler is missing.
    """

    def __init__(self, folder: Path, shelf: SolutionShelf, items: list):
        cores = os.cpu_count() or 1
        # A process that gives way to others may take what they leave of every core.
        self._pool = ThreadPoolExecutor(cores if os.nice(0) > 0 else max(1, cores - 1))
        self._folder = folder
        self.emulated: dict[str, Future] = {}
        self.gradients: dict[Path, Future] = {}
        self.compiled: dict[Path, Future] = {}
        asked = {name for item in items for name in item.fixturenames}
        # Texts are not made in threads: torch.fx patches globals.
        emulated = EMULATED[:1] if "emulated_conv" in asked else ()
        emulated = EMULATED if "emulated_solutions" in asked else emulated
        libraries = [source for name, source in EMULATED_GRADIENTS.items() if name in asked]
        if emulator.cuda_headers():
            alone = {"emulated_volumes": VOLUME_ONLY, "emulated_many_channels": MANY_CHANNELS}
            alone |= {"emulated_residual": RESIDUAL, "emulated_few_channels": FEW_CHANNELS}
            alone |= {"emulated_joined": JOINED, "emulated_clamped": CLAMPED}
            alone |= {"emulated_extrema": EXTREMA, "emulated_turns": FULL_BLOCKS}
            alone = [name for fixture, name in alone.items() if fixture in asked]
            for name in (*emulated, *alone):
                work = emulator.build, shelf.text(name), self._place(f"emulated_{name}")
                self.emulated[name] = self._pool.submit(*work, OPTIMISED.get(name, "-O2"))
            for path in libraries:
                work = emulator.build_source, cuda_source_of(path), self._place(f"of_{path.stem}")
                self.gradients[path] = self._pool.submit(*work, OPTIMISED.get(path, "-O2"))
        compiled = [item for item in items if item.path.name == "test_cuda_compiles.py"]
        wanted = {i.callspec.params["compiled"] for i in compiled if "compiled" in i.fixturenames}
        for path in sorted(wanted) if shutil.which("nvcc") else ():
            source = self._place(f"compiled_{path.stem}") / "cuda.cu"
            source.write_text(cuda_source_of(path))
            left_out = ["-DTCONV_WITHOUT_BF16"] if path in LONGER_CHAINS else []
            self.compiled[path] = self._pool.submit(run_nvcc, source, *left_out)

    def close(self) -> None:
        """Begin no more of them."""
        self._pool.shutdown(cancel_futures=True)

    def _place(self, name: str) -> Path:
        place = self._folder / name
        place.mkdir()
        return place


def run_nvcc(source: Path, *more: str) -> tuple[Path, subprocess.CompletedProcess]:
    """(the kernels of a source for a solution's architectures, the compiler's run)

    Host code is read, not compiled: that the emulator's builds do.
    """
    command = ["nvcc", *COMMON_NVCC_FLAGS, *_FLAGS, *ARCHITECTURES, *more]
    target = source.with_suffix(".fatbin")
    command += ["-Xptxas=-v", "-fatbin", str(source), "-o", str(target)]
    return target, subprocess.run(command, capture_output=True, text=True)
