"""The CUDA sources compile for every architecture, to code without spills and with enough loads in
flight; this needs the CuPy wheel, but no device."""

import re
from pathlib import Path

import pytest

from tinyprop.kernels import cuda, tiles

from .cuda_code import (
    INSPECTED,
    NEEDS,
    SOURCES,
    Code,
    Loads,
    all_inspected,
    compiled,
    demangled,
    in_flight,
    inspected,
    instances,
    kernel_names,
    tool_path,
    variants,
)

pytestmark = pytest.mark.cupy
ARCHITECTURES = ("75", "80", "86", "89", "90", "100", "120")
needs_cuobjdump = pytest.mark.skipif(tool_path() is None, reason=f"there is no {NEEDS}")


def options(path):
    """All options that a source is compiled with; that of tiles once for each matrix and
    direction."""
    if path.stem != "tiles":
        return list(variants(path).values())
    every = [
        tiles._matrix(k, name, on_device=True) for k in tiles.TILES for name in tiles.matrices(k)
    ]
    return [(*matrix, f"-DBACK={back}") for matrix in every for back in (0, 1)]


def test_no_source_is_overlooked():
    found = {f"{path.stem}.{name}" for path in SOURCES for name in kernel_names(path.read_text())}
    launched = set(re.findall(r'"(\w+\.\w+)",', Path(cuda.__file__).read_text()))
    assert found == launched


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_source_compiles(path, architecture):
    pytest.importorskip("cupy")
    source, (first, *_) = path.read_text(), options(path)
    names = [name for element in ("float", "double") for name in instances(source, element)]
    ptx, _ = compiled(source, names, f"sm_{architecture}", first)
    assert len(re.findall(r"\.entry", ptx)) == len(names) > 0


def float64_arithmetic(source, names, more=()):
    ptx, _ = compiled(source, names, "compute_90", more)
    return re.findall(r"(?:add|sub|mul|div|fma|cvt|sqrt)\.\S*f64\S*", ptx)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_kernel_of_float32_computes_in_float64(path):
    """A constant such as 0.5 without T(...) is a double, and promotes what it meets."""
    pytest.importorskip("cupy")
    source = path.read_text()
    for more in options(path):
        assert not float64_arithmetic(source, instances(source, "float"), more)


# Memory takes some 500 cycles to answer. A kernel that only reads and writes reaches the bandwidth
# of a device if enough bytes are on their way meanwhile: 512 threads with 8 loads each.
LEAST_LOADS = 8
MOST_REGISTERS = 65_536 // 512  # a multiprocessor has 65,536 registers of 4 bytes
# These read at most what is in the cache, or hardly ever find something to do.
READ_LITTLE = {"cross_entropy", "dropout_mask", "normals", "filter_range", "uneven_tiles"}
READ_LITTLE |= {"convolve_uneven", "add_filter_gradient"}


def faults(kernel, code):
    """What is wrong with the machine code of a kernel."""
    if code.spilled > 0:
        yield f"{code.spilled} bytes of registers are spilled"
    if code.registers > MOST_REGISTERS:
        yield f"{code.registers} registers, at most {MOST_REGISTERS}"
    if kernel not in READ_LITTLE and code.loads.number < LEAST_LOADS:
        yield f"{code.loads.number} loads in flight, at least {LEAST_LOADS}"


@needs_cuobjdump
@pytest.mark.slow
def test_kernels_spill_nothing_and_have_enough_loads_in_flight():
    pytest.importorskip("cupy")
    codes = all_inspected()
    expected = {
        (name + variant, architecture)
        for path in SOURCES
        for name in kernel_names(path.read_text())
        for variant in variants(path)
        for architecture in INSPECTED
    }
    assert codes.keys() == expected
    wrong = {kernel: list(faults(kernel[0], code)) for kernel, code in codes.items()}
    assert {kernel: found for kernel, found in wrong.items() if found} == {}


ENOUGH = Code(registers=128, spilled=0, loads=Loads(8, 32))


@pytest.mark.parametrize(
    ("kernel", "code", "words"),
    [
        ("sum", ENOUGH, []),
        ("sum", Code(129, 0, Loads(8, 32)), ["129 registers, at most 128"]),
        ("sum", Code(128, 4, Loads(8, 32)), ["4 bytes of registers are spilled"]),
        ("sum", Code(128, 0, Loads(7, 112)), ["7 loads in flight, at least 8"]),
        ("normals", Code(128, 0, Loads(0, 0)), []),
    ],
)
def test_each_threshold_is_a_fault_of_its_own(kernel, code, words):
    assert list(faults(kernel, code)) == words


@needs_cuobjdump
def test_a_loop_that_waits_for_each_load_is_noticed():
    pytest.importorskip("cupy")
    one_by_one = """template <typename T>
    __global__ void sum(const T* x, T* y) {
        for (int i = 0; i < 100; ++i) y[i] = x[i] + x[2 * i];
    }"""
    code = inspected(one_by_one, "90")["sum"]
    assert 0 < code.loads.number < LEAST_LOADS
    assert code.spilled == 0


@needs_cuobjdump
def test_spilled_registers_are_noticed():
    """64 values that are all alive do not fit in the 32 registers that 2 x 1,024 threads leave."""
    pytest.importorskip("cupy")
    crowded = """template <typename T>
    __global__ __launch_bounds__(1024, 2) void mix(const T* x, T* y) {
        T values[64];
        for (int i = 0; i < 64; ++i) values[i] = x[i * 64 + threadIdx.x];
        __syncthreads();
        for (int i = 0; i < 64; ++i) y[i * 64 + threadIdx.x] = values[i] * values[63 - i];
    }"""
    assert inspected(crowded, "90")["mix"].spilled > 0


def test_loads_count_until_one_of_them_is_read():
    code = "/*0000*/ LDG.E.128 R4, [R2] ; /*0010*/ LDG.E R9, [R2] ; /*0020*/ FADD R1, R7, R1 ;"
    code += "/*0030*/ LDG.E R8 ;"
    assert in_flight(code) == Loads(2, 20)  # R7 belongs to the first load
    assert in_flight(code.replace("R7", "R8")) == Loads(3, 24)
    assert in_flight(code.replace("FADD R1, R7, R1", "BRA 0x0000")) == Loads(2, 20)
    assert in_flight(code + "/*0040*/ BRA 0x0010 ;") == Loads(1, 16)


def test_the_longest_name_is_the_kernel():
    assert demangled("_Z11weight_normIfEvPKT_", ["norm", "weight_norm"]) == "weight_norm"
