"""How the cost of a step grows: exponents, tables, a figure, and axes that are measured one by
one."""

import math
from pathlib import Path

import pytest

from benchmarks import figures, scaling
from benchmarks.__main__ import main
from benchmarks.measure import Results, Row
from benchmarks.scaling import Cost
from tests.helpers import figure_in_words

MACHINE = dict.fromkeys(["cpu", "cores", "blas", "system", "numpy", "python"], "X")


@pytest.mark.slow
def test_exponents_are_fitted_and_drawn(tmp_path):
    factors = dict(zip(scaling.PEERS, (1.0, 2.0), strict=True))
    points = {}
    for power, (axis, cases) in enumerate(scaling.axes(2).items()):
        points[axis] = {
            x: {
                peer: Cost(factor * x**power, int(1e6 * factor * x))
                for peer, factor in factors.items()
            }
            for x in cases
        }
    fits = scaling.fitted(points)
    depth = fits["depth", "tinyprop"].time
    assert (depth.slope, depth.error) == pytest.approx((2.0, 0.0), abs=1e-6)
    threads = fits["threads", "tinyprop"].time
    assert threads.slope == pytest.approx(3.0)
    assert math.isnan(threads.error), "two points have no error"
    rows = scaling.growth_table(fits).rows
    assert ["depth", "tinyprop", "2.00 ± 0.00", "1.00 ± 0.00"] in rows
    assert ["threads", "tinyprop", "3.00", "1.00"] in rows
    assert figures.scaling(points, fits, tmp_path / "scaling.png").stat().st_size > 10_000


def test_the_figure_shows_all_points(monkeypatch, tmp_path):
    """Panels in a row share their limits, and a later one has the largest values."""
    points = {}
    for largest, axis in enumerate(["batch size", "width", "depth"]):
        costs = {x: Cost(10.0**largest * x, int(1e6 * x)) for x in (1, 10)}
        points[axis] = {x: dict.fromkeys(scaling.PEERS, cost) for x, cost in costs.items()}
    monkeypatch.setattr(figures, "save", lambda figure, path, description: figure)
    figure = figures.scaling(points, scaling.fitted(points), tmp_path / "scaling.png")
    for panel in figure.axes:
        low, high = panel.get_ylim()
        for line in panel.get_lines():
            assert low < min(line.get_ydata())
            assert max(line.get_ydata()) < high


def test_the_figure_says_in_words_what_was_measured():
    data = Path(scaling.__file__).parent / "scaling.json"
    points = {axis: scaling.costs(some) for axis, some in scaling.read(data).items()}
    words = figures.described(points, scaling.fitted(points))
    assert figure_in_words(data.with_suffix(".png")) == words
    largest = points["batch size"][256.0]["tinyprop"]
    assert f"to {largest.seconds * 1e3:.3g} ms" in words


def test_the_error_of_an_exponent_is_that_of_least_squares():
    """By hand, for logarithms 0, 1, 2 and 0, 0, 3: slope 3/2, residuals 1/2, -1, 1/2."""
    fit = scaling.exponent([1.0, math.e, math.e**2], [1.0, 1.0, math.e**3])
    assert fit.slope == pytest.approx(1.5)
    assert fit.error == pytest.approx(math.sqrt(1.5 / 1 / 2))


@pytest.mark.slow
def test_an_axis_is_measured_again_and_the_others_stay(tmp_path, monkeypatch, capsys):
    seconds = iter([0.1, 0.2])

    def varied(axis, points, repeats):
        now = next(seconds)
        found = {}
        for x, point in points.items():
            times = {way.name: [now * x] for way in point.ways}
            row = Row(axis, 50, [0.0], times, times, dict.fromkeys(times, 10**6))
            found[x] = Results(MACHINE, {}, "abc", [], [row])
        return found

    monkeypatch.setattr(scaling, "varied", varied)
    for axis in ("width", "threads"):
        assert main(["scaling", "--axes", axis, "--threads", "2", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "SCALING.md").read_text()
    assert "| 0.5 | 50 | 1 | 50 | 1 | 1.00 |" in page
    assert "| 2 | 400 | 1 | 400 | 1 | 1.00 |" in page
    assert "by depth" not in page
    assert page.index("by width") < page.index("by threads")
