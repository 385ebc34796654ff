"""What the repository says of itself is true: the README runs, the engine is small, imports go downwards."""

import ast
import io
import re
import tokenize
from contextlib import redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tinyprop"
FILES = sorted(PACKAGE.rglob("*.py"))
KERNELS = {"columns.py", "pointwise.py", "tiles.py"}  # of convolution
ENGINE = [PACKAGE / f for f in ("backend.py", "tensor.py", "autograd.py")] + [
    f for f in sorted((PACKAGE / "functional").glob("*.py")) if f.name not in KERNELS
]


def test_the_readme_runs_and_prints_what_it_says():
    fences = re.findall(r"```(python|text)\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert fences
    names, printed = {}, ""
    for kind, text in fences:
        if kind == "python":
            with redirect_stdout(io.StringIO()) as out:
                exec(text, names)
            printed = out.getvalue()
        else:
            assert printed == text


def lines_of_code(path):
    """Lines that hold code: no blank lines, comments or docstrings."""
    source = path.read_text()
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING):
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def test_the_engine_is_small():
    assert sum(map(lines_of_code, ENGINE)) < 1_500
    assert not [f.name for f in FILES if len(f.read_text().splitlines()) > 400]


ROOMS = [
    "errors", "backend", "cuda", "cuda_images", "device", "special", "tensor", "autograd", "functional", "gradcheck",
    "draw", "quadrature", "moment_rules", "moments", "nn", "optim", "saving", "checkpoint", "data", "step", "plots",
    "verify", "train", "demo", "bench", "diagnosis", "experiments", "cli",
]  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_downwards_only(path):
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if room == "__init__":
        return
    assert room in ROOMS, "a new room: put it on the map"
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        inside = len(path.relative_to(PACKAGE).parts) > 1 and node.level == 1
        names = [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]
        for name in names:
            assert inside or name.startswith("__") or ROOMS.index(name) < ROOMS.index(room), f"{room} imports {name}"


def array_modules_imported(source):
    modules = []
    for node in ast.walk(ast.parse(source)):
        modules += [a.name for a in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return [m for m in modules if m.split(".")[0] in ("numpy", "cupy", "cupyx")]


# Rooms whose arrays never go to a device by themselves.
HOST_ONLY = {"bench", "data", "experiments", "plots.py", "cli.py", "train.py", "verify"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_arrays_are_known_through_backend_only(path):
    if path.name == "backend.py" or path.relative_to(PACKAGE).parts[0] in HOST_ONLY:
        return
    assert not array_modules_imported(path.read_text())
