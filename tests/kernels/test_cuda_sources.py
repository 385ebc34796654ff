"""The CUDA sources compile for every architecture; this needs the CuPy wheel, but no device."""

import re
from pathlib import Path

import pytest

from benchmarks import gpu_kernels
from benchmarks.gpu_kernels import KERNEL, READ_LITTLE, SOURCES, compiled, kernels, variants
from tinyprop.kernels import cuda, tiles

pytestmark = pytest.mark.cupy
ARCHITECTURES = ("75", "80", "86", "89", "90", "100", "120")
needs_cuobjdump = pytest.mark.skipif(
    gpu_kernels.tool_path() is None, reason=f"there is no {gpu_kernels.NEEDS}"
)


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
    found = {f"{path.stem}.{name}" for path in SOURCES for name in KERNEL.findall(path.read_text())}
    launched = set(re.findall(r'"(\w+\.\w+)",', Path(cuda.__file__).read_text()))
    assert found == launched


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_source_compiles(path, architecture):
    pytest.importorskip("cupy")
    source, (first, *_) = path.read_text(), options(path)
    names = [name for element in ("float", "double") for name in kernels(source, element)]
    ptx, _ = compiled(source, names, f"sm_{architecture}", first)
    assert len(re.findall(r"\.entry", ptx)) == len(names) > 0


def float64_arithmetic(source, names, more=()):
    return re.findall(
        r"(?:add|sub|mul|div|fma|cvt|sqrt)\.\S*f64\S*",
        compiled(source, names, "compute_90", more)[0],
    )


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_kernel_of_float32_computes_in_float64(path):
    """A constant such as 0.5 without T(...) is a double, and promotes what it meets."""
    pytest.importorskip("cupy")
    source = path.read_text()
    for more in options(path):
        assert not float64_arithmetic(source, kernels(source, "float"), more)


@needs_cuobjdump
@pytest.mark.slow
def test_kernels_that_read_much_have_enough_loads_in_flight():
    for name, codes in gpu_kernels.all_inspected().items():
        for architecture, code in codes.items():
            assert code.spilled == 0, (name, architecture)
            assert code.loads >= gpu_kernels.LEAST or name in READ_LITTLE, (
                name,
                architecture,
                code,
            )
    rows = re.findall(r"^\| (\w+(?: \(.*?\))?) \|", gpu_kernels.PAGE.read_text(), re.M)
    assert rows == ["kernel", *gpu_kernels.all_inspected()], (
        "its numbers depend on the compiler, its kernels do not"
    )


@needs_cuobjdump
def test_a_loop_that_waits_for_each_load_is_noticed():
    one_by_one = """template <typename T>
    __global__ void sum(const T* x, T* y) {
        for (int i = 0; i < 100; ++i) y[i] = x[i] + x[2 * i];
    }"""
    assert gpu_kernels.inspected(one_by_one, "90")["sum"].loads < gpu_kernels.LEAST
