"""Several files written whole, or none of them."""

import os
import tempfile
from pathlib import Path

from harness.errors import UsageError


def write_files(files: dict[Path, bytes]) -> None:
    """Write every file beside its place first and move them all there at the end.

    Raises UsageError, with nothing written, where a path cannot be written.
    """
    waiting: dict[Path, str] = {}
    try:
        for path, content in files.items():
            if path.is_dir():
                raise IsADirectoryError(f"{path}: is a folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, waiting[path] = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.chmod(waiting[path], 0o644)
        for path in files:
            os.replace(waiting.pop(path), path)
    except OSError as error:
        raise UsageError(f"cannot write: {error}") from None
    finally:
        for temporary in waiting.values():
            os.unlink(temporary)
