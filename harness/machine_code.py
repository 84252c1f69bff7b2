"""`python -m harness.machine_code` gives records a hash of the machine code that they timed.

A record's file may change while its kernels do not: a comment, a line of Python. The entry
"machine_code" tells such an edit from one that asks for timing anew. It holds the SHA-256 of
`code`, the kernels for sm_90a without their names, and of `launches`, what one call at the record's
problem launches, of a training step also the source of the gradients' library; and the compiler,
since another one makes other code of the same source.
"""

import argparse
import functools
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from generator.emit import generate
from generator.errors import Refusal
from harness.catalog import ROOT, Problem, find_problem, list_problems
from harness.errors import EnvironmentUnfit, HarnessError, UsageError
from harness.measure.machine_code_build import (
    Built,
    build,
    cpu_text_sha256,
    cuda_flags,
    cuda_source,
    gradients_sha256,
)
from harness.measure.machine_code_calls import launches
from harness.measure.machine_code_cubin import sha256
from harness.measure.nvcc import compiler
from harness.report import records

# Records of several measurements, each with a solution of its own, by "benchmark".
_PARTS = {"profile": "profiles", "gradients": "problems"}
_EXAMPLES = """examples:
  python -m harness.machine_code --stamp results/nvidia-h200*   of what the records were timed with
  python -m harness.machine_code --check results/nvidia-h200    compare with the solutions of today

Records of problems, of parts of them, of shapes (with the launches of each), of profiles and of
gradients by themselves (an entry for each). A CPU's record gets the SHA-256 of what of its file
runs there. --stamp takes the very text whose SHA-256 a record names: the file, a version of it in
git's history, or what the generator writes.

exit status: 0 all right, 1 --check found another hash, 2 wrong usage, 3 no nvcc"""
STANDS, DIFFERS, CANNOT_TELL = "stands", "differs", "cannot tell"


@dataclass(frozen=True)
class Standing:
    """`verdict`: STANDS, DIFFERS or CANNOT_TELL; `why` in words, with what differs."""

    verdict: str
    why: str


@functools.lru_cache(maxsize=16)
def build_of(text: str) -> Built:
    """The machine code of a solution's text; one compilation for each CUDA source, kept on disk."""
    return build(cuda_source(text), cuda_flags(text))


def machine_code(text: str, record: dict, reference: Path) -> dict:
    """The entry of a record: of the solution `text`, called as the record says.

    Raises EnvironmentUnfit without nvcc, UsageError for what cannot be compiled or followed.
    """
    built = build_of(text)
    lines = launches(built, record, reference)
    if record.get("backward"):
        # Their launches are not followed: any change of their source is one.
        lines = [*lines, f"gradients: {gradients_sha256(text) or 'by PyTorch'}"]
    return entry(built.cubin.digest(), lines)


def entry(code: str, lines: list[str]) -> dict:
    """The entry of machine code with the SHA-256 `code` and of the launches `lines`."""
    made = {"compiler": compiler(), "code": code, "launches": lines}
    return {"sha256": digest(made), **made}


def digest(found: dict) -> str:
    """What an entry's "sha256" has to be."""
    return sha256(found["code"], list(found["launches"]))


def standing(record: dict, text: str, reference: Path) -> Standing:
    """Whether a record, maybe of an earlier text, holds for the solution `text`."""
    if record["solution_sha256"] == hashlib.sha256(text.encode()).hexdigest():
        return Standing(STANDS, "the file is the one that was timed")
    file_differs = "the file is another one than was timed"
    if record["device"] == "cpu":
        if record.get("cpu_text_sha256") == cpu_text_sha256(text):
            return Standing(STANDS, f"{file_differs}; what of it runs on a CPU is the same")
        return Standing(DIFFERS, f"{file_differs}, in what runs on a CPU")
    if "machine_code" not in record:
        return Standing(DIFFERS, f"{file_differs}, and the record has no hash of machine code")
    found = compare(record, text, reference)
    return Standing(found.verdict, f"{file_differs}; {found.why}")


