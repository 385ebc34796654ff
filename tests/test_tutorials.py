import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import BACKENDS

COURSE = Path(__file__).parent.parent / "tutorials"
LESSONS = sorted(COURSE.glob("[0-9][0-9]_*.py"))
SOLUTIONS = sorted((COURSE / "solutions").glob("*.py"))
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
TRAINED = ("03_covariate_shift", "07_training")  # hundreds of steps: another BLAS rounds differently, and it grows
ON_KERNELS = ("02_convolution", "10_gpu")  # these show what overrides gain, which TINYPROP_PLAIN=1 takes away
PLAIN = os.environ.get("TINYPROP_PLAIN", "0") not in ("", "0")


def cells(lesson):
    return json.loads(lesson.with_suffix(".ipynb").read_text())["cells"]


def outputs(lesson):
    return [output for cell in cells(lesson) for output in cell.get("outputs", [])]


def run(script, folder):
    """Run a script as a reader does, in an empty folder, and return what it prints. Its warnings are errors."""
    ignored = "ignore:invalid value encountered in matmul:RuntimeWarning"  # see pyproject.toml
    command = [sys.executable, "-W", "error", "-W", ignored, str(script)]
    path = os.pathsep.join([str(COURSE.parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def last_digit(number):
    """What one more in the last digit of a printed number is worth.

    >>> last_digit("0.52"), last_digit("1,200"), last_digit("3.0e-06")
    (0.01, 1.0, 1e-07)
    """
    mantissa, _, exponent = number.partition("e")
    decimals = len(mantissa.partition(".")[2])
    return round(10.0 ** (int(exponent or 0) - decimals), 12)


def name(path):
    return path.stem


def test_ten_lessons_lead_from_one_to_the_next():
    assert [lesson.stem[:2] for lesson in LESSONS] == [f"{i:02}" for i in range(1, 11)]
    assert [lesson.name for lesson in LESSONS] == [solution.name for solution in SOLUTIONS]
    contents = (COURSE / "README.md").read_text()
    for lesson, following in zip(LESSONS, [*LESSONS[1:], None], strict=True):
        assert f"({lesson.stem}.ipynb)" in contents
        assert following is None or f"({following.stem}.ipynb)" in lesson.read_text()


@pytest.mark.parametrize("lesson", LESSONS, ids=name)
def test_a_lesson_has_its_parts(lesson):
    text = lesson.read_text()
    assert all(part in text for part in ("**Goal.**", "## Exercises", "## Read next", f"(solutions/{lesson.name})"))
    solutions = (COURSE / "solutions" / lesson.name).read_text()
    for i in (1, 2, 3):
        assert f"\n# {i}. " in text
        assert f"# Exercise {i}." in solutions
    prose = "\n".join(line for line in text.splitlines() if line.startswith("# "))
    for link in re.findall(r"\]\(((?!http)[^)]+)\)", prose):
        assert (COURSE / link).exists(), link


@pytest.mark.parametrize("lesson", LESSONS, ids=name)
def test_a_notebook_is_in_step_with_its_lesson(lesson):
    jupytext = pytest.importorskip("jupytext")
    notebook = jupytext.read(lesson, fmt="py:percent")
    assert [(c["cell_type"], "".join(c["source"])) for c in cells(lesson)] == [
        (c.cell_type, c.source) for c in notebook.cells
    ], "make tutorials"


@pytest.mark.parametrize("lesson", LESSONS, ids=name)
def test_a_notebook_shows_pictures_and_no_errors(lesson):
    found = outputs(lesson)
    assert {output["output_type"] for output in found} == {"stream", "display_data"}
    assert {output.get("name", "stdout") for output in found} == {"stdout"}
    code = [cell for cell in cells(lesson) if cell["cell_type"] == "code"]
    assert any("image/png" in output.get("data", {}) for cell in code[:3] for output in cell["outputs"]), "early"
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not re.search(r"/home/|/root/|/tmp/|site-packages", lesson.with_suffix(".ipynb").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("lesson", LESSONS, ids=name)
def test_a_lesson_prints_what_its_notebook_shows(lesson, tmp_path):
    printed = run(lesson, tmp_path)
    shown = "".join("".join(output["text"]) for output in outputs(lesson) if output["output_type"] == "stream")
    if "on a GPU" in printed or (PLAIN and lesson.stem in TRAINED + ON_KERNELS):  # other numbers
        return
    assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", shown).split(), "make tutorials"
    relative = 0.3 if lesson.stem in TRAINED else 0.02
    for a, b in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        x, y = float(a.replace(",", "")), float(b.replace(",", ""))
        allowed = relative * max(abs(x), abs(y)) + 2 * last_digit(b)
        assert abs(x - y) <= allowed, f"{a} printed, {b} shown: make tutorials"
    assert len(list(tmp_path.glob("runs/tutorials/*.png"))) == len(outputs(lesson)) - sum(
        output["output_type"] == "stream" for output in outputs(lesson)
    )


@pytest.mark.slow
@pytest.mark.parametrize("solution", SOLUTIONS, ids=name)
def test_solutions_hold(solution, tmp_path):
    run(solution, tmp_path)


@pytest.mark.cupy
@pytest.mark.skipif(len(BACKENDS) < 2, reason="needs CuPy")
def test_the_last_lesson_runs_on_a_device(tmp_path):
    assert run(LESSONS[-1], tmp_path).startswith("on a GPU")
