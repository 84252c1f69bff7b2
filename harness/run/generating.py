"""Solutions made by the generator, a library that is called in processes of their own: it executes
references and what it has written of them, and the process that judges never runs a solution.
"""

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from pathlib import Path

SECONDS = 600.0  # that one reference may take
_GIBIBYTES_EACH = 4  # of host memory, which the proof of a large model may need


def generate_file(
    reference: Path, output: Path, built: bool = False, seconds: float = SECONDS
) -> str | None:
    """Write the solution of a reference; None when it is done, else why there is none.

    `built`: it is proved with its C++ half, which is built for that. Nothing is written where there
    is a reason; a reference that crashes, exits or hangs is one.
    """
    context = multiprocessing.get_context("spawn")  # a forked process cannot use torch's threads
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=_generate, args=(reference.resolve(), output, built, theirs), daemon=True
    )
    process.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            return f"the generator did not end within {seconds:g} s"
        return ours.recv()
    except EOFError:
        process.join(5)
        return f"the generator's process ended with status {process.exitcode}"
    finally:
        process.kill()
        process.join()
        ours.close()


def generate_files(
    jobs: dict[Path, Path], note: Callable[[Path, str | None], None]
) -> dict[Path, str | None]:
    """`generate_file` for every reference and its output, several at a time; the reason, or None,
    by reference. `note` is told each as it comes.
    """
    found: dict[Path, str | None] = {}
    with ThreadPoolExecutor(_at_once()) as pool:
        waiting = {pool.submit(generate_file, *job): job[0] for job in jobs.items()}
        try:
            for future in as_completed(waiting):
                reference = waiting[future]
                found[reference] = future.result()
                note(reference, found[reference])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def _at_once() -> int:
    from harness.judge.keeper import available_bytes

    return max(1, min((os.cpu_count() or 1) // 2, available_bytes() // (_GIBIBYTES_EACH << 30)))


def _generate(reference: Path, output: Path, built: bool, connection: Connection) -> None:
    """In the other process: None or the reason, sent."""
    from generator.emit import generate, write
    from generator.errors import Refusal
    from harness.errors import HarnessError

    try:
        write(generate(reference, output, built=built), output)
        connection.send(None)
    except (Refusal, HarnessError) as refusal:
        connection.send(str(refusal))
    except Exception as error:
        connection.send(f"internal error of the generator: {type(error).__name__}: {error}")
