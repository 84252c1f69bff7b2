"""Records that survive an edit: when one stands, when it does not, and when nobody can tell."""

import hashlib
import json
import subprocess
from types import SimpleNamespace

import pytest

from harness import devices, machine_code
from harness.catalog import find_problem
from harness.errors import EnvironmentUnfit, UsageError
from harness.machine_code import CANNOT_TELL, DIFFERS, STANDS
from harness.measure import machine_code_build, nvcc
from tests.record_tools import require_standing

NVCC = "cuda_13.0.r13.0/compiler.1_0"
LINES = ["memset value 0 bytes 4", "kernel aa grid 1x1x1", "kernel bb grid 2x1x1"]
REFERENCE = find_problem("65").reference


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def compiled(monkeypatch):
    """What is compiled and followed, without doing so: set `code`, `lines` and `compiler`."""
    made = SimpleNamespace(code="c0de", lines=list(LINES), compiler=NVCC, texts=[])
    digest = SimpleNamespace(digest=lambda: made.code)

    def build_of(text):
        made.texts.append(text)
        return SimpleNamespace(cubin=digest)

    monkeypatch.setattr(machine_code, "build_of", build_of)
    monkeypatch.setattr(machine_code, "launches", lambda *arguments: list(made.lines))
    monkeypatch.setattr(machine_code, "compiler", lambda: made.compiler)
    return made


def record(text: str = "timed", **changes) -> dict:
    told = {
        "problem": "1/65",
        "reference": "harness/problems/level1/65_conv_transpose_3x7.py",
        "solution": "solutions/level1/65_conv_transpose_3x7.py",
        "solution_sha256": sha256(text),
        "device": "nvidia-h200",
        "versions": {"cuda": "13.0"},
    }
    return {**told, **changes}


@pytest.fixture
def stamped(compiled):
    made = machine_code.machine_code("timed", record(), REFERENCE)
    compiled.texts.clear()
    return record(machine_code=made)


def standing(of: dict, text: str = "edited"):
    return machine_code.standing(of, text, REFERENCE)


def test_the_same_file_stands_and_nothing_is_compiled(compiled, stamped):
    compiled.compiler = None
    assert standing(stamped, "timed").verdict == STANDS
    assert standing(record(device="cpu"), "timed").verdict == STANDS
    assert compiled.texts == []


def test_an_edit_that_leaves_the_kernels_alone_stands(compiled, stamped):
    found = standing(stamped)
    assert found.verdict == STANDS and compiled.texts == ["edited"]
    assert "the file is another one" in found.why and "kernels and launches are" in found.why


def test_it_is_said_which_differs(compiled, stamped):
    compiled.code = "0ther"
    found = standing(stamped)
    assert found.verdict == DIFFERS and "the file is another one" in found.why
    assert "machine code differs (c0de, now 0ther)" in found.why and "launches" not in found.why
    compiled.code = "c0de"
    compiled.lines[1:] = ["kernel aa grid 7x1x1"]
    found = standing(stamped)
    assert found.verdict == DIFFERS and "machine code differs" not in found.why
    changes = "  - kernel aa grid 1x1x1\n  + kernel aa grid 7x1x1\n  - kernel bb grid 2x1x1"
    assert found.why.endswith(f"the launches differ:\n{changes}")


def with_gradients(source: str) -> str:
    return f'CUDA_SOURCE = r"""\none\ntwo"""\nGRADIENT_CUDA_SOURCE = r"""{source}"""\n'


def test_a_training_step_is_also_of_its_gradients_source(compiled):
    timed = with_gradients("a = 1;  // why\n// ==== lines 1 to 2 of CUDA_SOURCE")
    made = record(timed, backward=True)
    made["machine_code"] = machine_code.machine_code(timed, made, REFERENCE)
    assert standing(made, with_gradients("  a = 1;\none")).verdict == STANDS
    found = standing(made, with_gradients("a = 2;\none"))
    assert found.verdict == DIFFERS and "+ gradients: " in found.why
    found = standing(made, "edited")
    assert found.verdict == DIFFERS and "+ gradients: by PyTorch" in found.why
    assert not any("gradients" in line for line in LINES)  # of forward alone: not looked at


