"""Nets under the CuPy path that need the CuPy wheel but no device: names, keywords, and CUDA sources that compile."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import tinyprop
from tinyprop.functional.tiles import TILES, one_axis
from tinyprop.kernels import cuda, cuda_images

pytestmark = pytest.mark.cupy
FILES = sorted(Path(tinyprop.__file__).parent.rglob("*.py"))
UFUNC_KEYWORDS = {"out", "dtype", "casting"}


# -- every xp.name and keyword exists


def is_array_module(node):
    """array_module(...), or one of the results of a tuple that holds it."""
    return isinstance(node, ast.Call) and getattr(node.func, "id", None) == "array_module"


def names_of_modules(tree):
    """The variables that array_module(...) is assigned to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = zip(target.elts, node.value.elts, strict=False)  # a starred one is no module
                yield from (name.id for name, value in pairs if is_array_module(value))


def uses(source):
    """What a source asks the array module for: dotted names, with the keywords that they are called with."""
    tree = ast.parse(source)
    variables = set(names_of_modules(tree))

    def dotted(node):
        if isinstance(node, ast.Attribute):
            root = dotted(node.value)
            return None if root is None else [*root, node.attr]
        found = is_array_module(node) or (isinstance(node, ast.Name) and node.id in variables)
        return [] if found else None

    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and dotted(node):
            found.setdefault(".".join(dotted(node)), set())
        if isinstance(node, ast.Call) and dotted(node.func):
            found.setdefault(".".join(dotted(node.func)), set()).update(k.arg for k in node.keywords if k.arg)
    return found


def what_is_missing(cupy, source):
    """What a source asks of CuPy that is not there."""
    for name, keywords in uses(source).items():
        thing = cupy
        for part in name.split("."):
            thing = getattr(thing, part, None)
        if thing is None:
            yield f"cupy.{name}"
        elif keywords:
            known = UFUNC_KEYWORDS if isinstance(thing, cupy.ufunc) else set(inspect.signature(thing).parameters)
            yield from (f"cupy.{name}({k}=)" for k in keywords - known)


def test_the_check_sees_what_is_there():
    found = uses("n, xp = 3, array_module(x)\nxp.linalg.inv(x)\narray_module(y).zeros(3, dtype=f)\nnp.insert(x)")
    assert found == {"linalg.inv": set(), "linalg": set(), "zeros": {"dtype"}}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_cupy_has_every_name_and_keyword(path):
    cupy = pytest.importorskip("cupy")
    assert not list(what_is_missing(cupy, path.read_text()))


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("xp.insert(x, 0, 1)", ["cupy.insert"]),
        ("xp.linalg.vector_norm(x)", ["cupy.linalg.vector_norm"]),
        ("xp.add(x, y, where=mask)", ["cupy.add(where=)"]),
        ("xp.sum(x, initial=0.0)", ["cupy.sum(initial=)"]),
        ("xp.sum(x, axis=0)", []),
    ],
)
def test_the_check_finds_what_is_missing(line, missing):
    cupy = pytest.importorskip("cupy")
    assert list(what_is_missing(cupy, f"xp = array_module(x)\n{line}")) == missing


# -- every CUDA source compiles for every architecture


def elementwise_source(kernel):
    """A kernel of one element as a function for all, as CuPy writes it."""
    name, inputs, outputs, code = kernel
    parameters, lines = [], []
    for declared in f"{inputs}, {outputs}".split(", "):
        *raw, kind, variable = declared.split()
        kind = {"int32": "int"}.get(kind, kind)
        if raw:
            parameters.append(f"CArray<{kind}, 1, 1, 1> {variable}")
        elif kind == "int":
            parameters.append(f"const int {variable}")
        else:
            parameters.append(f"CArray<{kind}, 1, 1, 1> all_{variable}")
            lines.append(f"{kind} &{variable} = all_{variable}[i];")
    body = "\n".join(lines) + code
    return f'extern "C" __global__ void {name}({", ".join(parameters)}, ptrdiff_t n) {{ CUPY_FOR(i, n) {{ {body}; }} }}'


def every_source(dtype):
    """All kernels of tinyprop in one source, each in a namespace."""
    parts = []
    for name, value in {**vars(cuda), **vars(cuda_images)}.items():
        if isinstance(value, tuple) and len(value) == 4:
            parts.append(elementwise_source(value))
        elif isinstance(value, str) and "__global__" in value and "MATRIX" not in value:
            parts.append(cuda.complete(value, name.lower(), dtype))
    for kernel, (step, points) in TILES.items():
        for i, matrix in enumerate(one_axis(step, points)):
            for turned in (matrix, matrix.T):
                source = cuda_images.map_tiles(tuple(map(tuple, turned.tolist())))
                undefine = "\n#undef TARGET\n#undef SOURCE\n"
                parts.append(cuda.complete(source, f"tiles_{kernel}_{i}_{turned is matrix:d}", dtype) + undefine)
    head = f"typedef {'float' if dtype == 'float32' else 'double'} T; typedef long long I;\n"
    spaces = [f"namespace space_{i} {{\n{part}\n}}" for i, part in enumerate(parts)]
    return "#include <cupy/complex.cuh>\n#include <cupy/carray.cuh>\n" + head + "\n".join(spaces)


def compiled(source, architecture):
    """The PTX that NVIDIA's compiler, which needs no device, makes of a source."""
    from cupy._core.core import assemble_cupy_compiler_options
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(source, "tinyprop.cu", (), ())
    try:
        nvrtc.compileProgram(program, (*assemble_cupy_compiler_options(()), f"--gpu-architecture={architecture}"))
        return str(nvrtc.getPTX(program))
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))
    finally:
        nvrtc.destroyProgram(program)


ARCHITECTURES = ("75", "80", "86", "89", "90", "100", "120")


@pytest.mark.parametrize(("architecture", "dtype"), [*((a, "float32") for a in ARCHITECTURES), ("90", "float64")])
def test_every_cuda_source_compiles(architecture, dtype):
    pytest.importorskip("cupy")
    made = set(re.findall(r"\.entry (\w+)", compiled(every_source(dtype), f"sm_{architecture}")))
    assert made >= {
        "gate",
        "sgd",
        "rmsprop",
        "batch_statistics",
        "scaled_rows",
        "max_pool_gradient",
        "cross_entropy",
        "tiles_5_0_1",
    }


def float64_arithmetic(source):
    return re.findall(r"(?:add|sub|mul|div|fma|cvt|sqrt)\.\S*f64\S*", compiled(source, "compute_90"))


def test_no_kernel_of_float32_computes_in_float64():
    """A constant such as 0.5 without T(...) is a double, and drags what it meets along."""
    pytest.importorskip("cupy")
    assert not float64_arithmetic(every_source("float32"))
    assert float64_arithmetic('extern "C" __global__ void half(float* x) { x[0] = x[1] * 0.3; }')
