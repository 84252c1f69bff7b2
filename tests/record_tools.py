"""What the tests of committed records share."""

import pytest

from harness import machine_code


def require_standing(record: dict) -> None:
    """Fails where the record is not of the solution as it is, by file or by machine code, saying
    which differ; skips, with the reason, where this machine cannot tell.
    """
    for part in machine_code.parts_of(record):
        if "machine_code" in part:
            made = part["machine_code"]
            assert made["sha256"] == machine_code.digest(made), "the entry was edited by hand"
        text = machine_code.current_text(part)
        found = machine_code.standing(part, text, machine_code.reference_of(part))
        if found.verdict == machine_code.CANNOT_TELL:
            pytest.skip(found.why)
        assert found.verdict == machine_code.STANDS, found.why
