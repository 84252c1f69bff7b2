"""Where and how output is written: the one place that decides it.

A file is written whole or not at all. Symbolic links stay, what they point to is replaced; a pipe,
a terminal, /dev/null or /dev/stdout is written to; nothing else is touched.
"""

import errno
import os
import re
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from harness.errors import EnvironmentUnfit, UsageError

_DESCRIPTOR = re.compile(r"/proc/[^/]+(/task/[^/]+)?/fd/\d+")
_LINKS = 40  # as many as Linux follows
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def require_file(path: Path, option: str, inputs: Iterable[Path | None] = ()) -> None:
    """Raise UsageError where a file cannot be written at `path`, or where `path` is one of
    `inputs`, by whatever name. Nothing is left behind. `option` is what the user gave it to.
    """
    try:
        for given in inputs:
            if given is not None and path.exists() and given.exists() and path.samefile(given):
                raise UsageError(f"{option} {path}: would overwrite the input {given}")
        if _is_stream(path):
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        else:
            _probe(_real(path).parent)
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be written: {_told(error)}") from None


def require_folder(path: Path, option: str, filled_is_enough: bool = False) -> None:
    """Raise UsageError where files cannot be written into the folder `path`, there already or not.

    `filled_is_enough`: one that holds something already may be read-only.
    """
    try:
        if filled_is_enough and path.is_dir() and any(path.iterdir()):
            return
        if path.exists() and not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "not a folder")
        _probe(Path(os.path.realpath(path)))
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be written to: {_told(error)}") from None


def write_files(files: dict[Path, bytes]) -> None:
    """Write every file beside its place first and move them all there at the end.

    Raises UsageError, with no file changed, where a path cannot be written, and EnvironmentUnfit
    where the disk fails. What goes to pipes and devices goes there last.
    """
    waiting: dict[Path, str] = {}
    path = Path()
    try:
        streams = [path for path in files if _is_stream(path)]
        for path in [path for path in files if path not in streams]:
            real = _real(path)
            real.parent.mkdir(parents=True, exist_ok=True)
            mode = stat.S_IMODE(real.stat().st_mode) if real.exists() else 0o644
            if real in waiting:
                raise OSError(errno.EINVAL, "is given twice")
            handle, waiting[real] = tempfile.mkstemp(dir=real.parent, prefix=".writing-")
            with os.fdopen(handle, "wb") as file:
                file.write(files[path])
            os.chmod(waiting[real], mode)
        for real in list(waiting):
            os.replace(waiting[real], real)
            del waiting[real]
        for path in streams:
            # Appending, for /dev/stdout may be a file that holds something.
            with open(os.open(path, os.O_WRONLY | os.O_APPEND), "wb") as file:
                file.write(files[path])
    except OSError as error:
        kind = EnvironmentUnfit if error.errno in _FULL else UsageError
        raise kind(f"cannot write {path}: {_told(error)}") from None
    finally:
        for temporary in waiting.values():
            os.unlink(temporary)


def remove_file(path: Path) -> None:
    """Remove the regular file at `path`, or behind the links there; nothing else."""
    if path.is_file():
        os.unlink(os.path.realpath(path))


def _is_stream(path: Path) -> bool:
    """Whether `path` is something to write to: a pipe, a device for characters, or an open file.

    Raises OSError for a folder, a disk, a socket, a loop of links and a file that is read-only.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder")
    if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)):
        raise OSError(errno.EINVAL, "is no regular file, pipe or terminal")
    if stat.S_ISREG(mode) and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return not stat.S_ISREG(mode) or _is_open_file(path)


def _is_open_file(path: Path) -> bool:
    """Whether the name leads over /proc/<process>/fd: /dev/stdout, /dev/fd/3."""
    for _ in range(_LINKS):
        parent = os.path.realpath(path.parent)
        if _DESCRIPTOR.fullmatch(os.path.join(parent, path.name)):
            return True
        if not path.is_symlink():
            return False
        path = Path(parent, os.readlink(path))
    return False


def _real(path: Path) -> Path:
    """The place behind all links, where there may be nothing yet."""
    return Path(os.path.realpath(path))


def _probe(folder: Path) -> None:
    """Try whether a file can be created in `folder`, or in the nearest folder above that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"{folder} is not a folder")
    with tempfile.TemporaryFile(dir=folder):
        return


def _told(error: OSError) -> str:
    return error.strerror or str(error)
