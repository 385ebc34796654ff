"""What the repository says of itself is true: the README runs, imports are light and go downwards
only."""

import ast
import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import tinyprop as tp
from tests.helpers import figure_in_words, run_python

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tinyprop"
README = (ROOT / "README.md").read_text()
FIGURES = [path for path in sorted(ROOT.glob("figures/**/*")) if path.suffix in (".png", ".gif")]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


def test_the_readme_runs_and_prints_what_it_says():
    fences = re.findall(r"```(python|text)\n(.*?)```", README, re.S)
    assert [kind for kind, _ in fences].count("python") >= 5
    names, printed = {}, ""
    for kind, text in fences:
        if kind == "python":
            with redirect_stdout(io.StringIO()) as out:
                exec(text, names)
            printed = out.getvalue()
        else:
            assert printed == text


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_figure_has_a_description_with_its_numbers(path):
    words = figure_in_words(path)
    assert len(words) > 100
    assert len(re.findall(r"\d", words)) > 5


def test_the_readme_quotes_what_was_measured():
    comparison = README[README.index("## How it compares") :]
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    rows = re.findall(r"^\|.*\|$", comparison, re.M)
    assert len(rows) >= 5
    assert [row for row in rows if row not in results] == []
    assert f"all {len(tp.verify.claims())} claims" in README
    of_strangers = [c for c in tp.verify.claims("all") if not c.file.is_relative_to(PACKAGE)]
    others = len(tp.verify.claims("all")) - len(tp.verify.claims()) - len(of_strangers)
    assert f"settles {others}\nmore claims" in README
    for page in ("README.md", "CITATION.cff", "CHANGELOG.md"):
        assert tp.__version__ in (ROOT / page).read_text()


PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "docs/architecture.md",
    "docs/checks.md",
    "docs/own.md",
    "tutorials/README.md",
    "benchmarks/README.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_pages_link_to_files_that_are_there(page):
    links = re.findall(r"\]\(((?!http)[^)#]+)\)", (ROOT / page).read_text())
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


def test_import_is_light():
    """`import tinyprop` loads NumPy; what draws, trains, reads files or talks to the network waits
    until it is used."""
    heavy = {"matplotlib", "safetensors", "PIL", "http", "urllib.request", "tqdm", "threadpoolctl"}
    heavy |= {"html", "tinyprop.report.saving", "tinyprop.train", "tinyprop.theory"}
    program = f"import sys, tinyprop, tinyprop.cli; print(*sorted({heavy} & set(sys.modules)))"
    done = run_python(program)
    assert (done.returncode, done.stdout.split()) == (0, [])


# From the bottom to the top; a room may import the rooms before it.
MAP = """
    engine functional moments report nn optim kernels parallel theory data train testing verify
    experiments instruments cli
"""
LEVEL = {room: i for i, room in enumerate(MAP.split())}


