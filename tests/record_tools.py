"""What the tests of committed records share."""

import hashlib

import pytest

from harness import machine_code
from tests.sweeps import swept

BY_FILE, BY_MACHINE_CODE = "by file", "by machine code"
# The second compiles the CUDA source of every file that has been edited since it was timed.
how = pytest.mark.parametrize("how", swept([BY_FILE, BY_MACHINE_CODE]))


def require_standing(record: dict, how: str = BY_MACHINE_CODE) -> None:
    """Fails where the record is not of the solution as it is, by file or by machine code, saying
    which differ; skips, with the reason, where this machine cannot tell, or `how` does not.
    """
    for part in machine_code.parts_of(record):
        if "machine_code" in part:
            made = part["machine_code"]
            assert made["sha256"] == machine_code.digest(made), "the entry was edited by hand"
        text = machine_code.current_text(part)
        edited = part["solution_sha256"] != hashlib.sha256(text.encode()).hexdigest()
        if how == BY_FILE and edited and "machine_code" in part:
            pytest.skip("the file has been edited since: -m sweep compares the machine code")
        found = machine_code.standing(part, text, machine_code.reference_of(part))
        if found.verdict == machine_code.CANNOT_TELL:
            pytest.skip(found.why)
        assert found.verdict == machine_code.STANDS, found.why
