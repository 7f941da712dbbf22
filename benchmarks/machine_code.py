"""Machine code of an NVIDIA GPU: the instructions of a compiled kernel, its loops, its registers and its memory."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import triton

CLASSES = ("matrix", "exp", "float", "draws", "k largest", "memory", "convert", "other")
#: Functions of our sources, and whole files, that make draws or look for the k largest.
DRAWS = {"is_dropped", "kept_weights", "load_words", "load_now", "decided.py", "hashing.py", "hashing.cuh", "every.cuh"}
LARGEST = {"candidates.py", "_coded", "largest.cuh", "marks.cuh"}
#: Bytes of shared memory of a multiprocessor of capability 9.0.
SHARED = 228 * 1024


class Instruction(NamedTuple):
    """One machine instruction, and where in the source it comes from."""

    text: str
    file: str
    line: int

    @property
    def name(self) -> str:
        """The operation without its modifiers."""
        return re.sub(r"^@!?U?P\w+\s+", "", self.text).split()[0].split(".")[0]

    @property
    def kind(self) -> str:
        """One of CLASSES."""
        if self.name in ("HGMMA", "HMMA"):
            return "matrix"
        if self.name == "MUFU":
            return "exp"
        if re.match(r"LD|ST|RED(?!UX)|ATOM|UTMA", self.name) and self.name not in ("LDC", "ULDC"):
            return "memory"
        if self.name in ("F2FP", "F2F", "I2F", "F2I", "I2FP"):
            return "convert"
        where = {Path(self.file).name, function_at(self.file, self.line)}
        if where & DRAWS:
            return "draws"
        if where & LARGEST:
            return "k largest"
        return "float" if self.name in ("FADD", "FMUL", "FFMA", "FMNMX", "FSEL", "FSETP") else "other"

    @property
    def products(self) -> int:
        """Multiplications of a matrix instruction, of one warp."""
        if found := re.search(r"HGMMA\.64x(\d+)x16", self.text):
            return 16 * int(found[1]) * 16
        return 16 * 8 * 16 if self.name == "HMMA" else 0


@functools.cache
def functions_of(path: str) -> list[tuple[int, int, str]]:
    """First line, last line and name of all functions of a Python file."""
    if not path.endswith(".py") or not Path(path).is_file():
        return []
    tree = ast.parse(Path(path).read_text())
    return [(x.lineno, x.end_lineno or 0, x.name) for x in ast.walk(tree) if isinstance(x, ast.FunctionDef)]


@functools.cache
def function_at(path: str, line: int) -> str:
    """The function of a line of a Python file, or ""."""
    return next((name for first, last, name in functions_of(path) if first <= line <= last), "")


class Code(NamedTuple):
    """A compiled kernel."""

    name: str
    instructions: list[Instruction]
    #: First and last instruction of each loop.
    loops: list[tuple[int, int]]
    registers: int
    stack: int
    threads: int
    shared: int
    programs: int
    #: The compile-time constants of a Triton kernel.
    constants: dict[str, Any]

    @property
    def warps(self) -> int:
        """How many warps fit on a multiprocessor."""
        warps = self.threads // 32
        by_registers = 4 * (16384 // (-(-self.registers * 32 // 256) * 256)) // warps
        return warps * max(1, min(by_registers, SHARED // (self.shared + 1024), 64 // warps))

    def sweeps(self) -> list[tuple[int, int]]:
        """Innermost loops with matrix instructions, in their order."""
        found = [loop for loop in sorted(set(self.loops)) if any(x.products for x in self.within(loop))]
        return [a for a in found if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in found)]

    def within(self, loop: tuple[int, int]) -> list[Instruction]:
        """The instructions of a loop."""
        return self.instructions[loop[0] : loop[1] + 1]


def read(name: str, binary: bytes, threads: int, shared: int, programs: int, constants: dict[str, Any]) -> Code:
    """Disassemble a kernel."""
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        text, usage = (
            subprocess.run([tools / tool, *options, file.name], capture_output=True, text=True, check=True).stdout
            for tool, *options in (("nvdisasm", "-gi", "-c"), ("cuobjdump", "-res-usage"))
        )
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    where, is_new = ("", 0), True
    for line in text.splitlines():
        if found := re.match(r'\s*//## File "([^"]+)", line (\d+)', line):
            # The first of several is the innermost function.
            where, is_new = ((found[1], int(found[2])) if is_new else where), False
        elif found := re.match(r"(\.L\w+):", line):
            labels[found[1]] = len(instructions)
        elif found := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line):
            instructions.append(Instruction(found[1], *where))
            is_new = True
    loops = [
        (labels[found[1]], place)
        for place, one in enumerate(instructions)
        if (found := re.search(r"\bBRA\b.*?(\.L\w+)", one.text)) and labels.get(found[1], place + 1) < place
    ]
    numbers = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert numbers is not None
    return Code(name, instructions, loops, int(numbers[1]), int(numbers[2]), threads, shared, programs, constants)
