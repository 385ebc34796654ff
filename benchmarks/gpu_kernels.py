"""What NVIDIA's compiler makes of the CUDA kernels: KERNELS.md. It needs no device, only CuPy and
cuobjdump."""

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
from tinyprop.report.files import write_whole
from tinyprop.report.table import Table

PAGE = Path(__file__).with_name("KERNELS.md")
SOURCES = sorted(Path(cuda.__file__).parent.glob("*.cu"))
KERNEL = re.compile(
    r"template <typename T>\s*__global__\s+(?:__launch_bounds__\(.*?\)\s+)?void\s+(\w+)"
)
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?([\w.]+)(.*?);")
# architectures, and a device with each
SHOWN = {"75": "T4", "89": "RTX 4090", "90": "H100", "120": "RTX 5090"}
LEAST = 8  # loads in flight
WHEELS = "nvidia/cu13/bin"  # where the wheels put them
NEEDS = (
    "cuobjdump, or no nvdisasm, which it calls: pip install nvidia-cuda-cuobjdump "
    "nvidia-cuda-nvdisasm"
)
# transforms, and whether back
USED = [("input", 0), ("filter", 0), ("output.T", 0), ("output", 1), ("filter.T", 1)]
# at most what is in the cache
READ_LITTLE = "batch_statistics", "cross_entropy", "dropout_mask", "normals"


def variants(path: Path) -> dict[str, tuple[str, ...]]:
    """The options that a source is compiled with, by what they are called: for tiles, those of 5x5
    filters."""
    if path.stem == "tiles":
        return {
            f"{name}{', back' * back}": (*tiles._matrix(5, name, True), f"-DBACK={back}")
            for name, back in USED
        }
    return (
        {"packs of 4": ("-DWIDTH=4",), "single": ("-DWIDTH=1",)}
        if path.stem == "channels"
        else {"": ()}
    )


def kernels(source: str, element: str) -> list[str]:
    """The kernels of a source, instantiated for elements of this type."""
    return [f"{name}<{element}>" for name in KERNEL.findall(source)]


def compiled(
    source: str, names: Iterable[str], architecture: str, more: Iterable[str] = ()
) -> tuple[str, bytes]:
    """The PTX and, if the architecture is a real one (sm_75), the machine code that NVIDIA's
    compiler makes."""
    from cupy._core.core import assemble_cupy_compiler_options
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(source, "tinyprop.cu", (), ())
    try:
        for name in names:
            nvrtc.addNameExpression(program, name)
        every = (
            *assemble_cupy_compiler_options(()),
            *cuda.OPTIONS,
            *more,
            f"--gpu-architecture={architecture}",
        )
        nvrtc.compileProgram(program, every)
        binary = nvrtc.getCUBIN(program) if architecture.startswith("sm_") else b""
        # CuPy takes the last byte for the end of a string
        return nvrtc.getPTX(program).decode(), binary + b"\0"
    except nvrtc.NVRTCError as error:
        raise ValueError(nvrtc.getProgramLog(program)) from error
    finally:
        nvrtc.destroyProgram(program)


@dataclass(frozen=True)
class Code:
    """What a kernel was compiled to."""

    registers: int
    spilled: int  # bytes of local memory, which registers are spilled to
    loads: int  # that are in flight where most bytes are
    bytes: int  # that these loads bring


def tool_path() -> str | None:
    """Folders with NVIDIA's cuobjdump and the nvdisasm that it calls: those of $PATH, and of wheels
    that have them."""
    wheels = [str(Path(folder, WHEELS)) for folder in sys.path]
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *wheels])
    return (
        path
        if shutil.which("cuobjdump", path=path) and shutil.which("nvdisasm", path=path)
        else None
    )