def imports(path):
    """(dots, module, names) of all imports of a file: `from ..nn import x` is (2, "nn", ["x"])."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.level, node.module or "", [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from ((0, alias.name, []) for alias in node.names)


@pytest.mark.parametrize("room", LEVEL)
def test_imports_go_downwards_only(room):
    files = list((PACKAGE / room).rglob("*.py")) or [PACKAGE / f"{room}.py"]
    for path in files:
        depth = len(path.relative_to(PACKAGE).parts)  # this many dots lead to the package itself
        for dots, module, names in imports(path):
            rooms = [module.split(".")[0]] if module else [name for name in names if name in LEVEL]
            above = [r for r in rooms if dots == depth and r != room and LEVEL[r] >= LEVEL[room]]
            assert above == [], f"{path} imports {above}"


def test_the_map_of_the_pages_is_the_order_of_imports():
    rows = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", ARCHITECTURE, re.M)
    assert rows[: len(LEVEL)] == list(LEVEL)[::-1]


def test_every_room_has_a_row():
    rooms = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert rooms - {"__init__", "__main__"} == set(LEVEL)


MEANING = [
    path for room in ("functional", "nn", "optim") for path in sorted((PACKAGE / room).glob("*.py"))
]
# These ask where an array is: to draw it, to take its derivatives, to call CuPy's own erf.
BESIDE = [PACKAGE / "functional" / name for name in ("derivatives.py", "draw.py", "special.py")]


@pytest.mark.parametrize("path", MEANING, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_meaning_is_free_of_speed_and_place(path):
    """`xp = array_module(x)`, never NumPy or CuPy by name; no branch on a device or a recorded
    graph (invariant 1)."""
    assert [
        m for _, m, _ in imports(path) if m.split(".")[0] in ("numpy", "cupy", "cupyx", "kernels")
    ] == []
    if path not in BESIDE:
        speed = (
            r"\b(is_device_array|is_recording|load_module|recorded|recording_now)\b|[!=]= "
            r"*[\"'](numpy|cupy)[\"']"
        )
        code = re.sub(r'"""[\s\S]*?"""|#.*', "", path.read_text())
        assert re.findall(speed, code) == []


def test_there_is_one_context():
    """One context variable holds all settings of a block (engine/context.py). The other one is the
    mailbox of CUDA graphs, which the engine must not know."""
    found = [
        path.relative_to(PACKAGE).as_posix()
        for path in sorted(PACKAGE.rglob("*.py"))
        if re.search(r"= ContextVar\(", path.read_text())
    ]
    assert found == ["engine/context.py", "kernels/cuda.py"]


# What names activations on purpose: the functions themselves, and numbers that a paper published.
NAMES_ACTIVATIONS = {
    "functional/__init__.py",
    "verify/moment_claims.py",
    "verify/normalizer_claims.py",
}


def activation_names(node):
    """The names of activations among the elements of a literal, or in a comparison."""
    if isinstance(node, ast.Dict):
        parts = node.keys
    elif isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        parts = node.elts
    else:
        return set()
    return {part.value for part in parts if isinstance(part, ast.Constant)} & set(tp.activations)


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_there_is_one_table_of_activations(path):
    """No list of names beside `tp.activations`, and no branch on a name: a stranger's activation is
    treated as ours."""
    if path.relative_to(PACKAGE).as_posix() in NAMES_ACTIVATIONS:
        return
    for node in ast.walk(ast.parse(path.read_text())):
        assert len(activation_names(node)) < 3, f"{path}:{node.lineno} lists activations"
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            compared = {side.value for side in sides if isinstance(side, ast.Constant)}
            assert not compared & set(tp.activations), f"{path}:{node.lineno} compares a name"


# What names normalisers on purpose: the table itself, and what a figure shows by default.
NAMES_NORMALIZERS = {"nn/normalizers.py", "instruments/compare.py"}


def names_among(nodes):
    return {node.value for node in nodes if isinstance(node, ast.Constant)} & set(tp.nn.normalizers)


def is_normalizer(node):
    """Whether this is a variable or an attribute that holds a normaliser, or its name."""
    name = getattr(node, "id", getattr(node, "attr", ""))
    return name in ("norm", "norms", "normalizer")


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_there_is_one_table_of_normalizers(path):
    """No list of names beside `tp.nn.normalizers`, and no branch on a name: a stranger's normaliser
    is treated as ours."""
    for node in ast.walk(ast.parse(path.read_text())):
        if path.relative_to(PACKAGE).as_posix() not in NAMES_NORMALIZERS:
            parts = getattr(node, "keys", getattr(node, "elts", []))
            listed = names_among(parts) if isinstance(parts, list) else set()
            assert len(listed) < 3, f"{path}:{node.lineno} lists normalisers"
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(is_normalizer, sides)):
                inside = [part for side in sides for part in getattr(side, "elts", [side])]
                assert not names_among(inside), f"{path}:{node.lineno} compares a name"


# What these compute with comes from float32 arrays of any size; the other rooms compute with few
# numbers, in float64.
ROOMS_THAT_ADD = ["engine", "functional", "nn", "optim", "kernels", "parallel", "data", "train"]
ADDING = {"sum", "mean", "average", "var", "std", "nansum", "nanmean", "einsum", "dot", "vdot"}
ADDING |= {"inner", "tensordot", "vecdot", "cumsum", "trace", "norm", "reduce"}
ALLOWED = {
    "engine/backward.py": ["g.sum"],  # of a tensor
    "data/shapes.py": ["colors.sum"],  # three of them
    "kernels/cuda.py": ["table[:, -1].cumsum"],  # integers
    # only asks which tiles are even, to within a few percent
    "kernels/evenness.py": ["np.einsum", "np.dot", "uneven.mean"],
    "kernels/host.py": ["values.dot"],  # asks for NaN
    # groups of 128; products of matrices, one of them with a row of at most FEW ones
    "kernels/weights.py": ["np.vecdot", "np.vecdot", "x.dot", "ones(len(g), g.dtype).dot"],
    "nn/pytorch.py": ["Tracer().trace"],  # of torch.fx
}


def additions(path):
    """What adds up elements of arrays as NumPy likes it: methods and functions of these names,
    unless they are tinyprop's own, or are told in which type to add."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        receiver = ast.unparse(node.func.value)
        has_type = any(keyword.arg == "dtype" for keyword in node.keywords)
        if node.func.attr in ADDING and receiver not in ("F", "self") and not has_type:
            yield ast.unparse(node.func)


@pytest.mark.parametrize("room", ROOMS_THAT_ADD)
def test_there_is_one_way_to_add_up(room):
    """It is `total` of engine/sums.py (invariant 7)."""
    for path in sorted((PACKAGE / room).glob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name != "engine/sums.py":
            assert list(additions(path)) == ALLOWED.get(name, []), name
