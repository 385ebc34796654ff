"""What the repository says of itself is true: the README runs, rooms are small, imports go downwards only."""

import ast
import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import tinyprop as tp

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tinyprop"
FILES = sorted(PACKAGE.rglob("*.py"))
MOST_LINES = {"engine": 1_150, "functional": 1_800, "moments": 800, "nn": 1_000, "kernels": 1_200}  # with docstrings
MOST_LINES_OF_A_FILE = 400


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


def test_the_readme_compares_what_was_measured():
    text = (ROOT / "README.md").read_text()
    sources = "".join((ROOT / "benchmarks" / name).read_text() for name in ("RESULTS.md", "FEATURES.md"))
    rows = re.findall(r"^\|.*\|$", text, re.M)
    assert len(rows) >= 10
    assert [row for row in rows if row not in sources] == []
    assert f"{len(tp.verify.claims())} statements" in text


@pytest.mark.parametrize("page", ["README.md", "REPRODUCTION.md", "figures/README.md", "benchmarks/README.md"])
def test_pages_link_to_files_that_are_there(page):
    links = re.findall(r"\]\(((?!http)[^)#]+)\)", (ROOT / page).read_text())
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


def lines(path):
    return len(path.read_text().splitlines())


@pytest.mark.parametrize("room", MOST_LINES)
def test_a_room_is_small(room):
    files = {f.name: lines(f) for f in sorted((PACKAGE / room).iterdir()) if f.suffix in (".py", ".cu")}
    total, most = sum(files.values()), MOST_LINES[room]
    assert total <= most, f"{room}/ has {total} lines, {total - most} above its budget of {most}: {files}"


def test_no_file_is_long():
    files = {str(f.relative_to(PACKAGE)): lines(f) for f in [*FILES, *PACKAGE.rglob("*.cu")]}
    assert {name: n for name, n in files.items() if n > MOST_LINES_OF_A_FILE} == {}


# From the bottom to the top. Rooms of one row do not import each other.
MAP = """
    engine
    draw errors random special
    functional
    creation derivatives moments
    nn
    optim
    kernels
    arguments estimate files paper table
    saving data plots
    info
    train
    verify
    experiments
    cli
    demo
"""
LAYER = {room: i for i, row in enumerate(MAP.split("\n")) for room in row.split()}


def imported_rooms(path):
    """Rooms that a file imports, also inside functions: `from ..nn.module import x`, `from .. import nn`."""
    above = len(path.relative_to(PACKAGE).parts)  # this many dots lead to the package itself
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == above:
            yield from [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_downwards_only(path):
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if room in ("__init__", "__main__"):
        return
    assert room in LAYER, "a new room: put it on the map"
    rooms = {name for name in imported_rooms(path) if name != room and not name.startswith("__")}
    assert {name for name in rooms if LAYER[name] >= LAYER[room]} == set()


MEANING = [f for f in FILES if f.relative_to(PACKAGE).parts[0] in ("functional", "nn", "optim.py")]
# `is_host_array` is allowed: arguments on the host are checked, where that takes no synchronisation.
ABOUT_SPEED = {"is_device_array", "is_recording", "load_module", "recorded", "recording_now"}


@pytest.mark.parametrize("path", MEANING, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_meaning_has_no_branches_for_speed(path):
    """No "is it on a device?" and no "is it recorded?": faster ways are overrides in kernels/ (invariant 1)."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        found |= {getattr(node, "id", None), getattr(node, "attr", None)} & ABOUT_SPEED
        if isinstance(node, ast.Compare):
            constants = {x.value for x in (node.left, *node.comparators) if isinstance(x, ast.Constant)}
            found |= {"numpy", "cupy"} & constants
        if isinstance(node, ast.ImportFrom) and "kernels" in (node.module or "").split("."):
            found.add("kernels")
    assert found == set()


def array_modules_imported(source):
    modules = []
    for node in ast.walk(ast.parse(source)):
        modules += [a.name for a in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return [m for m in modules if m.split(".")[0] in ("numpy", "cupy", "cupyx")]


BESIDE = [PACKAGE / name for name in ("creation.py", "derivatives.py", "special.py")]


@pytest.mark.parametrize("path", MEANING + BESIDE, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_array_decides_where_it_is_computed(path):
    """`xp = array_module(x)`, never NumPy or CuPy by name."""
    assert not array_modules_imported(path.read_text())