@pytest.mark.parametrize("here", ["cuda_13.1.r13.1/compiler.2_0", None])
def test_another_compiler_cannot_tell(compiled, stamped, here):
    compiled.compiler = here
    found = standing(stamped)
    assert found.verdict == CANNOT_TELL and NVCC in found.why and compiled.texts == []
    assert (here or "no nvcc here") in found.why


def test_without_a_hash_the_file_decides(compiled):
    found = standing(record())
    assert found.verdict == DIFFERS and "no hash of machine code" in found.why
    found = standing(record(device="cpu", machine_code={}))
    assert found.verdict == DIFFERS and "CPU" in found.why and compiled.texts == []


def test_a_cpus_record_stands_while_what_runs_there_is_the_same(project, compiled):
    """Docstring, CUDA sources and libraries of gradients are not it."""

    def text(docstring="a", cuda="b", gradients="c", code="d = 1"):
        sources = f'CUDA_SOURCE = r"""{cuda}"""\nNORM_GRADIENT_OPERATOR_SOURCE = r"""{gradients}"""'
        return f'"""{docstring}\n"""\n{sources}\nCPU_SOURCE = r"""e"""\n{code}\n'

    (project / record()["solution"]).write_text(text())
    stamped = machine_code.stamp(record(text(), device="cpu"))
    for same in (text(docstring="x"), text(cuda="x\ny"), text(gradients="x")):
        found = standing(stamped, same)
        assert found.verdict == STANDS and "runs on a CPU is the same" in found.why
    for other in (text(code="d = 2"), text().replace("e", "x")):
        assert standing(stamped, other).verdict == DIFFERS
    loads = "\n\ndef _load_operators(name):\n    return {}\n\n\n_GRADIENT_CUDA = {}\n"
    timed = text(code="d = 1" + loads.format(1, 2))
    (project / record()["solution"]).write_text(timed)
    stamped = machine_code.stamp(record(timed, device="cpu"))
    assert standing(stamped, text(code="d = 1" + loads.format(3, 4))).verdict == STANDS
    assert standing(stamped, text(code="d = 2" + loads.format(1, 2))).verdict == DIFFERS
    assert compiled.texts == []


def test_the_hash_is_of_code_and_launches():
    told = {"code": "a", "launches": ["b", "c"], "compiler": NVCC}
    others = [{**told, "code": "b"}, {**told, "launches": ["bc"]}, {**told, "launches": ["c", "b"]}]
    assert len({machine_code.digest(entry) for entry in [told, *others]}) == 4


# What the tests of committed records do with it -------------------------------------------------


def test_records_are_held_to_it(compiled, stamped, monkeypatch):
    monkeypatch.setattr(machine_code, "current_text", lambda record: "edited")
    require_standing(stamped)
    with pytest.raises(AssertionError, match="edited by hand"):
        require_standing({**stamped, "machine_code": {**stamped["machine_code"], "code": "x"}})
    with pytest.raises(AssertionError, match="no hash of machine code"):
        require_standing(record())
    compiled.code = "0ther"
    with pytest.raises(AssertionError, match="machine code differs"):
        require_standing(stamped)
    compiled.compiler = None
    with pytest.raises(pytest.skip.Exception, match="no nvcc here"):
        require_standing(stamped)


# Stamping ---------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path, monkeypatch, compiled):
    """A project whose solution was committed twice and then edited, as `ROOT`."""
    monkeypatch.setattr(machine_code, "ROOT", tmp_path)
    path = tmp_path / record()["solution"]
    path.parent.mkdir(parents=True)
    (tmp_path / record()["reference"]).parent.mkdir(parents=True)
    (tmp_path / record()["reference"]).write_text("")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    for text in ("oldest", "timed", None, "now"):
        path.unlink() if text is None else path.write_text(text)
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", "x"], check=True)
    path.write_text("edited")
    return tmp_path


@pytest.mark.parametrize("text", ["edited", "now", "timed", "oldest"])
def test_the_text_is_the_one_that_was_timed(project, compiled, text):
    made = machine_code.stamp(record(text))
    assert compiled.texts == [text]
    assert list(made) == [*list(record())[:4], "machine_code", "device", "versions"]
    assert made["machine_code"]["launches"] == LINES
    assert made["machine_code"]["sha256"] == machine_code.digest(made["machine_code"])
    assert machine_code.stamp(made) == made


