"""`tinyprop verify`, as a user calls it."""

import io
import json
import re
import sys
from types import SimpleNamespace

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from tinyprop.cli import main
from tinyprop.verify import Case, Estimate, claim, claims, run
from tinyprop.verify.command import seed_number
from tinyprop.verify.figures import FIGURES
from tinyprop.verify.ledger import LEDGER
from tinyprop.verify.monte_carlo import Sampler
from tinyprop.verify.report import Report, has_color

FIELDS = ["id", "statement", "section", "verdict", "expected", "reason"]
FIELDS += ["derivation", "problem", "cases"]
CASE = [
    "what",
    "relation",
    "claimed",
    "exact",
    "estimate",
    "half_width",
    "standard_error",
    "samples",
    "judged",
    "notices",
]


def test_a_table_a_summary_and_json(tmp_path, capsys):
    path = tmp_path / "new" / "verify.json"
    assert main(["verify", "C01", "C15", "C44", "-v", "--samples", "1e4", "--json", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    marks = ("✓ holds", "✗ does not hold as stated", "… empirical")
    for text in (*marks, "0.398942", "every verdict is the expected one"):
        assert text in said
    assert "\x1b" not in said
    results = json.loads(path.read_text())
    assert [list(r) for r in results] == [FIELDS] * 3
    assert {tuple(case) for r in results for case in r["cases"]} == {tuple(CASE)}
    first, _, last = results
    (case,) = first["cases"]
    assert (first["id"], first["verdict"], case["samples"], case["relation"]) == (
        "C01",
        "holds",
        10_000,
        "equal to",
    )
    assert abs(case["estimate"] - case["exact"]) < 6 * case["standard_error"]
    assert (last["cases"][0]["claimed"], last["cases"][0]["estimate"], last["verdict"]) == (
        0.125,
        None,
        "empirical",
    )
    assert [p.name for p in path.parent.iterdir()] == ["verify.json"]


@pytest.mark.parametrize(
    ("encoding", "differs", "cross"), [("utf-8", "≠", "✗"), ("ascii", "!=", "x")]
)
def test_a_case_shows_what_the_paper_says_of_it(encoding, differs, cross, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    assert main(["verify", "C25", "C39", "-v"]) == 0
    sys.stdout.flush()
    said = " ".join(sys.stdout.buffer.getvalue().decode(encoding).split())
    for text in (
        f"E max of 9 rectified {differs} 0.39894",
        f"{cross} does not hold",
        "2 claims in",
        ": 1 holds, 1 does not hold as stated;",
    ):
        assert text in said
    assert "?" not in said


@pytest.mark.parametrize("name", ["/dev/null", "", "link"])
def test_json_does_not_replace_what_is_no_regular_file(name, tmp_path, capsys):
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(SystemExit) as caught:
        main(["verify", "C06", "--json", str(tmp_path / name)])
    assert caught.value.code == 2
    assert "not a regular file" in capsys.readouterr().err


FEW = ["C01", "C12", "C28", "C30", "C43", "C44", "N01", "N05"]  # with short and long lines
PAPER_AND_BATCHNORM = [claim.id for claim in claims() + claims("batchnorm")]


@pytest.fixture(
    scope="module",
    params=[FEW, pytest.param(PAPER_AND_BATCHNORM, marks=pytest.mark.slow)],
    ids=["few", "all"],
)
def results(request):
    return run(request.param, samples=1000)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_lines_fit_the_terminal(width, results):
    plain, painted, ascii = Report(width), Report(width, color=True), Report(width, ascii=True)
    shown = [
        plain.table(results),
        plain.summary(results, 12.3),
        *map(plain.explanation, results),
    ]
    shown.append(ascii.table(results))
    assert max(len(line) for text in shown for line in text.splitlines()) <= max(width, 60)
    assert "\x1b[32m✓ holds\x1b[0m" in painted.table(results)
    assert re.sub(r"\x1b\[[\d;]*m", "", painted.table(results)) == plain.table(results)
    assert shown[-1].isascii()
    assert all(case.what.split()[0] in shown[0] for result in results for case in result.cases)


def test_an_unexpected_verdict_is_exit_status_1(monkeypatch, capsys):
    def measure(mc):
        """So."""
        estimate = Estimate(0.39894, 2e-4, 10**6)
        yield Case("E max(0, X)", 0.39894, 0.45, estimate)
        return "because"

    monkeypatch.delitem(LEDGER, "C1")
    claim("C01", "3.2", "A claim.")(measure)
    monkeypatch.setitem(LEDGER, "C1", LEDGER["C1"])
    assert main(["verify", "C01", "C06"]) == 1
    said = capsys.readouterr().out
    assert "unsettled" in said
    assert "expected: holds" in said
    assert "not as expected: C01" in said


WRONG = (
    "C99,--samples 0,--samples 1.5,--samples many,--until 0,--until nan,--samples 10 --until "
    "1,--backend x,--seed x,--seed -1,--seed 1e3"
)
WRONG += ",--family x,N01 --family dyt,--json a.md --report ./a.md,--report a.md --report a.md"


@pytest.mark.parametrize("arguments", WRONG.split(","))
def test_bad_arguments_exit_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["verify", *arguments.split()])
    assert caught.value.code == 2
    assert "See tinyprop verify --help" in capsys.readouterr().err


def test_a_seed_keeps_all_its_digits(capsys):
    assert main(["verify", "C06", "--seed", "123456789012345678901234567891"]) == 0
    assert seed_number("123456789012345678901234567891") % 10 == 1


def test_a_family_and_the_source_of_a_claim(capsys):
    assert main(["verify", "--family", "batchnorm", "--samples", "1000"]) == 0
    said = capsys.readouterr().out
    assert re.findall(r"^[A-Z]\d+", said, re.M) == [f"N0{i}" for i in range(1, 9)]
    assert main(["verify", "N01", "--explain", "--samples", "1000"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Ioffe and Szegedy (2015), 3.3. W are the weights of a layer, u its input" in said
    assert "Section" not in said


@pytest.mark.slow
def test_explain_derives_and_draws(capsys, tmp_path):
    assert (
        main(
            [
                "verify",
                "C12",
                "C21",
                "G4",
                "--explain",
                "--figures",
                str(tmp_path),
                "--samples",
                "5000",
            ]
        )
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    said = " ".join(" ".join(lines).split())
    assert "Section 3.3, 4.3. gamma < 1 shrinks the pre-activations u" in said
    assert "mean^2 of units, layer 9" in said
    assert lines[-2:] == [
        f"Figure: {tmp_path / name}.png" for name in ("jacobian-spectrum", "beyond")
    ]
    names = ["beyond.json", "beyond.png", "jacobian-spectrum.json", "jacobian-spectrum.png"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    assert json.loads((tmp_path / "beyond.json").read_text())["seed"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_figures(name):
    drawing = FIGURES[name][0](Sampler(seed=1))
    json.dumps(drawing.data)
    words = drawing.described()
    assert all(name in words for name in drawing.data)
    assert drawing.right.get_title("left") in words
    figure = drawing.figure
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = canvas.buffer_rgba()
    assert (pixels.shape[0], pixels.shape[1]) > (300, 600)
    renderer = canvas.get_renderer()
    for axes in figure.axes:
        assert axes.lines or axes.patches
        assert axes.get_title(loc="left")
        for text in axes.texts:  # no label is cut off
            box = text.get_window_extent(renderer)
            assert box.x0 >= 0
            assert box.x1 <= figure.bbox.width
            assert box.y0 >= 0
            assert box.y1 <= figure.bbox.height


def test_color_is_for_terminals_that_want_it(monkeypatch):
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert has_color(terminal)
    assert not has_color(SimpleNamespace(isatty=lambda: False))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_color(terminal)
    monkeypatch.setenv("NO_COLOR", "")
    assert has_color(terminal)
    monkeypatch.setenv("TERM", "dumb")
    assert not has_color(terminal)


def test_results_are_tables_in_a_notebook():
    results = run(["C01", "C06"], samples=1000)
    page = results._repr_html_()
    assert page.count("<tr>") == 3
    one = results[0]._repr_html_()
    assert results[0].reason.replace("'", "&#x27;") in one
    assert one.count("<tr>") == 1 + len(results[0].cases)