def compare(record: dict, text: str, reference: Path) -> Standing:
    """Whether the machine code and launches of `text` are a record's, whatever its file."""
    known = record["machine_code"]
    if compiler() != known["compiler"]:
        here = f"here it is {compiler()}" if compiler() else "there is no nvcc here"
        why = f"the machine code was {known['compiler']}'s, {here}: they cannot be compared"
        return Standing(CANNOT_TELL, why)
    made = machine_code(text, record, reference)
    parts = []
    if made["code"] != known["code"]:
        parts.append(f"the kernels' machine code differs ({known['code']}, now {made['code']})")
    if made["launches"] != known["launches"]:
        changed = "\n".join(_changes(known["launches"], made["launches"]))
        parts.append(f"the launches differ:\n{changed}")
    if parts:
        return Standing(DIFFERS, "; ".join(parts))
    return Standing(STANDS, "kernels and launches are the ones that were timed")


def _changes(before: list[str], after: list[str]) -> Iterator[str]:
    for index in range(max(len(before), len(after))):
        old, new = (lines[index] if index < len(lines) else None for lines in (before, after))
        if old != new:
            yield from (f"  - {old}" for _ in [old] if old)
            yield from (f"  + {new}" for _ in [new] if new)


def parts_of(record: dict) -> list[dict]:
    """The record itself, or of a record of profiles or of gradients those, each with what is told
    of all. A record of host times has none: it is of no kernel.
    """
    if record.get("benchmark") == "host_time":
        return []
    if record.get("benchmark") not in _PARTS:
        return [record]
    common = {name: record[name] for name in ("device", "versions")}
    return [{**common, **part} for part in record[_PARTS[record["benchmark"]]]]


def current_text(record: dict) -> str:
    """The solution as it is now: the project's file, or else what the generator writes.

    Raises UsageError where there is neither.
    """
    path = _solution(record)
    if path.is_file():
        return path.read_text(encoding="utf-8")
    try:
        return generate(reference_of(record), Path(record["solution"]))
    except Refusal as refusal:
        raise UsageError(f"no solution of this record: {refusal}") from None


def reference_of(record: dict) -> Path:
    """The reference file of a record. Raises UsageError where it is not in this project."""
    if "reference" not in record:
        return _problem(record).reference
    path = ROOT / record["reference"]
    if not path.is_file():
        raise UsageError(f"{record['reference']}: the record's reference is not here")
    return path


def _problem(record: dict) -> Problem:
    """Of a profile, or of a record of shapes, which is of a problem's solution."""
    if "problem" in record:
        return find_problem(record["problem"])
    known = {problem.solution: problem for problem in list_problems()}
    if _solution(record) not in known:
        raise UsageError(f"{record['solution']}: not a solution of this project's problems")
    return known[_solution(record)]


def _solution(record: dict) -> Path:
    if "solution" in record:
        return ROOT / record["solution"]
    return _problem(record).solution


def _path_of(record: dict) -> str:
    """The solution's path within the project."""
    return _solution(record).relative_to(ROOT).as_posix()


def timed_text(record: dict) -> str:
    """The solution whose SHA-256 the record names, of today or out of git's history.

    Raises UsageError where it cannot be found.
    """
    for text in _texts(record):
        if hashlib.sha256(text.encode()).hexdigest() == record["solution_sha256"]:
            return text
    raise UsageError(
        f"{_path_of(record)}: neither the file nor git's history has the text "
        f"with SHA-256 {record['solution_sha256']}"
    )


def _texts(record: dict) -> Iterator[str]:
    yield current_text(record)
    path = _path_of(record)
    if "/" not in path:  # of a part of a problem, which is generated: git has none
        return
    for commit in _git("log", "--format=%H", "--", path).split():
        try:
            yield _git("show", f"{commit}:{path}")
        except UsageError:  # the commit that removes it
            continue


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        return subprocess.run(command, capture_output=True, check=True).stdout.decode()
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"git's history cannot be read: {error}") from None


