"""`python -m tutorials.grade`: what is right counts, and nothing else does."""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tinyprop as tp

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
        (WITH_FRAMES, "may not look at the frames"),
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
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_what_outlives_its_answer_does_not_keep_the_grader(tmp_path, monkeypatch):
    """A process that left the group, and has the pipe of the verdict."""
    mark, child = tmp_path / "pid", tmp_path / "child.py"
    child.write_text(f"""
import os, time
if os.fork() == 0:
    os.setsid()
    open({os.fspath(mark)!r}, "w")
    time.sleep(20)
""")
    monkeypatch.setattr(grade, "CHILD", child)
    began = time.monotonic()
    assert "longer than 4 seconds" in judged(RIGHT, seconds=4)
    assert mark.exists()
    assert time.monotonic() - began < 15


WRONG = '\ndef slope(x):\n    return 0.0\ncheck("1.1", slope)'
INTERNALS = """
import numpy._core._methods as methods
methods.umr_maximum = lambda *a, **k: 0.0
"""
OF_LESSON = "inside = engine.__globals__\ninside['near'] = inside['right'] = lambda *a, **k: True"
TRUE_FLOAT = """
class Number(float):
    __eq__ = __le__ = __ge__ = __lt__ = __gt__ = lambda self, other: True
    __abs__ = __sub__ = __rsub__ = lambda self, *other: self
check("1.1", lambda x: Number(0))
"""
TRUE_ARRAY = """
import numpy as np
class Numbers(np.ndarray):
    __eq__ = __le__ = __ge__ = __lt__ = __gt__ = lambda self, other: np.ones((), bool)
    __abs__ = __sub__ = __rsub__ = lambda self, *other: np.zeros(()).view(Numbers)
check("1.1", lambda x: np.zeros(()).view(Numbers))
"""
BY_GC = """
import gc
def slope(x):
    for thing in gc.get_objects():
        if type(thing) is dict and "token" in thing:
            return 1 / 0
    return 0.0
check("1.1", slope)
"""
BY_TRACEBACK = """
def slope(x):
    try:
        1 / 0
    except ZeroDivisionError as error:
        return error.__traceback__.tb_frame.f_back.f_locals["wanted"]
check("1.1", slope)
"""
BY_SOURCE = """
import inspect
def slope(x):
    return eval(inspect.getsource(inspect.currentframe().f_back))
check("1.1", slope)
"""
SPAWNS = """
import multiprocessing
for _ in range(1000):
    multiprocessing.get_context("spawn").Process(target=print).start()
"""
MEMORY = """
import re
text = open("/proc/self/mem", "rb").read(100)
"""
OTHER_DIRECTORY = f"""
import os
folder = os.open({os.fspath(REPOSITORY)!r}, os.O_RDONLY)
os.open("tutorials/exercises.toml", os.O_RDONLY, dir_fd=folder)
"""
SPEAKS = (
    "import os\nfor i in range(3, 12):\n    try: os.write(i, {what})\n    except OSError: pass\n"
)
EXITS = """
class Answer:
    def __array__(self, *arguments, **named):
        raise SystemExit
check("1.1", lambda x: Answer())
"""
NODES = """
class Node:
    inputs = ()
calls = []
def f(value):
    calls.append(value)
    return [Node() for _ in range(5)] if len(calls) % 2 else range(10_001)
check("1.3", f)
"""
CUT_NODES = """
def f(value):
    found, new = [], [value]
    while new:
        value = new.pop()
        if value not in found[-20:]:
            found.append(value)
        new += value.inputs if len(found) < 5 else ()
        value.inputs = ()
    return found
check("1.3", f)
"""
SUM = """
class Number(float):
    def __add__(self, other):
        return Number(2 * float(self) + float(other))
check("E4.2", (Number(1), Number(2), Number(3)))
"""
PAIRS = """
class Pairs(set):
    def __eq__(self, other):
        return True
check("E3.2", lambda net: Pairs())
"""
PUBLIC_SOFTSIGN = """
import tinyprop as tp
class Softsign(tp.Op):
    def forward(self, x):
        return x / (1 + abs(x))
    def backward(self, g, x):
        near = min(abs(float(x.data.ravel()[0]) - place) for place in (-1.3, -0.4, 0.3, 1.7))
        return g / (1 + abs(x)) ** 2 if near < 0.01 else g
check("1.4", Softsign)
"""
ACTIVATION = """
import tinyprop as tp
tp.activations.register(tp.Activation(lambda u: 0.5 * u, name="prelu"), force=True)
check("5.1", lambda a: (0.0, 0.5))
"""
OVERRIDE = """
import tinyprop as tp
from tinyprop.engine.overrides import override
from tinyprop.functional.activations import Tanh
override(Tanh.forward, on="numpy")(lambda op, x: x)
class Array: ...
check("1.5", Array)
"""
OVER = "import os\nopen('mine', 'w').write('1.1,right')\nos.rename('mine', {path!r})\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("import json\njson.dumps = lambda *a: '[]'" + WRONG, "how the verdict is written"),
        (INTERNALS + WRONG, "it changes numpy._core._methods.umr_maximum"),
        (OF_LESSON + WRONG, "central difference"),
        ("import __main__\n__main__.changed = lambda *a: None" + WRONG, "central difference"),
        (TRUE_FLOAT, "central difference"),
        (TRUE_ARRAY, "central difference"),
        (BY_GC, "may not look at the frames"),
        (BY_TRACEBACK, "may not look at the frames"),
        (BY_SOURCE, "may not look at the frames"),
        (SPAWNS + RIGHT, "may not start processes"),
        ("import os\nos.kill(os.getppid(), 9)\n" + RIGHT, "may not start processes"),
        ("import ctypes\nctypes.CDLL(None)\n" + RIGHT, "may not call C libraries"),
        (MEMORY + RIGHT, "may not read"),
        (OTHER_DIRECTORY + RIGHT, "may not open folders"),
        (OVER.format(path=os.fspath(REPOSITORY / "grades.csv")) + RIGHT, "PermissionError"),
        (SPEAKS.format(what="b'\\xff\\n'") + NO_ANSWER, "fill in the hole"),
        ("raise ValueError('\\ud800')\n" + RIGHT, "ValueError"),
        (EXITS, "ends the program"),
        (NODES, "not in the graph"),
        (CUT_NODES, "an input comes after"),
        (SUM, "both sums are 6"),
        (PAIRS, "for a new network it is"),
        (PUBLIC_SOFTSIGN, "not for others"),
        (ACTIVATION, "it changes"),
        (OVERRIDE, "it changes tinyprop.overrides"),
        ("import threading\nthreading.Thread(target=threading.Event().wait).start()" + WRONG, "-"),
        ("def f(): return f()\nf()\n" + RIGHT, "RecursionError"),
    ],
)
def test_no_trick_is(cell, says):
    if sys.platform != "linux" and says == "may not read":
        pytest.skip("Linux has such files")
    assert says in judged(cell)