def test_a_text_that_is_nowhere(project):
    with pytest.raises(UsageError, match=f"git's history.*{sha256('unknown')}"):
        machine_code.stamp(record("unknown"))


def test_a_part_is_what_is_generated(compiled, monkeypatch):
    monkeypatch.setattr(machine_code, "generate", lambda reference, output: f"{output}: part")
    part = record("part.py: part", solution="part.py")
    assert "machine_code" in machine_code.stamp(part)
    assert compiled.texts == ["part.py: part"]
    with pytest.raises(UsageError, match="git's history"):
        machine_code.stamp(record(solution="part.py"))


@pytest.mark.parametrize(
    ("versions", "allowed"),
    [
        ({"cuda": "13.0"}, True),
        ({"cuda": "13.0", "nvcc": None}, True),
        ({"cuda": "13.0", "nvcc": NVCC}, True),
        ({"cuda": "13.0", "nvcc": "cuda_13.0.r13.0/compiler.2_0"}, False),
        ({"cuda": "12.8"}, False),
        ({"cuda": "13"}, False),
    ],
)
def test_the_compiler_has_to_be_the_record_s(project, versions, allowed):
    told = record("now", versions=versions)
    if allowed:
        assert machine_code.stamp(told)["machine_code"]["compiler"] == NVCC
    else:
        with pytest.raises(UsageError, match=r"the record was built .* here is cuda_13\.0"):
            machine_code.stamp(told)


def test_profiles_are_stamped_one_by_one(project, compiled):
    common = {"device": "nvidia-h200", "versions": {"cuda": "13.0"}, "benchmark": "profile"}
    kept = {name: record("now")[name] for name in ("problem", "solution", "reference")}
    entry = {**kept, "solution_sha256": sha256("now"), "kernels": []}
    made = machine_code.stamp({**common, "profiles": [entry, entry]})
    assert [profile["machine_code"]["launches"] for profile in made["profiles"]] == [LINES, LINES]
    assert list(made) == [*common, "profiles"] and "versions" not in made["profiles"][0]
    require_standing(made)


def test_command(project, compiled, capsys, monkeypatch):
    folder = project / "results"
    folder.mkdir()
    path, other = folder / "1_65.json", folder / "cpu.json"
    path.write_text(json.dumps(record("now")))
    other.write_text(json.dumps(record("now", device="cpu")))
    assert machine_code.main(["--check", str(path)]) == 2
    assert f"{path}: the record has no hash" in capsys.readouterr().err
    assert machine_code.main(["--stamp", str(folder)]) == 0
    made = json.loads(path.read_text())["machine_code"]
    assert made["sha256"] in capsys.readouterr().out
    known = machine_code_build.cpu_text_sha256("now")
    assert json.loads(other.read_text()) == record("now", device="cpu", cpu_text_sha256=known)
    assert machine_code.main(["--check", str(path)]) == 0
    assert "kernels and launches are the ones" in capsys.readouterr().out
    assert machine_code.main(["--check", str(folder)]) == 1  # the text is "edited" now
    assert "in what runs on a CPU" in capsys.readouterr().out
    compiled.code = "0ther"
    assert machine_code.main(["--check", str(path)]) == 1
    compiled.compiler = None
    assert machine_code.main(["--check", str(path)]) == 0
    assert "cannot tell" in capsys.readouterr().out
    assert machine_code.main(["--stamp", str(folder)]) == 3
    assert "no nvcc" in capsys.readouterr().err
    assert machine_code.main(["--stamp", str(other)]) == 0
    assert machine_code.main(["--stamp", str(project / "none")]) == 2
    assert "none: no such file" in capsys.readouterr().err
    other.write_text("[]")
    assert machine_code.main(["--stamp", str(other)]) == 2
    assert "cpu.json: not a record" in capsys.readouterr().err


# Building ---------------------------------------------------------------------------------------