def stamp(record: dict) -> dict:
    """The record with its entry, of the text that it was timed with.

    Raises UsageError for a record of another compiler than the nvcc here, and one whose text or
    call cannot be found; EnvironmentUnfit without nvcc.
    """
    if record["device"] == "cpu":
        return {**record, "cpu_text_sha256": cpu_text_sha256(timed_text(record))}
    if compiler() is None:
        raise EnvironmentUnfit("a record cannot be stamped: no nvcc on this machine")
    _require_compiler(record.get("versions", {}))
    stamped = dict(record)
    if name := _PARTS.get(record.get("benchmark")):
        made = [_entry_of_timed(part) for part in parts_of(record)]
        pairs = zip(record[name], made, strict=True)
        stamped[name] = [_with_entry(part, found) for part, found in pairs]
        return stamped
    return _with_entry(stamped, _entry_of_timed(record))


def _entry_of_timed(record: dict) -> dict:
    return machine_code(timed_text(record), record, reference_of(record))


def _with_entry(record: dict, made: dict) -> dict:
    """The entry stands behind the file's SHA-256."""
    names = [name for name in record if name != "machine_code"]
    names.insert(names.index("solution_sha256") + 1, "machine_code")
    return {name: {**record, "machine_code": made}[name] for name in names}


def _require_compiler(versions: dict) -> None:
    """Older records do not name nvcc's build: of these its release, CUDA's, has to do."""
    named, here = versions.get("nvcc"), compiler()
    if named is not None and named != here:
        raise UsageError(f"the record was built by nvcc {named}, and here is {here}")
    release = re.match(r"cuda_(\d+\.\d+)", here)
    if named is None and (release is None or release[1] != versions.get("cuda")):
        raise UsageError(f"the record was built with CUDA {versions.get('cuda')}, here is {here}")


def _files(paths: list[Path]) -> list[Path]:
    """The files given, and the records of solutions in the folders given, in order."""
    found = []
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path}: no such file or folder")
        inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
        found += [file for file in inside if not path.is_dir() or _is_of_solution(file)]
    return found


def _is_of_solution(path: Path) -> bool:
    value = _read(path)
    return "solution_sha256" in value or value.get("benchmark") == "profile"


def _read(path: Path) -> dict:
    try:
        value = json.loads(path.read_text())
    except ValueError as error:
        raise UsageError(f"{path}: not JSON ({error})") from None
    if not isinstance(value, dict) or "device" not in value:
        raise UsageError(f"{path}: not a record")
    return value


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.machine_code",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--stamp", type=Path, nargs="+", metavar="PATH", help="write the entry")
    what.add_argument("--check", type=Path, nargs="+", metavar="PATH", help="compare the entry")
    given = parser.parse_args(arguments)
    status = 0
    try:
        for path in _files(given.stamp or given.check):
            record = _read(path)
            try:
                status = max(status, _stamp(path, record) if given.stamp else _check(path, record))
            except HarnessError as error:
                raise type(error)(f"{path}: {error}") from None
    except HarnessError as error:
        print(f"harness.machine_code: error: {error}", file=sys.stderr)
        return error.exit_status
    return status


def _stamp(path: Path, record: dict) -> int:
    if not parts_of(record):
        raise UsageError(
            "a record of host times is of no kernel: there is nothing to stamp it with"
        )
    stamped = stamp(record)
    records.write_json(path, stamped)
    if record["device"] == "cpu":
        print(f"{path}: {stamped['cpu_text_sha256']}", flush=True)
        return 0
    for part in parts_of(stamped):
        print(f"{path}: {part['machine_code']['sha256']}", flush=True)
    return 0


def _check(path: Path, record: dict) -> int:
    status = 0
    for part in parts_of(record):
        of_cpu = part["device"] == "cpu"
        if not of_cpu and "machine_code" not in part:
            raise UsageError("the record has no hash of machine code: --stamp gives it one")
        judge = standing if of_cpu else compare
        found = judge(part, current_text(part), reference_of(part))
        print(f"{path}: {found.verdict}: {found.why}", flush=True)
        status = max(status, int(found.verdict == DIFFERS))
    return status


if __name__ == "__main__":
    sys.exit(main())
