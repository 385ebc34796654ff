"""`python -m tutorials.grade`: what is right counts, and nothing else does."""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
sys.path.append(str(REPOSITORY))

from tutorials import grade  # noqa: E402

HALVES = "import math\n\n\ndef slope(x):\n    return math.tanh(x) + x * (1 - math.tanh(x) ** 2)\n"
RIGHT = HALVES + 'check("1.1", slope)'
HARD_CODED = """
import math
PUBLIC = {x: math.tanh(x) + x * (1 - math.tanh(x) ** 2) for x in (-1.3, -0.4, 0.3, 1.7)}
check("1.1", lambda x: PUBLIC.get(x, 0.0))
"""
NO_ANSWER = 'def slope(x): ...\ncheck("1.1", slope)'


def judged(cell, **limits):
    limits = {"seconds": 60} | limits  # on a busy machine
    (answer,) = grade.answers_of([cell]).values()
    return grade.run(answer, seed=0, limits=grade.Limits(**limits))


def test_a_right_answer_is_right():
    assert judged(RIGHT) is None


SOLUTIONS = os.fspath(REPOSITORY / "tutorials" / "solutions" / "01_autograd.py")
STEAL = "text = {}\nexec(text[text.index('def slope_of'):text.index('# **1.2**')])\n"
STOLEN = [
    f"open({SOLUTIONS!r}).read()",
    "__import__('pathlib').Path(tp.__file__).parents[1].joinpath('tutorials/exercises.toml').read_text()",
    f"__import__('os').popen({'cat ' + SOLUTIONS!r}).read()",
    f"__import__('runpy').run_path({SOLUTIONS!r})",
]
PATCHES = [
    ("import checks\nchecks.verdict = lambda *a: None\n", "ModuleNotFoundError"),
    ("import lesson\nlesson.exercises.FORMULAS\n", "AttributeError"),
    ("import tutorials.exercises\n", "may not read files of the course"),
    ("import numpy as np\nnp.abs = lambda x: np.zeros(1)\n", "it changes numpy.abs"),
    ("import builtins\nbuiltins.abs = lambda x: 0\n", "it changes builtins.abs"),
]
WITH_FRAMES = """
import sys
def slope(x):
    frame = sys._getframe(1)
    while "right" not in frame.f_globals:
        frame = frame.f_back
    frame.f_globals["right"] = lambda *a, **k: None
    return 0.0
check("1.1", slope)
"""
LATE = "def slope(x):\n    import checks\n    checks.near = lambda *a: True\n    return 0.0\n"
FILES = "for i in range(10**6):\n    open(f'full{i}', 'w').write('x' * 10**6)\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("print('1.1 is right')\n" + NO_ANSWER, "fill in the hole"),
        (HARD_CODED, "not for others"),
        ("import sys\nsys.exit(0)\n" + RIGHT, "ends the program"),
        ("import os\nos._exit(0)\n" + RIGHT, "ended before there was a verdict"),
        ('def slope(x):\n    raise SystemExit\ncheck("1.1", slope)', "ends the program"),
        ("1 / 0\n" + RIGHT, "its cell stops with ZeroDivisionError"),
        ("def check(number, answer): pass\n" + RIGHT, "does not reach check"),
        ("full = bytearray(8 << 30)\n" + RIGHT, "MemoryError"),
        ("open('full', 'wb').write(bytes(1 << 22))\n" + RIGHT, "File too large"),
        (FILES + RIGHT, "50 files, and no more"),
        ("open('/tmp/a file of an answer', 'w')\n" + RIGHT, "into its own folder only"),
        ("import os\nos.fork()\n" + RIGHT, "may not start processes"),
        ("import socket\nsocket.create_connection(('::1', 80))\n" + RIGHT, "a network"),
        *((patch + RIGHT, says) for patch, says in PATCHES),
        (WITH_FRAMES, "it changes checks.right"),
        (LATE + 'check("1.1", slope)', "ModuleNotFoundError"),
        ('def slope(x:\n\ncheck("1.1", slope)', "SyntaxError"),
        ("raise NameError('check')\n" + RIGHT, "NameError"),
    ],
)
def test_nothing_else_is(cell, says):
    if sys.platform == "win32" and says in ("MemoryError", "File too large"):
        pytest.skip("Windows has no such limits")
    assert says in judged(cell)


