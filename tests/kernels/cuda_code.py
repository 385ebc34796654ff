"""What NVIDIA's compiler makes of the CUDA sources. It needs CuPy's wheel, but no device.

`inspected` also needs cuobjdump: it reads registers, spills and loads in flight from the machine
code (SASS)."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tinyprop.kernels import cuda, tiles

SOURCES = sorted(Path(cuda.__file__).parent.glob("*.cu"))
KERNEL = re.compile(
    r"template <typename T>\s*__global__\s+(?:__launch_bounds__\(.*?\)\s+)?void\s+(\w+)"
)
# the address, the name and the operands of a line of SASS
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?([\w.]+)(.*?);")
INSPECTED = ("75", "89", "90", "120")  # architectures: T4, RTX 4090, H100, RTX 5090
WHEELS = "nvidia/cu13/bin"  # where the wheels put their programs
NEEDS = (
    "cuobjdump, or no nvdisasm, which it calls: pip install nvidia-cuda-cuobjdump "
    "nvidia-cuda-nvdisasm"
)


@dataclass(frozen=True)
class Loads:
    """Loads from memory that a thread issues before it waits for one of them."""

    number: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Code:
    """What a kernel was compiled to."""

    registers: int  # of a thread
    spilled: int  # bytes of local memory, which registers are spilled to
    loads: Loads


def kernel_names(source: str) -> list[str]:
    return KERNEL.findall(source)


def instances(source: str, element: str) -> list[str]:
    """The kernels of a source, instantiated for elements of this type."""
    return [f"{name}<{element}>" for name in kernel_names(source)]


def variants(path: Path) -> dict[str, tuple[str, ...]]:
    """The options that a source is compiled with, by what they are called: for tiles, those of 5x5
    filters."""
    if path.stem == "tiles":
        return tile_variants()
    if path.stem == "channels":
        return {" (packs of 4)": ("-DWIDTH=4",), " (single)": ("-DWIDTH=1",)}
    return {"": ()}


def tile_variants() -> dict[str, tuple[str, ...]]:
    transforms = [("input", 0), ("filter", 0), ("output.T", 0), ("output", 1), ("filter.T", 1)]
    options = {}
    for matrix, back in transforms:
        name = f" ({matrix}, back)" if back else f" ({matrix})"
        options[name] = (*tiles._matrix(5, matrix, True), f"-DBACK={back}")
    return options


def compiled(
    source: str, names: Iterable[str], architecture: str, more: Iterable[str] = ()
) -> tuple[str, bytes]:
    """The PTX and, if the architecture is a real one (sm_75), the machine code that NVIDIA's
    compiler makes."""
    from cupy._core.core import assemble_cupy_compiler_options
    from cupy.cuda import nvrtc

    options = (
        *assemble_cupy_compiler_options(()),
        *cuda.OPTIONS,
        *more,
        f"--gpu-architecture={architecture}",
    )
    program = nvrtc.createProgram(source, "tinyprop.cu", (), ())
    try:
        for name in names:
            nvrtc.addNameExpression(program, name)
        nvrtc.compileProgram(program, options)
        binary = nvrtc.getCUBIN(program) if architecture.startswith("sm_") else b""
        # CuPy takes the last byte for the end of a string
        return nvrtc.getPTX(program).decode(), binary + b"\0"
    except nvrtc.NVRTCError as error:
        raise ValueError(nvrtc.getProgramLog(program)) from error
    finally:
        nvrtc.destroyProgram(program)


def tool_path() -> str | None:
    """Folders with NVIDIA's cuobjdump and the nvdisasm that it calls: those of $PATH, and of wheels
    that have them."""
    wheels = [str(Path(folder, WHEELS)) for folder in sys.path]
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *wheels])
    for tool in ("cuobjdump", "nvdisasm"):
        if shutil.which(tool, path=path) is None:
            return None
    return path


def inspected(source: str, architecture: str, more: Iterable[str] = ()) -> dict[str, Code]:
    """The code of each kernel of a source, for float32."""
    _, binary = compiled(source, instances(source, "float"), f"sm_{architecture}", more)
    listing = disassembled(binary)
    usage = {}
    for mangled, registers, stack in re.findall(
        r"Function (\w+):\s+REG:(\d+) STACK:(\d+)", listing
    ):
        usage[mangled] = int(registers), int(stack)
    codes = {}
    for sass in listing.split("Function : ")[1:]:
        mangled = sass.split()[0]
        registers, spilled = usage[mangled]
        name = demangled(mangled, kernel_names(source))
        codes[name] = Code(registers, spilled, in_flight(sass))
    return codes


def disassembled(binary: bytes) -> str:
    """What cuobjdump prints: the registers and the stack of each function, and its SASS."""
    path = tool_path()
    if path is None:
        raise ValueError(f"there is no {NEEDS}")
    cuobjdump = shutil.which("cuobjdump", path=path)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        done = subprocess.run(
            [str(cuobjdump), "-sass", "-res-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PATH": path},
        )
    return done.stdout


def demangled(mangled: str, names: Iterable[str]) -> str:
    """The kernel whose instance has this name: the longest, as one name may end with another."""
    candidates = [name for name in names if f"{len(name)}{name}I" in mangled]
    return max(candidates, key=len)


def in_flight(sass: str) -> Loads:
    """The loads in flight where they bring most bytes. They are counted between jumps: what is
    loaded once, before a loop, does not count in the loop."""
    instructions = INSTRUCTION.findall(sass)
    targets = jump_targets(instructions)
    waiting: list[set[int]] = []  # the registers of each load in flight
    most = Loads()
    for address, name, operands in instructions:
        registers = [int(number) for number in re.findall(r"\bR(\d+)", operands)]
        is_load = name.startswith("LDG")
        read = set(registers[1:] if is_load else registers)
        leaves = name.startswith(("BRA", "EXIT", "BAR", "CALL"))
        enters = int(address, 16) in targets
        waits = any(result & read for result in waiting)
        if leaves or enters or waits:
            waiting = []
        if is_load:
            first = registers[0]
            waiting.append(set(range(first, first + loaded_registers(name))))
            now = Loads(len(waiting), 4 * sum(map(len, waiting)))
            most = max(most, now, key=lambda loads: loads.bytes)
    return most


def jump_targets(instructions: Iterable[tuple[str, str, str]]) -> set[int]:
    """The addresses that some instruction jumps to."""
    targets = set()
    for _, name, operands in instructions:
        if name.startswith("BRA"):
            targets |= {int(address, 16) for address in re.findall(r"0x(\w+)", operands)}
    return targets


def loaded_registers(name: str) -> int:
    """How many registers of 4 bytes a load fills."""
    if ".128" in name:
        return 4
    if ".64" in name:
        return 2
    return 1


@cache
def all_inspected() -> dict[tuple[str, str], Code]:
    """By kernel, with what it is compiled for, and architecture."""
    codes = {}
    for path in SOURCES:
        for variant, options in variants(path).items():
            for architecture in INSPECTED:
                for name, code in inspected(path.read_text(), architecture, options).items():
                    codes[name + variant, architecture] = code
    return codes
