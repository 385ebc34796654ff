import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import BACKENDS, PLAIN
from .helpers import FULL

COURSE = Path(__file__).parent.parent / "tutorials"
LESSONS = sorted(COURSE.glob("[0-9][0-9]*_*.py"))
ELECTIVES = sorted(COURSE.glob("E[0-9]_*.py"))
GPU_DEMO = COURSE / "gpu_demo.py"
SOLUTIONS = sorted((COURSE / "solutions").glob("[0-9E][0-9]*_*.py"))
SOURCES = [*LESSONS, *ELECTIVES, *SOLUTIONS, GPU_DEMO]
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
# another BLAS rounds differently, and it grows
TRAINED = ("03_initialization", "04_batchnorm", "10_contest")
TEACHING = COURSE / "TEACHING.md"
FOLDED = "hide-input"
CLAIMS = {  # sentences that a lesson computes, at least
    "02_network": 5,
    "03_initialization": 3,
    "04_batchnorm": 11,
    "06_normprop_layer": 6,
    "07_jacobian": 1,
    "08_depth": 1,
    "08b_no_free_lunch": 1,
    "09_other_normalizers": 7,
    "10_contest": 5,
}
TERMS = {  # and the lesson that defines them
    "chain rule": "01",
    "central difference": "01",
    "gradient": "01",
    "topological order": "01",
    "backpropagation": "01",
    "hidden unit": "02",
    "logit": "02",
    "cross-entropy": "02",
    "mini-batch": "02",
    "epoch": "02",
    "effective rate": "02",
    "pre-activation": "03",
    "seed": "04",
    "standard error": "04",
    "internal covariate shift": "04",
    "channel": "04",
    "excess kurtosis": "06",
    "central limit theorem": "06",
    "Jacobian": "07",
    "singular value": "07",
    "dynamical isometry": "07",
    "mean degree": "08b",
    "token": "09",
    "degrees of freedom": "10",
    "ledger": "10",
}
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


def source_cells(lesson):
    """The cells of a source, as (header, text)."""
    parts = re.split(r"(?m)^(# %%.*)\n", lesson.read_text())[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def prose(lesson):
    """What a lesson says, in one line."""
    text = "".join(text for header, text in source_cells(lesson) if "[markdown]" in header)
    return in_one_line(text.partition("## Read next")[0])


def in_one_line(text):
    return " ".join(text.replace("\n#", "\n").split())


def test_the_lessons_lead_from_one_to_the_next():
    numbers = [lesson.stem.partition("_")[0] for lesson in LESSONS]
    assert numbers == [*(f"{i:02}" for i in range(1, 9)), "08b", "09", "10"]
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
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not re.search(
        r"/home/|/root/|/tmp/|site-packages", lesson.with_suffix(".ipynb").read_text()
    )


@pytest.mark.parametrize("lesson", LESSONS + ELECTIVES, ids=name)
def test_a_figure_comes_early_and_its_code_is_folded(lesson):
    lines, shown = 0, False
    for header, text in source_cells(lesson):
        draws = re.search(r"^show\(|^    show\(", text, re.MULTILINE)
        folded = FOLDED in header
        if draws and "tp.draw(" not in text:
            assert folded, text.strip().splitlines()[0]
        if "[markdown]" not in header and not folded and not shown:
            lines += sum(bool(line.strip()) for line in text.splitlines())
        shown = shown or bool(draws)
    assert shown
    assert lines <= 15, "lines of code before the first figure"
    tags = [FOLDED in header for header, _ in source_cells(lesson)]
    assert tags == [FOLDED in cell["metadata"].get("tags", []) for cell in cells(lesson)]


@pytest.mark.parametrize("lesson", LESSONS + ELECTIVES, ids=name)
def test_a_cell_that_takes_long_says_so_and_has_a_short_form(lesson):
    """Its own, or that of a cell above."""
    has_short_form = False
    for header, text in source_cells(lesson):
        has_short_form = has_short_form or "# short: " in text
        assert "# short: " not in text or "takes-" in header, text
        assert "takes-" not in header or has_short_form, text
    says = [re.findall(r"takes-\d+s", header) for header, _ in source_cells(lesson)]
    tags = [cell["metadata"].get("tags", []) for cell in cells(lesson)]
    assert says == [[tag for tag in each if tag.startswith("takes-")] for each in tags]


@pytest.mark.parametrize("lesson", LESSONS + ELECTIVES, ids=name)
def test_every_figure_has_a_description(lesson):
    for cell in cells(lesson):
        shown = [o for o in cell.get("outputs", []) if o["output_type"] == "display_data"]
        for output in shown:
            (facts,) = output["metadata"].values()
            assert len(facts["alt"]) > 60
            assert cell["metadata"]["mystnb"]["image"]["alt"] == facts["alt"]
        assert len(shown) <= 1, "a cell has one alternative text"


@pytest.mark.parametrize("lesson", LESSONS + ELECTIVES, ids=name)
def test_the_sentences_of_a_lesson_hold(lesson):
    """As its notebook shows them; another test compares that with what the lesson prints."""
    shown = "".join(
        "".join(output["text"]) for output in outputs(lesson) if output["output_type"] == "stream"
    )
    assert "DOES NOT HOLD" not in shown
    written = len(re.findall(r"(?m)^ *claim\(", lesson.read_text()))
    assert len(re.findall(r"(?m)^holds: ", shown)) == written
    assert written >= CLAIMS.get(lesson.stem, 0)


def test_each_misconception_has_a_cell_that_refutes_it():
    rows = re.findall(r"(?m)^\| \"(.+?)\" \| \[\w+\]\((\w+)\.ipynb\) \|", TEACHING.read_text())
    assert len(rows) >= 7
    for sentence, stem in rows:
        found = source_cells(COURSE / f"{stem}.py")
        said = f'**"{sentence}"**'
        places = [i for i, (_, text) in enumerate(found) if said in in_one_line(text)]
        assert len(places) == 1, sentence
        after = found[places[0] + 1 :]
        code = next(text for header, text in after if "[markdown]" not in header)
        assert "claim(" in code, sentence


def test_a_term_is_defined_before_it_is_used():
    for term, number in TERMS.items():
        (home,) = [lesson for lesson in LESSONS if lesson.stem.startswith(f"{number}_")]
        assert re.search(rf"\*{term}s?\*", prose(home)), f"{term} is defined in {number}"
        for lesson in LESSONS[: LESSONS.index(home)]:
            assert term not in prose(lesson), f"{term}, which {number} defines, in {lesson.stem}"


@pytest.mark.slow
@pytest.mark.parametrize("lesson", LESSONS + ELECTIVES, ids=name)
def test_a_lesson_prints_what_its_notebook_shows(lesson, tmp_path):
    printed = run(lesson, tmp_path)
    assert "DOES NOT HOLD" not in printed  # in any mode
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
@pytest.mark.skipif(not FULL, reason="make full runs short forms")
@pytest.mark.parametrize("lesson", LESSONS + ELECTIVES, ids=name)
def test_short_forms_run(lesson, tmp_path):
    """As the page's button makes them: see SHORT in docs/live/live.js."""
    text = lesson.read_text()
    short = re.sub(r"(?m)^(\s*\w+ = )(.+?)(\s+# short: )(.+)$", r"\1\4\3\4", text)
    if short == text:
        pytest.skip("it has none")
    script = tmp_path / lesson.name
    script.write_text(short)
    assert run(script, tmp_path)


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
