"""`tinyprop verify`, as a user calls it."""

import json
import re

import pytest

from tinyprop.cli import main
from tinyprop.verify import claim as ledger
from tinyprop.verify.figures import PICTURES, draw_families
from tinyprop.verify.ledger import claims, run
from tinyprop.verify.monte_carlo import Sampler
from tinyprop.verify.table import Table, measured, number

FIELDS = "id statement section paper exact estimate standard_error samples verdict reason"


def test_a_table_a_summary_and_json(tmp_path, capsys):
    path = tmp_path / "new" / "verify.json"
    assert main(["verify", "C01", "C15", "C44", "--samples", "1e4", "--json", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for text in (
        "✓ holds",
        "✗ does not hold as stated",
        "… empirical",
        "0.398942",
        "every verdict is the expected one",
    ):
        assert text in said
    assert "\x1b" not in said
    results = json.loads(path.read_text())
    assert [list(r) for r in results] == [FIELDS.split()] * 3
    first, _, last = results
    assert (first["id"], first["verdict"], first["samples"]) == ("C01", "holds", 10_000)
    assert abs(first["estimate"] - first["exact"]) < 6 * first["standard_error"]
    assert (last["estimate"], last["verdict"]) == (None, "empirical")
    assert [p.name for p in path.parent.iterdir()] == ["verify.json"]


@pytest.fixture(scope="module")
def results():
    return run(samples=1000)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_lines_fit_the_terminal(width, results):
    pairs = list(zip(claims(), results, strict=True))
    plain, painted = Table(width), Table(width, colour=True)
    shown = [plain.whole(results), plain.summary(results, 12.3), *(plain.explanation(*pair) for pair in pairs)]
    assert max(len(line) for text in shown for line in text.splitlines()) <= max(width, 60)
    assert "\x1b[32m✓ holds\x1b[0m" in painted.whole(results)
    assert re.sub(r"\x1b\[[\d;]*m", "", painted.whole(results)) == plain.whole(results)


def test_an_unexpected_verdict_is_exit_status_1(monkeypatch, capsys):
    wrong = ledger.Case("E max(0, X)", 0.39894, 0.45, ledger.Estimate(0.39894, 1e-4, 10**6))
    broken = ledger.Claim("C01", "3.2", "A claim.", "moments", lambda mc: ledger.evidence("because", wrong))
    monkeypatch.setitem(ledger.LEDGER, "C01", broken)
    assert main(["verify", "C01", "C06"]) == 1
    said = capsys.readouterr().out
    assert "unsettled" in said
    assert "expected: holds" in said
    assert "not as expected: C01" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["C99"],
        ["--samples", "0"],
        ["--samples", "1.5"],
        ["--samples", "many"],
        ["--until", "0"],
        ["--until", "nan"],
        ["--samples", "10", "--until", "0.1"],
        ["--backend", "abacus"],
        ["--seed", "x"],
    ],
)
def test_bad_arguments_exit_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["verify", *arguments])
    assert caught.value.code == 2
    assert "usage: tinyprop verify" in capsys.readouterr().err


def test_until(capsys, tmp_path):
    path = tmp_path / "v.json"
    assert main(["verify", "C01", "--until", "2e-4", "--json", str(path)]) == 0
    assert json.loads(path.read_text())[0]["standard_error"] <= 2e-4


def test_explain_derives_and_draws(capsys, tmp_path):
    assert main(["verify", "C23", "--explain", "--figures", str(tmp_path), "--samples", "5000"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "its moments are an integral over M" in said
    assert "std after max-pooling, rho = 0.99" in said
    assert str(tmp_path / "pooling.png") in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["pooling.json", "pooling.png"]


@pytest.mark.slow
@pytest.mark.parametrize("name", PICTURES)
def test_pictures(name, tmp_path):
    _, measure, draw = PICTURES[name]
    data = measure(Sampler(seed=1))
    json.dumps(data)
    figure = draw(data)
    figure.canvas.draw()
    pixels = figure.canvas.buffer_rgba()
    assert (pixels.shape[0], pixels.shape[1]) > (300, 600)
    renderer = figure.canvas.get_renderer()
    for axes in figure.axes:
        assert axes.lines or axes.patches
        assert axes.get_title(loc="left")
        for text in axes.texts:  # no label is cut off
            box = text.get_window_extent(renderer)
            assert box.x0 >= 0
            assert box.x1 <= figure.bbox.width
            assert box.y0 >= 0
            assert box.y1 <= figure.bbox.height


def test_every_family_has_a_picture(tmp_path):
    assert {claim.family for claim in claims()} == {f for names, _, _ in PICTURES.values() for f in names.split()}
    assert [p.name for p in draw_families({"training"}, Sampler(), tmp_path)] == ["batch-normalisation.png"]
    assert json.loads((tmp_path / "batch-normalisation.json").read_text())["seed"] == 0


def test_numbers_are_shown_to_the_digits_they_have():
    assert [number(x) for x in (None, 0.0, 1e-15, 2 / 3, -1e-3, 2.1e8)] == [
        "-",
        "0",
        "0",
        "0.666667",
        "-0.001",
        "2.1e+08",
    ]
    assert measured(ledger.Estimate(0.39894, 1e-4, 10**6)) == "0.39894 ± 0.00026"
    assert measured(ledger.Estimate(31.4, 1.0, 10**6)) == "31.4 ± 2.6"
    assert measured(ledger.Estimate(4600.0, 300.0, 10**6)) == "4600 ± 773"
    assert measured(ledger.computed(0.5)) == "0.5"