def inspected(source: str, architecture: str, more: Iterable[str] = ()) -> dict[str, Code]:
    """The code of each kernel of a source, for float32."""
    path = tool_path()
    if path is None:
        raise ValueError(f"there is no {NEEDS}")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled(source, kernels(source, "float"), f"sm_{architecture}", more)[1])
        file.flush()
        command = [shutil.which("cuobjdump", path=path) or "", "-sass", "-res-usage", file.name]
        run = subprocess.run(
            command, capture_output=True, text=True, check=True, env=os.environ | {"PATH": path}
        )
    usage = {
        name: numbers
        for name, *numbers in re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+)", run.stdout)
    }
    found = {}
    for part in run.stdout.split("Function : ")[1:]:
        mangled = part.split()[0]
        name = max(
            (name for name in KERNEL.findall(source) if f"{len(name)}{name}I" in mangled), key=len
        )
        found[name] = Code(*map(int, usage[mangled]), *in_flight(part))
    return found


def in_flight(sass: str) -> tuple[int, int]:
    """The loads that are issued before one of them is waited for, and their bytes, where these are
    most. They are counted between jumps: what is loaded once, before a loop, does not count in the
    loop.

    >>> code = "/*0000*/ LDG.E.128 R4, [R2] ; /*0010*/ LDG.E R9, [R2] ; /*0020*/ FADD R1, R7, R1 ; /*0030*/ LDG.E R8 ;"
    >>> in_flight(code), in_flight(code.replace("R7", "R8"))
    ((2, 20), (3, 24))
    """
    code = INSTRUCTION.findall(sass)
    targets = {
        int(t, 16)
        for _, name, rest in code
        if name.startswith("BRA")
        for t in re.findall(r"0x(\w+)", rest)
    }
    waiting: list[set[int]] = []  # the registers of each load in flight
    best = (0, 0)
    for address, name, rest in code:
        registers = [int(r) for r in re.findall(r"\bR(\d+)", rest)]
        if int(address, 16) in targets or name.startswith(("BRA", "EXIT", "BAR", "CALL")):
            waiting = []
        load = name.startswith("LDG")
        if any(result & set(registers[load:]) for result in waiting):
            waiting = []
        if load:
            size = 4 if ".128" in name else 2 if ".64" in name else 1
            waiting.append(set(range(registers[0], registers[0] + size)))
            best = max(best, (len(waiting), 4 * sum(map(len, waiting))), key=lambda found: found[1])
    return best


@cache
def all_inspected() -> dict[str, dict[str, Code]]:
    """By kernel, with what it is compiled for, and architecture."""
    found: dict[str, dict[str, Code]] = {}
    for path in SOURCES:
        for called, options in variants(path).items():
            for architecture in SHOWN:
                for name, code in inspected(path.read_text(), architecture, options).items():
                    found.setdefault(f"{name}{called and f' ({called})'}", {})[architecture] = code
    return found


def page() -> str:
    from cupy.cuda import nvrtc

    rows = []
    for name, codes in all_inspected().items():
        cells = [f"{code.registers}, {code.loads}, {code.bytes}" for code in codes.values()]
        rows.append([name, *cells, str(max(code.spilled for code in codes.values()))])
    header = [
        "kernel",
        *(f"sm_{number} ({device})" for number, device in SHOWN.items()),
        "spilled bytes",
    ]
    version = ".".join(map(str, nvrtc.getVersion()))
    return f"""# What the CUDA kernels are compiled to

For each architecture: registers of a thread, loads that it has in flight (how many it issues, at most, before it waits
for one of them), and their bytes. Memory takes some 500 cycles to answer; a kernel that only reads and writes reaches
the bandwidth of a device if enough bytes are under way meanwhile. So each kernel has at least {LEAST} loads in flight,
except {", ".join(READ_LITTLE)}, which read little; a test counts them.

{Table(header, rows).markdown()}

Written by `python -m benchmarks gpu --kernels`, from the machine code (SASS) that NVRTC {version} makes for float32.
"""


def write() -> Path:
    write_whole(PAGE, page().encode())
    return PAGE
