import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import BACKENDS, PLAIN

COURSE = Path(__file__).parent.parent / "tutorials"
LESSONS = sorted(COURSE.glob("[0-9][0-9]_*.py"))
ELECTIVES = sorted(COURSE.glob("E[0-9]_*.py"))
GPU_DEMO = COURSE / "gpu_demo.py"
SOLUTIONS = sorted((COURSE / "solutions").glob("[0-9E][0-9]_*.py"))
SOURCES = [*LESSONS, *ELECTIVES, *SOLUTIONS, GPU_DEMO]
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
# another BLAS rounds differently, and it grows
TRAINED = ("03_initialization", "04_batchnorm", "10_contest")
ON_KERNELS = ("E1_convolution", "E3_gpu", "E4_data_parallel")  # overrides change what these count


def cells(lesson):
    return json.loads(lesson.with_suffix(".ipynb").read_text())["cells"]


def outputs(lesson):
    return [output for cell in cells(lesson) for output in cell.get("outputs", [])]


def run(script, folder):
    """Run a script as a reader does, in an empty folder, and return what it prints. Its warnings
    are errors."""
    ignored = "ignore:invalid value encountered in matmul:RuntimeWarning"  # see pyproject.toml
    command = [sys.executable, "-W", "error", "-W", ignored, str(script)]
    path = os.pathsep.join([str(COURSE.parent), str(COURSE), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
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


def exercises_of(source):
    return re.findall(r'check\("([^"]+)", ', source.read_text())


def test_ten_lessons_lead_from_one_to_the_next():
    assert [lesson.stem[:2] for lesson in LESSONS] == [f"{i:02}" for i in range(1, 11)]
    contents, teaching = (COURSE / "README.md").read_text(), (COURSE / "TEACHING.md").read_text()
    for lesson, following in zip(LESSONS, [*LESSONS[1:], None], strict=True):
        assert f"({lesson.stem}.ipynb)" in contents
        assert f"({lesson.stem}.ipynb)" in teaching
        assert following is None or f"({following.stem}.ipynb)" in lesson.read_text()
    for elective in ELECTIVES:
        assert f"({elective.stem}.ipynb)" in contents


@pytest.mark.parametrize("lesson", LESSONS + ELECTIVES, ids=name)
def test_a_lesson_has_its_parts(lesson):
    text = lesson.read_text()
    for part in ("**Goal.**", "## Exercises", "## Read next", f"(solutions/{lesson.stem}.ipynb)"):
        assert part in text
    prose = "\n".join(line for line in text.splitlines() if line.startswith("# "))
    for link in re.findall(r"\]\(((?!http)[^)]+)\)", prose):
        assert (COURSE / link.split("#")[0]).exists(), link


@pytest.mark.parametrize("solution", SOLUTIONS, ids=name)
def test_a_solution_solves_every_exercise(solution):
    lesson = COURSE / solution.name
    assert exercises_of(solution) == exercises_of(lesson) != []
    shown = "".join(
        "".join(output["text"]) for output in outputs(solution) if output["output_type"] == "stream"
    )
    assert re.findall(r"^(\S+) is right$", shown, re.M) == exercises_of(lesson)
    assert "not yet" not in shown


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(COURSE)))
def test_a_notebook_is_in_step_with_its_source(source):
    jupytext = pytest.importorskip("jupytext")
    notebook = jupytext.read(source, fmt="py:percent")
    assert [(c["cell_type"], "".join(c["source"])) for c in cells(source)] == [
        (c.cell_type, c.source) for c in notebook.cells
    ], "make tutorials"
    assert source != GPU_DEMO or outputs(source) == [], "only who has a GPU can run it"


@pytest.mark.parametrize("lesson", LESSONS + ELECTIVES, ids=name)
def test_a_notebook_shows_figures_and_no_errors(lesson):
    found = outputs(lesson)
    assert {output["output_type"] for output in found} == {"stream", "display_data"}
    assert {output.get("name", "stdout") for output in found} == {"stdout"}
    code = [cell for cell in cells(lesson) if cell["cell_type"] == "code"]
    figures = [
        kind
        for output in code[0]["outputs"]
        for kind in output.get("data", {})
        if kind.startswith("image/")
    ]
    assert figures, "a figure in the first screen"
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not re.search(
        r"/home/|/root/|/tmp/|site-packages", lesson.with_suffix(".ipynb").read_text()
    )


@pytest.mark.slow
@pytest.mark.parametrize("lesson", LESSONS + ELECTIVES, ids=name)
def test_a_lesson_prints_what_its_notebook_shows(lesson, tmp_path):
    printed = run(lesson, tmp_path)
    shown = "".join(
        "".join(output["text"]) for output in outputs(lesson) if output["output_type"] == "stream"
    )
    if "on a GPU" in printed or (PLAIN and lesson.stem in TRAINED + ON_KERNELS):  # other numbers
        return
    assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", shown).split(), "make tutorials"
    relative = 0.3 if lesson.stem in TRAINED else 0.02
    for a, b in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        x, y = float(a.replace(",", "")), float(b.replace(",", ""))
        allowed = relative * max(abs(x), abs(y)) + 2 * last_digit(b)
        assert abs(x - y) <= allowed, f"{a} printed, {b} shown: make tutorials"
    figures = [output for output in outputs(lesson) if output["output_type"] == "display_data"]
    assert len(list(tmp_path.glob("runs/tutorials/*"))) == len(figures)


@pytest.mark.slow
@pytest.mark.parametrize("solution", SOLUTIONS, ids=name)
def test_solutions_are_right(solution, tmp_path):
    printed = run(solution, tmp_path)
    assert re.findall(r"^(\S+) is right$", printed, re.M) == exercises_of(solution)


def test_the_contest_is_complete():
    sys.path.append(str(COURSE))
    import contest

    runs = json.loads(contest.RESULTS.read_text())
    settings = [(run["norm"], run["batch"], run["rate"], run["seed"]) for run in runs]
    wanted = set(itertools.product(contest.NORMS, contest.EPOCHS, contest.RATES, contest.SEEDS[:1]))
    for norm, batch in itertools.product(contest.NORMS, contest.EPOCHS):
        wanted |= {
            (norm, batch, contest.best_rate(runs, norm, batch), seed) for seed in contest.SEEDS
        }
    assert sorted(settings) == sorted(wanted)


@pytest.mark.parametrize("figure", ["gamma.gif", "spectrum.gif"])
def test_moving_figures_are_small(figure):
    path = COURSE.parent / "figures" / figure
    assert path.read_bytes()[:3] == b"GIF"
    assert path.stat().st_size < 1_000_000


@pytest.mark.cupy
@pytest.mark.skipif(len(BACKENDS) < 2, reason="needs CuPy")
def test_the_lesson_on_devices_runs_on_one(tmp_path):
    assert run(ELECTIVES[2], tmp_path).startswith("on a GPU")
