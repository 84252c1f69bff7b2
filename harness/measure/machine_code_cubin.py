"""A cubin's kernels by what they do, not by what they are called.

Of each kernel count: its instructions, what their relocations refer to, its constants, the sizes of
its shared and constant memory, and what ptxas notes of it (registers, stack, launch bounds,
parameters). Not its name, nor its place in the file, nor debug sections.
"""

import hashlib
import struct
from dataclasses import dataclass

from harness.errors import HarnessError

_SECTION, _SYMBOL = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")
_RELA, _REL = struct.Struct("<QQq"), struct.Struct("<QQ")
_CUDA_MACHINE = 190
_SYMTAB, _SHT_RELA, _NOBITS, _SHT_REL = 2, 4, 8, 9
# Attributes of .nv.info sections (an entry's second byte; cuobjdump -elf prints their names).
_PARAM_CBANK, _EXTERNS, _KPARAM_INFO = 0x0A, 0x0F, 0x17
# Nothing a kernel executes: names, symbols, notes of the tools, what debuggers and linkers read.
_SKIPPED = (
    ".shstrtab .strtab .symtab .note .debug .nv.compat .nv.callgraph .nv.prototype .nv_debug "
    ".nv.rel.action .line .nv.uft .nv.udt"
).split()
_OF_KERNELS = (".text", ".nv.info", ".nv.shared", ".nv.local")


class CubinError(HarnessError):
    """A file that is no cubin, or a damaged one."""


@dataclass(frozen=True)
class Kernel:
    """`name` as mangled; `parameters`: the size of each in bytes; `digest`: SHA-256 of the rest."""

    name: str
    digest: str
    parameters: tuple[int, ...]


@dataclass(frozen=True)
class Cubin:
    """`shared`: SHA-256 of what belongs to no kernel alone, like __constant__ variables."""

    kernels: tuple[Kernel, ...]
    shared: str

    def digest(self) -> str:
        """SHA-256 of all the machine code; the same for any order and names of the kernels."""
        return sha256(*sorted(kernel.digest for kernel in self.kernels), self.shared)


def sha256(*parts: object) -> str:
    """Of parts whose text tells all about them."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def read_cubin(data: bytes) -> Cubin:
    """The kernels of a cubin for one architecture. Raises CubinError."""
    try:
        return _Reader(data).cubin()
    except (struct.error, IndexError, ValueError) as error:
        raise CubinError(f"a cubin cannot be read: {error}") from None


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int

    @property
    def base(self) -> str:
        """The name without a kernel's, which follows the last dot of what the format says."""
        for prefix in (".rela", ".rel"):
            if self.name.startswith(f"{prefix}."):
                return prefix + _base(self.name.removeprefix(prefix))
        return _base(self.name)


def _base(name: str) -> str:
    for prefix in _OF_KERNELS:
        if name == prefix or name.startswith(f"{prefix}."):
            return prefix
    return ".".join(name.split(".")[:3]) if name.startswith(".nv.constant") else name


