"""python -m generator: reference files in, solution files out."""

import argparse
import difflib
import sys
from pathlib import Path

from generator import static_rules
from generator.emit import generate, write
from generator.errors import Refusal
from generator.explain import report, table
from generator.program import ambient_kept, read_program
from generator.sources import ROOT
from harness.files import require_file
from harness.run.ending import status_of

PROBLEMS = ROOT / "harness" / "problems"
SOLUTIONS = ROOT / "solutions"

_EXAMPLES = """examples:
  python -m generator harness/problems/level1/65_conv_transpose_3x7.py -o solution.py
  python -m generator REFERENCE.py --explain    what becomes of each of its operators
  python -m generator FOLDER --explain          a table of its references
  python -m generator --all       write solutions/ anew
  python -m generator --check     exit 1 where solutions/ differs from what would be written

exit status: 0 done, 1 --check found a difference, 2 wrong usage, a refused reference or a place
that cannot be written, 4 an internal error (TCONV_TRACEBACK=1 shows where)"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m generator",
        description="Writes self-contained solution files from references in KernelBench format.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("reference", nargs="?", type=Path, help="reference file")
    parser.add_argument("-o", "--output", type=Path, metavar="SOLUTION", help="file to write")
    parser.add_argument("--all", action="store_true", help="every problem of harness/problems")
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit 1 where a file differs (default: all)",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="print every operator of the reference: fused where, or left, and why; of a folder "
        "a table of its references",
    )
    parser.add_argument(
        "--pytorch-gradients",
        action="store_true",
        help="leave the convolution's gradients on CUDA to PyTorch: a shorter file, which trains "
        "slower",
    )
    parser.add_argument(
        "--device",
        choices=("all", "cuda"),
        default="all",
        help="cuda: leave out the C++ kernels, so that tensors on a CPU are refused (default: all)",
    )
    return parser


def _jobs(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace
) -> list[tuple[Path, Path]]:
    if arguments.reference is not None:
        if arguments.all:
            parser.error("--all takes no reference")
        if arguments.output is None:
            parser.error("-o SOLUTION is needed with a reference")
        return [(arguments.reference, arguments.output)]
    if arguments.output is not None or not (arguments.all or arguments.check):
        parser.error("give a reference and -o SOLUTION, or --all, or --check")
    problems = sorted(PROBLEMS.glob("level*/*.py"))
    return [(path, SOLUTIONS / path.relative_to(PROBLEMS)) for path in problems]


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.explain:
        if arguments.reference is None or arguments.all or arguments.check or arguments.output:
            parser.error("--explain takes a reference and nothing else")
        return status_of("python -m generator", lambda: _explain(arguments.reference))
    jobs = _jobs(parser, arguments)
    return status_of("python -m generator", lambda: _run(jobs, arguments))


def _explain(reference: Path) -> int:
    try:
        with ambient_kept():
            is_folder = reference.is_dir()
            print(table(reference) if is_folder else report(read_program(reference)))
    except Refusal as refusal:
        print(f"refused: {refusal}", file=sys.stderr)
        return 2
    return 0


def _run(jobs: list[tuple[Path, Path]], arguments: argparse.Namespace) -> int:
    if not arguments.check:
        references = [reference for reference, _ in jobs]
        for _, output in jobs:
            require_file(output, "-o", references)
    texts, refused = [], 0
    for reference, output in jobs:
        try:
            texts.append(
                (
                    generate(
                        reference,
                        output,
                        built=not arguments.check,
                        own_gradients=not arguments.pytorch_gradients,
                        cuda_alone=arguments.device == "cuda",
                    ),
                    output,
                )
            )
        except Refusal as refusal:  # which is no reason to leave the others
            refused += 1
            print(f"refused: {refusal}", file=sys.stderr)
    status = 0
    if arguments.check:
        status = _check(texts, all_files=arguments.reference is None and not refused)
    for text, output in () if arguments.check else texts:
        write(text, output)
        print(f"wrote {output}")
        for told in static_rules.findings(text, "float32").warnings:
            print(f"KernelBench's checker warns, and does not reject, of {told}", file=sys.stderr)
    return 2 if refused else status


def _check(texts: list[tuple[str, Path]], all_files: bool) -> int:
    different = 0
    for text, output in texts:
        committed = output.read_text(encoding="utf-8") if output.is_file() else ""
        if committed != text:
            different += 1
            print(f"differs: {output}", file=sys.stderr)
            diff = difflib.unified_diff(
                committed.splitlines(),
                text.splitlines(),
                "committed",
                "generated",
                lineterm="",
                n=1,
            )
            print("\n".join(list(diff)[:20]), file=sys.stderr)
    strays = set(SOLUTIONS.glob("level*/*.py")) - {output for _, output in texts}
    for stray in sorted(strays) if all_files else ():
        different += 1
        print(f"no problem generates {stray}", file=sys.stderr)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