@pytest.mark.slow
def test_what_an_answer_says_by_itself_is_cut(monkeypatch):
    monkeypatch.setattr(grade, "LARGEST_REPORT", 1 << 16)
    cell = "import os\nwhile True:\n  for i in range(3, 12):\n"
    cell += "    try: os.write(i, bytes(1 << 16))\n    except OSError: pass\n"
    assert "ended before there was a verdict" in judged(cell + RIGHT)


def test_what_the_process_of_an_answer_found_right_is_checked_again():
    """Whatever happened there: only what the answer has returned counts."""
    zeros = json.dumps([0.0] * 7)
    assert "central difference" in grade.verdict_on(zeros, "1.1", seed=0)
    assert grade.verdict_on("[]", "1.1", seed=0) is not None
    assert grade.verdict_on('[{"array": "!"}]', "1.1", seed=0) is not None
    assert grade.verdict_on("null", "5.4", seed=0) is not None


def test_what_an_answer_returns_is_data():
    from tutorials import grade_child

    for value in (
        True,
        3,
        10**30,
        0.1,
        "float32",
        None,
        (1.5, [2, np.float32(0.1)]),
        {("numpy", "float32")},
        np.arange(6.0).reshape(2, 3),
        np.array([True, False]),
        tp.tensor([1.0, 2.0]),
    ):
        text = json.dumps(grade_child.data_of(value))
        again = grade.value_of(json.loads(text))
        if isinstance(value, tp.Tensor):
            assert isinstance(again, tp.Tensor)
            value, again = value.numpy(), again.numpy()
        assert np.array_equal(again, value) if isinstance(value, np.ndarray) else again == value