class _Reader:
    def __init__(self, data: bytes):
        if data[:5] != b"\x7fELF\x02" or struct.unpack_from("<H", data, 0x12) != (_CUDA_MACHINE,):
            raise CubinError("not a cubin: no 64-bit ELF file of the machine EM_CUDA")
        self._data = data
        (start,) = struct.unpack_from("<Q", data, 0x28)
        count, names = struct.unpack_from("<HH", data, 0x3C)
        raw = [_SECTION.unpack_from(data, start + i * _SECTION.size) for i in range(count)]
        self._sections = [
            _Section(self._string(raw[names][4] + s[0]), s[1], s[2], *s[4:8]) for s in raw
        ]
        table = [s for s in self._sections if s.kind == _SYMTAB][0]
        self._strings = self._sections[table.link].offset
        self._symbols = list(_SYMBOL.iter_unpack(self._bytes(table)))

    def cubin(self) -> Cubin:
        texts = [i for i, s in enumerate(self._sections) if s.base == ".text"]
        facts: dict[int, list] = {index: [] for index in texts}
        shared: list = []
        for index, section in enumerate(self._sections):
            if section.kind == 0 or section.name.startswith(tuple(_SKIPPED)):
                continue
            if section.base in (".rela", ".rel") or section.base.startswith((".rela.d", ".rel.d")):
                continue
            if section.name == ".nv.info":
                self._add_global_info(section, facts, shared)
                continue
            owner = index if index in facts else self._owner(section, facts)
            (shared if owner is None else facts[owner]).append(self._fact(section))
        kernels = [self._kernel(index, facts[index]) for index in texts]
        return Cubin(tuple(kernels), sha256(sorted(map(repr, shared))))

    def _kernel(self, index: int, facts: list) -> Kernel:
        name = self._sections[index].name.removeprefix(".text.")
        infos = [s for s in self._sections if s.name == f".nv.info.{name}"]
        found = {}
        for _, attribute, value in (entry for s in infos for entry in _info(self._bytes(s))):
            if attribute == _KPARAM_INFO:
                _, ordinal, _, packed = struct.unpack("<IHHI", value)
                found[ordinal] = packed >> 18
        sizes = tuple(found[i] for i in sorted(found))
        return Kernel(name, sha256(sorted(map(repr, facts))), sizes)

    def _owner(self, section: _Section, facts: dict[int, list]) -> int | None:
        """The text section that another one belongs to; None for what all kernels share."""
        if section.kind in (_SHT_RELA, _SHT_REL) and section.info < len(self._sections):
            if section.info in facts:
                return section.info
            section = self._sections[section.info]
        return section.info if section.info in facts else None

    def _fact(self, section: _Section) -> tuple:
        if section.base == ".nv.info":
            content: object = [
                (kind, attribute, self._without_symbols(attribute, value).hex())
                for kind, attribute, value in _info(self._bytes(section))
            ]
        elif section.kind in (_SHT_RELA, _SHT_REL):
            content = self._relocations(section)
        else:
            content = hashlib.sha256(self._bytes(section)).hexdigest()
        # The upper byte of a text section's info is a count of registers in older files.
        more = section.info >> 24 if section.base == ".text" else 0
        return section.base, section.kind, section.flags, section.size, more, content

    def _without_symbols(self, attribute: int, value: bytes) -> bytes:
        """An attribute's value with names for indices of symbols, which move with every name."""
        if attribute == _PARAM_CBANK:  # of the constants' section, then offset and size
            return value[4:]
        if attribute == _EXTERNS:
            indices = struct.unpack(f"<{len(value) // 4}I", value)
            return repr([self._target(index) for index in indices]).encode()
        return value

    def _relocations(self, section: _Section) -> list:
        form = _RELA if section.kind == _SHT_RELA else _REL
        return [
            (where, info & 0xFFFFFFFF, self._target(info >> 32), *addend)
            for where, info, *addend in form.iter_unpack(self._bytes(section))
        ]

    def _target(self, index: int) -> tuple:
        """What a symbol means: a place in a section, or by name what CUDA itself provides."""
        name, info, _, section, value, size = self._symbols[index]
        if 0 < section < len(self._sections):
            return self._sections[section].base, info & 15, value, size
        return self._string(self._strings + name), info & 15, value, size

    def _add_global_info(self, section: _Section, facts: dict[int, list], shared: list) -> None:
        """Registers, stack and the like, each of a symbol: they go to the kernel it is in."""
        for kind, attribute, value in _info(self._bytes(section)):
            owner = None
            if len(value) == 8:
                index, number = struct.unpack("<II", value)
                owner = self._symbols[index][3] if index < len(self._symbols) else None
            if owner in facts:
                place = self._symbols[index][4]
                facts[owner].append((".nv.info", kind, attribute, place, number))
            else:
                shared.append((".nv.info", kind, attribute, value.hex()))

    def _bytes(self, section: _Section) -> bytes:
        if section.kind == _NOBITS:
            return b""
        end = section.offset + section.size
        if end > len(self._data):
            raise CubinError(f"not a whole cubin: {section.name} ends behind the file's end")
        return self._data[section.offset : end]

    def _string(self, offset: int) -> str:
        return self._data[offset : self._data.index(b"\0", offset)].decode()


def _info(data: bytes):
    """(form, attribute, value) of each entry of a .nv.info section."""
    at = 0
    while at < len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        end = at + 4 + (size if form == 4 else 0)
        yield form, attribute, data[at + 4 : end] if form == 4 else data[at + 2 : at + 4]
        at = end
