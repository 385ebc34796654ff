"""CuPy has every name and keyword that the package uses; this needs the CuPy wheel, but no device."""

import ast
import inspect
from pathlib import Path

import pytest

import tinyprop

pytestmark = pytest.mark.cupy
FILES = sorted(Path(tinyprop.__file__).parent.rglob("*.py"))
UFUNC_KEYWORDS = {"out", "dtype", "casting"}


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
