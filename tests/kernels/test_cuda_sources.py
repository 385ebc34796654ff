"""The CUDA sources compile for every architecture; this needs the CuPy wheel, but no device."""

import re
from pathlib import Path

import pytest

import tinyprop
from tinyprop.kernels import cuda, tiles

pytestmark = pytest.mark.cupy
SOURCES = sorted(Path(tinyprop.__file__).with_name("kernels").glob("*.cu"))
ARCHITECTURES = ("75", "80", "86", "89", "90", "100", "120")
KERNEL = re.compile(r"(template <typename T>\s*)?__global__ void (\w+)")


def kernels(source, element):
    """The kernels of a source, instantiated for elements of this type."""
    return [f"{name}<{element}>" if template else name for template, name in KERNEL.findall(source)]


def options(path):
    """The options that a source is compiled with; that of tiles once for each matrix and direction."""
    if path.stem != "tiles":
        return [()]
    every = [tiles._matrix(k, name, on_device=True) for k in tiles.TILES for name in tiles.matrices(k)]
    return [(*matrix, f"-DBACK={back}") for matrix in every for back in (0, 1)]


def compiled(source, names, architecture, more=()):
    """The PTX that NVIDIA's compiler, which needs no device, makes of a source."""
    from cupy._core.core import assemble_cupy_compiler_options
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(source, "tinyprop.cu", (), ())
    try:
        for name in names:
            nvrtc.addNameExpression(program, name)
        every = (*assemble_cupy_compiler_options(()), *cuda.OPTIONS, *more, f"--gpu-architecture={architecture}")
        nvrtc.compileProgram(program, every)
        return nvrtc.getPTX(program).decode()
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))
    finally:
        nvrtc.destroyProgram(program)


def test_no_source_is_overlooked():
    found = {f"{path.stem}.{name}" for path in SOURCES for _, name in KERNEL.findall(path.read_text())}
    launched = set(re.findall(r'"(\w+\.\w+)",', Path(cuda.__file__).read_text()))
    assert found == launched


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_source_compiles(path, architecture):
    pytest.importorskip("cupy")
    source, (first, *_) = path.read_text(), options(path)
    names = [name for element in ("float", "double") for name in kernels(source, element)]
    ptx = compiled(source, set(names), f"sm_{architecture}", first)
    assert len(re.findall(r"\.entry", ptx)) == len(set(names))


def float64_arithmetic(source, names, more=()):
    return re.findall(r"(?:add|sub|mul|div|fma|cvt|sqrt)\.\S*f64\S*", compiled(source, names, "compute_90", more))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_kernel_of_float32_computes_in_float64(path):
    """A constant such as 0.5 without T(...) is a double, and promotes what it meets."""
    pytest.importorskip("cupy")
    source = path.read_text()
    for more in options(path):
        assert not float64_arithmetic(source, kernels(source, "float"), more)
