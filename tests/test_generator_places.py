"""Where a solution may be written, and what is told where it cannot."""

import os
from pathlib import Path

import pytest

from generator.__main__ import main
from tests.test_generator import write_reference


def _alias(kind: str, reference: Path) -> Path:
    """Another name of the reference."""
    folder = reference.parent
    if kind == "other spelling":
        (folder / "sub").mkdir()
        return folder / "sub" / ".." / reference.name
    if kind in ("symbolic link", "hard link"):
        link = folder / "link.py"
        link.symlink_to(reference) if kind == "symbolic link" else os.link(reference, link)
        return link
    if kind == "linked folder":
        (folder / "other").symlink_to(folder)
        return folder / "other" / reference.name
    return reference


@pytest.mark.parametrize(
    "kind", ["same path", "other spelling", "symbolic link", "hard link", "linked folder"]
)
def test_the_reference_is_not_overwritten_under_any_name(kind, tmp_path, capsys):
    reference = write_reference(tmp_path, "return self.conv(x)")
    before = reference.read_bytes()
    output = _alias(kind, reference)
    assert main([str(reference), "-o", str(output)]) == 2
    captured = capsys.readouterr()
    assert "would overwrite the input" in captured.err and len(captured.err.splitlines()) == 1
    assert reference.read_bytes() == before and captured.out == ""


def test_the_place_for_a_solution_must_be_one(tmp_path, capsys):
    reference = write_reference(tmp_path, "return self.conv(x)")
    (tmp_path / "file").write_text("kept")
    (tmp_path / "loop").symlink_to("loop")
    for output in (tmp_path, tmp_path / "file" / "s.py", tmp_path / "loop", "/proc/none/s.py"):
        left = sorted(tmp_path.rglob("*"))
        assert main([str(reference), "-o", str(output)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
        assert sorted(tmp_path.rglob("*")) == left
    assert (tmp_path / "file").read_text() == "kept"


def test_a_solution_is_written_through_a_link(tmp_path):
    reference = write_reference(tmp_path, "return self.conv(x)")
    link = tmp_path / "link.py"
    link.symlink_to(tmp_path / "folder" / "solution.py")
    assert main([str(reference), "-o", str(link)]) == 0
    assert link.is_symlink() and "class ModelNew" in link.read_text()


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"raise SystemExit(0)\n"])
def test_what_is_no_python_and_what_exits_is_refused(content, tmp_path, capsys):
    path = tmp_path / "reference.py"
    path.write_bytes(content)
    assert main([str(path), "-o", str(tmp_path / "solution.py")]) == 2
    assert "refused" in capsys.readouterr().err and not (tmp_path / "solution.py").exists()


def test_an_internal_error_is_status_4_and_one_line(tmp_path, capsys, monkeypatch):
    import generator.__main__ as program

    def fail(*arguments, **options):
        raise KeyError("lost")

    monkeypatch.setattr(program, "generate", fail)
    reference = write_reference(tmp_path, "return self.conv(x)")
    assert main([str(reference), "-o", str(tmp_path / "solution.py")]) == 4
    told = capsys.readouterr().err
    assert "internal error: KeyError: 'lost'" in told and len(told.splitlines()) == 1