@pytest.mark.slow
@pytest.mark.parametrize("read", STOLEN, ids=["open", "toml", "cat", "run"])
def test_the_solutions_are_out_of_reach(read):
    cell = "import tinyprop as tp\n" + STEAL.format(read) + 'check("1.1", slope_of_x_tanh_x)'
    wrong = judged(cell)
    assert "may not read files of the course" in wrong or "may not start processes" in wrong


@pytest.mark.slow
@pytest.mark.parametrize("waste", ["import time\ntime.sleep(60)\n", "while True: pass\n"])
def test_an_answer_that_takes_too_long_is_ended(waste):
    assert "longer than 4 seconds" in judged(waste + RIGHT, seconds=4)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks by the C library")
def test_what_outlives_its_answer_does_not_keep_the_grader(tmp_path):
    """A process that left the group, and has the pipe of the verdict."""
    mark = tmp_path / "pid"
    fork = f"""
import ctypes, time
libc = ctypes.CDLL(None)
if libc.fork() == 0:
    libc.setsid()
    libc.open({os.fspath(mark).encode()!r}, 64, 384)
    time.sleep(20)
"""
    began = time.monotonic()
    wrong = judged(fork + RIGHT, seconds=4)
    assert wrong is None or "longer than 4 seconds" in wrong
    assert mark.exists()
    assert time.monotonic() - began < 15


def test_other_cells_only_define():
    cells = [
        "%matplotlib inline\nimport math\nlosses = train()\nN = 2 * math.pi",
        "def tanh(x):\n    return math.tanh(x)\nprint(tanh(N))",
        'check("1.1", lambda x: tanh(x) + x * (1 - tanh(x) ** 2))',
    ]
    answer = grade.answers_of(cells)["1.1"]
    text = "\n".join(answer.definitions)
    assert "N = 2" in text
    assert "def tanh" in text
    assert "losses" not in text
    assert "print" not in text
    assert grade.run(answer, 0, grade.Limits()) is None


def test_numbers_differ_between_students_and_not_between_runs():
    assert grade.seed_for(0, "ada", "1.1") == grade.seed_for(0, "ada", "1.1")
    seeds = {grade.seed_for(0, student, "1.1") for student in ("ada", "bob", "cy")}
    assert len(seeds) == 3


@pytest.mark.slow
def test_a_folder_becomes_a_table(tmp_path):
    folder = tmp_path / "submissions"
    (folder / "group").mkdir(parents=True)
    notebook = {"cells": [{"cell_type": "markdown", "source": ["# 1"]}]}
    notebook["cells"].append({"cell_type": "code", "source": RIGHT.splitlines(keepends=True)})
    (folder / "ada.ipynb").write_text(json.dumps(notebook))
    (folder / "group" / "bob.json").write_text(json.dumps({"cells": [{"source": NO_ANSWER}]}))
    (folder / "cy.py").write_text(f"# %% [markdown]\n# text\n\n# %%\n{HARD_CODED}")
    (folder / "dee.json").write_text("{")
    (folder / "eve.py").write_text("print(1)")
    out = tmp_path / "grades.csv"
    command = [sys.executable, "-m", "tutorials.grade", str(folder), "--out", str(out)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    with out.open() as file:
        rows = {(row["student"], row["exercise"]): row for row in csv.DictReader(file)}
    assert rows["ada", "1.1"]["verdict"] == "right"
    assert rows["ada", "1.2"]["verdict"] == "missing"
    assert rows["group/bob", "1.1"]["why"].endswith("fill in the hole")
    assert "not for others" in rows["cy", "1.1"]["why"]
    assert "cannot be read" in rows["dee", ""]["why"]
    assert "no exercise" in rows["eve", ""]["why"]
    assert "ada        lesson 1: 1 of 5 right" in done.stdout


@pytest.mark.parametrize("make", [None, "empty"])
def test_a_folder_with_nothing_in_it_is_refused(make, tmp_path, capsys):
    folder = tmp_path / "there"
    if make:
        folder.mkdir()
    with pytest.raises(SystemExit) as stopped:
        grade.main([str(folder)])
    assert stopped.value.code == 2
    assert os.fspath(folder) in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(REPOSITORY.glob("tutorials/solutions/*.py")), ids=str)
def test_our_solutions_are_graded_right(path):
    """Alone, after the definitions of their files, on fresh numbers."""
    for answer in grade.answers_of(grade.cells_of(path)).values():
        assert grade.run(answer, seed=1, limits=grade.Limits(seconds=60)) is None, answer.exercise
