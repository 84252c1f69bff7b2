"""References and solutions given as text, evaluated on a CPU."""

import json

from harness.run import cli
from tests.solution_tools import ROOT

TINY = (ROOT / "tests" / "fixtures" / "tiny.py").read_text()


def evaluated(folder, result: str, own_result: str, *arguments: str) -> tuple[int, dict | None]:
    """(exit status, record) of the tiny reference with this result, and itself with another."""
    paths = [folder / name for name in ("ref.py", "sol.py", "record.json")]
    paths[0].write_text(TINY.replace("self.conv(x)", result))
    own = TINY.replace("self.conv(x)", own_result)
    paths[1].write_text(own.replace("class Model(", "class ModelNew("))
    given = ["--reference", str(paths[0]), "--solution", str(paths[1]), "--device", "cpu"]
    status = cli.main([*given, "--json", str(paths[2]), *arguments])
    return status, json.loads(paths[2].read_text()) if paths[2].exists() else None