def test_sources_and_flags_of_a_solution():
    text = find_problem("65").solution.read_text()
    assert "tconv_cuda_run" in machine_code_build.cuda_source(text)
    flags = machine_code_build.compile_flags(machine_code_build.cuda_flags(text))
    assert [flag for flag in flags if "gencode" in flag] == [
        "-gencode=arch=compute_90a,code=sm_90a"
    ]
    assert "-std=c++17" in flags and "-U__CUDA_NO_HALF_CONVERSIONS__" in flags
    assert "-D__CUDA_NO_HALF2_OPERATORS__" in flags
    assert [flag for flag in flags if flag.startswith("-O")] == []
    with pytest.raises(UsageError, match="CUDA_SOURCE"):
        machine_code_build.cuda_source("CUDA = 1")
    with pytest.raises(UsageError, match="_CUDA_FLAGS"):
        machine_code_build.cuda_flags("CUDA = 1")


def test_builds_are_kept(tmp_path, monkeypatch):
    if nvcc.compiler() is None:
        pytest.skip("no nvcc on this machine")
    with pytest.raises(UsageError, match="does not compile.*no_such_name"):
        machine_code_build.build("int x = no_such_name;", (), tmp_path)
    assert list(tmp_path.iterdir()) == []
    compiled = []

    def compile_(source, flags, folder):
        compiled.append(source)
        (folder / "driver").write_text("")
        (folder / "code.cubin").write_bytes(b"")

    monkeypatch.setattr(machine_code_build, "_compile", compile_)
    monkeypatch.setattr(machine_code_build, "read_cubin", lambda data: data)
    for source, flags in (("a", ()), ("a", ()), ("b", ()), ("a", ("-use_fast_math",))):
        assert machine_code_build.build(source, flags, tmp_path).driver.is_file()
    assert compiled == ["a", "b", "a"] and len(list(tmp_path.iterdir())) == 3


def test_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_code_build, "compiler", lambda: None)
    with pytest.raises(EnvironmentUnfit, match="no nvcc"):
        machine_code_build.build("", (), tmp_path)


def test_compiler_is_named_as_it_names_itself(tmp_path, monkeypatch):
    fake = tmp_path / "nvcc"
    fake.write_text(f"#!/bin/sh\necho nvcc: NVIDIA\necho Build {NVCC}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(nvcc, "nvcc", lambda: str(fake))
    assert nvcc.compiler.__wrapped__() == NVCC
    for broken in ("exit 1", "echo nothing"):
        fake.write_text(f"#!/bin/sh\n{broken}\n")
        assert nvcc.compiler.__wrapped__() is None
    monkeypatch.setattr(nvcc, "nvcc", lambda: None)
    assert nvcc.compiler.__wrapped__() is None


def test_records_of_a_cpu_name_no_compiler():
    assert devices.environment(devices.resolve_device("cpu"))["nvcc"] is None


def test_a_record_of_host_times_is_not_stamped(tmp_path, capsys):
    path = tmp_path / "host_time.json"
    path.write_text('{"benchmark": "host_time", "device": "cpu"}')
    assert machine_code.main(["--stamp", str(path)]) == UsageError.exit_status
    assert "is of no kernel" in capsys.readouterr().err
    assert path.read_text() == '{"benchmark": "host_time", "device": "cpu"}'


_PARTED = '''"""Title."""
_FLAGS = ()
# The parts.
# More of them.
_PARTS = {"fp32": ("float", 2)}
_PART_NAMES = (
    "tconv",
)
# nvcc's.
_CUDA_FLAGS = (
    "-O1",
)


def _parts(source: str) -> dict[str, str]:
    """Of a source."""
    made = {}

    def add(part):
        made[part] = source

    return made


def _build(name):
    return name
'''


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ('("float", 2)', '("float", 3)', True),
        ('    "tconv",\n', '    "tconv",\n    "more",\n', True),
        ("        made[part] = source\n", "        made[part] = 2 * source\n", True),
        ("# More of them.", "# Fewer of them.", True),
        ('"-O1"', '"-O3"', True),
        ("# nvcc's.", "# Those of nvcc.", True),
        ("_FLAGS = ()", "_FLAGS = (1,)", False),
        ("return name", "return 2 * name", False),
    ],
)
def test_how_cuda_compiles_in_parts_is_not_the_cpus(old, new, same):
    assert _PARTED.count(old) == 1
    known = machine_code_build.cpu_text_sha256(_PARTED)
    assert (machine_code_build.cpu_text_sha256(_PARTED.replace(old, new)) == known) == same
