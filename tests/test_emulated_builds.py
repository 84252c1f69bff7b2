"""Emulated kernels that are kept for other sessions are those of the same text and flags."""

from tests.cuda_emulator import emulator


def test_what_is_kept_is_of_the_same_text_and_flags(tmp_path, monkeypatch):
    monkeypatch.setenv("TCONV_EMULATED_DIR", str(tmp_path / "kept"))
    run, ran = emulator.subprocess.run, []
    monkeypatch.setattr(
        emulator.subprocess,
        "run",
        lambda command, **more: ran.append(command) or run(command, **more),
    )
    source, made = tmp_path / "source.cpp", []
    for place, (text, flag) in enumerate((("1", "-O0"), ("2", "-O0"), ("1", "-O1"), ("1", "-O0"))):
        source.write_text(f"int of_{text}() {{ return {text}; }}\n")
        target = tmp_path / f"{place}.o"
        emulator._compile([flag, "-c", source, "-o", target], "a function")
        made.append((len(ran), b"of_1" in target.read_bytes()))
    assert made == [(1, True), (2, False), (3, True), (3, True)]
    monkeypatch.delenv("TCONV_EMULATED_DIR")
    emulator._compile(["-O0", "-c", source, "-o", target], "a function")
    assert len(ran) == 4