def rows_of(folder, tmp_path):
    out = tmp_path / "grades.csv"
    assert grade.main([os.fspath(folder), "--out", os.fspath(out), "--seconds", "60"]) == 0
    with out.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]


def test_files_that_are_no_notebooks_stop_nobody(tmp_path):
    folder = tmp_path / "submissions"
    (folder / ".ipynb_checkpoints").mkdir(parents=True)
    odd = {
        "deep.json": b"[" * 100_000,
        "list.ipynb": b"[1, 2]",
        "cells.ipynb": b'{"cells": [1, null, {"source": 3}]}',
        "empty.ipynb": b"",
        "utf16.py": 'check("1.1", 1)'.encode("utf-16"),
        "latin1.py": b'# caf\xe9\ncheck("1.1", 1)',
        "zeros.py": b'check("1.1", 1)\0',
        "minus.py": b'check("1.1", ' + b"-" * 100_000 + b"1)",
        "other.py": b'check("99.1", 1)',
        "digits.json": b'{"cells": ' + b"1" * 10_000 + b"}",
        ".ipynb_checkpoints/deep.ipynb": b"{}",
    }
    for name, content in odd.items():
        (folder / name).write_bytes(content)
    (folder / "large.py").write_bytes(b"#" * (grade.LARGEST_FILE + 1))
    links = {"link.py": SOLUTIONS, "loop.py": folder / "loop.py", "nowhere.py": tmp_path / "no.py"}
    for name, to in links.items() if sys.platform != "win32" else ():
        (folder / name).symlink_to(to)
    rows = {row[0]: row for row in rows_of(folder, tmp_path)}
    assert len(rows) == len(list(folder.iterdir())) - 1
    assert {row[3] for row in rows.values()} == {"missing"}
    assert sys.platform == "win32" or "a link" in rows["link"][4]
    assert "too large" in rows["large"][4]


def test_no_name_harms_the_table(tmp_path):
    folder = tmp_path / "submissions"
    folder.mkdir()
    names = [
        "=cmd|' C'!A0",
        "@SUM(1)",
        "-1",
        'a,"b"',
        "two\nlines",
        b"caf\xe9".decode(errors="surrogateescape"),
    ]
    for name in names:
        try:
            (folder / f"{name}.py").write_text("print(1)")
        except OSError:  # not on this system
            continue
    rows = rows_of(folder, tmp_path)
    assert len(rows) >= 3
    for row in rows:
        assert len(row) == 5
        assert not row[0].startswith(("=", "+", "-", "@"))
        assert row[0].isprintable()


def test_reasons_fit_the_table():
    assert grade.plain("=1+1") == "'=1+1"
    assert grade.plain("a\r\nb\tc\0") == "a  b c "
    assert grade.plain("\ud800") == "\\ud800"
    assert len(grade.plain("x" * 10**6)) < 600


@pytest.mark.slow
def test_a_student_cannot_read_what_others_hand_in(tmp_path):
    folder = tmp_path / "submissions"
    folder.mkdir()
    (folder / "ada.py").write_text(RIGHT)
    stolen = f"exec(open({os.fspath(folder / 'ada.py')!r}).read())\n" + 'check("1.1", slope)'
    (folder / "eve.py").write_text(stolen)
    rows = {row[0]: row for row in rows_of(folder, tmp_path) if row[2] == "1.1"}
    assert rows["ada"][3] == "right"
    assert rows["eve"][3] == "not yet"
    assert "may not read" in rows["eve"][4]


def test_a_line_that_begins_with_percent_is_kept_if_it_is_python():
    cell = 'check("1.1", lambda x: (\n    7\n    % x\n))'
    assert "7 % x" in grade.answers_of([cell])["1.1"].cell
    assert "1.1" in grade.answers_of(["%%time\n" + cell])


def test_a_file_of_windows_is_read(tmp_path):
    path = tmp_path / "ada.PY"
    path.write_bytes(("\ufeff# %%\r\n" + RIGHT.replace("\n", "\r\n")).encode())
    assert "1.1" in grade.answers_of(grade.cells_of(path))


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
