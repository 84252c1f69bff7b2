"""Which references of a folder are the generator's."""

import re
from pathlib import Path

_TRANSPOSED = re.compile(r"ConvTranspose|conv_transpose")


def transposed_references(folder: Path) -> list[Path]:
    """The *.py files below `folder` that define a Model and name a transposed convolution in their
    text, in the order of their paths; none with a part of its path that begins with "_" or ".".
    """
    found = []
    for path in sorted(folder.rglob("*.py")):
        if any(part[0] in "_." for part in path.relative_to(folder).parts):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if "class Model" in text and _TRANSPOSED.search(text):
            found.append(path)
    return found
