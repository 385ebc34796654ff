"""What is told about speed is what was measured."""

import math
import re
from pathlib import Path

import pytest

from benchmarks import figures, load, measure, overhead, profile, ranks, report, scaling
from benchmarks.__main__ import main
from benchmarks.cases import plan
from benchmarks.measure import Measurement, Results, run
from benchmarks.peers import is_installed
from benchmarks.publish import Comparisons, write_results
from tinyprop.report.table import Table

README = Path(__file__).resolve().parents[2] / "README.md"
MACHINE = dict.fromkeys(["cpu", "cores", "blas", "system", "numpy", "python"], "X")


def results(*rows, **options):
    """Rows are (section, case, peer, seconds)."""
    measured = [
        Measurement(section, case, peer, 50, [seconds], 10**6)
        for section, case, peer, seconds in rows
    ]
    options = {
        "repeats": 1,
        "threads": 2,
        "quick": False,
        "together": True,
        "load_before": 0.25,
    } | options
    return Results(MACHINE, options, {"torch": "2.0"}, [], measured)


STEPS = [
    ("step", norm, peer, seconds)
    for norm, times in {"NormProp": (0.2, 0.3, 0.4), "BatchNorm": (0.4, 0.3, 0.8)}.items()
    for peer, seconds in zip(("tinyprop", "torch", "torch-channels-last"), times, strict=True)
]
NETWORKS = [
    ("networks", "MLP", "tinyprop", 0.3),
    ("networks", "MLP", "torch", 0.4),
    ("networks", "MLP", "torch-channels-last", 0.15),
    ("networks", "VGG", "tinyprop", 0.3),
    ("networks", "VGG", "torch", 0.4),
    ("networks", "even", "tinyprop", 0.3),
    ("networks", "even", "torch", 0.3),
    ("networks", "alone", "tinyprop", 0.3),
]


def comparisons():
    return Comparisons(
        results(*STEPS, *NETWORKS),
        results(*STEPS, threads=1),
        results(*STEPS, together=False, load_before=2.0),
        Table(["op", "ratio"], [["x + y", "1.23"]], "An op"),
    )


@pytest.fixture
def clone(tmp_path):
    """The files of a clone that `publish` writes to."""
    (tmp_path / "README.md").write_text(README.read_text())
    (tmp_path / "benchmarks").mkdir()
    return tmp_path


def written(clone):
    """What `publish` wrote beside the README."""
    return sorted(path.name for path in (clone / "benchmarks").iterdir())


def test_what_is_slower_than_at_pytorchs_best_is_named():
    assert report.slower(results(*STEPS, *NETWORKS)) == ["the BatchNorm step (0.75)", "MLP (0.50)"]


def test_pages_and_readme_say_the_same(clone):
    for _ in range(2):  # it can be written again
        write_results(clone, comparisons(), load=0.125)
    readme = (clone / "README.md").read_text()
    page = (clone / "benchmarks/RESULTS.md").read_text()
    row = "| PyTorch channels_last | 400 | 400-400 | 125 | 1 | 2.00 | 800 | 2.00 | 0.50 |"
    for words in (row, "the BatchNorm step (0.75); MLP (0.50)", "0.12"):
        assert words in readme.replace("\n", " ")
        assert words in page
    assert "load of the machine before: 2.00" not in page, "that is the load of our own first run"
    outside = re.compile(r"The time of a training step.*?(?=To train large)", re.S)
    assert outside.sub("", readme) == outside.sub("", README.read_text())


def test_a_readme_without_the_table_is_refused(clone):
    (clone / "README.md").write_text("no table")
    with pytest.raises(ValueError, match="0 tables"):
        write_results(clone, comparisons(), load=None)
    assert written(clone) == []


def made_up(cases, peers, repeats, threads, quick=False, together=False):
    rows = [(case.section, case.name, peer, 0.1) for case in cases for peer in peers]
    return results(*rows, repeats=repeats, threads=threads, together=together, load_before=3.0)


@pytest.fixture
def quick_publish(monkeypatch):
    """Measuring takes no time, and a machine has the load that a test gives it."""
    monkeypatch.setattr(measure, "run", made_up)
    monkeypatch.setattr(profile, "measured", lambda: {"Convolve": 9.0, profile.REST: 1.0})
    monkeypatch.setattr(overhead, "table", lambda repeats: Table(["op"], [["x + y"]], "An op"))
    times = {"one thread": [0.1], "two threads": [0.1], "two ranks": [0.1]}
    found = {"steps": {"1.0": times}, "sums": {"1000": [0.1]}, "machine": "X"}
    monkeypatch.setattr(ranks, "measured", lambda repeats: found)
    monkeypatch.setattr(ranks, "mpiexec", lambda: Path(__file__))

    def publish(clone, load):
        monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0), raising=False)
        return main(["publish", "--into", str(clone)])

    return publish


@pytest.mark.slow
def test_an_idle_machine_publishes_every_page(clone, quick_publish, capsys):
    assert quick_publish(clone, load=0.2) == 0
    pages = ["PROFILE.md", "RANKS.md", "RESULTS.md", "SCALING.md"]
    assert written(clone) == sorted([*pages, "RANKS.json", "scaling.json", "scaling.png"])
    for page in pages:
        text = (clone / "benchmarks" / page).read_text()
        assert re.findall(r"load of the machine before: (\d+\.\d+)", text) == ["0.20"]
        assert "publish" in text or page == "SCALING.md"
    assert "load before 0.20" in (clone / "README.md").read_text()


def test_a_busy_machine_publishes_nothing(clone, quick_publish, capsys):
    before = (clone / "README.md").read_text()
    assert quick_publish(clone, load=0.21) == 1
    said = capsys.readouterr()
    assert said.err == (
        "benchmarks: nothing was published, because the load average is 0.21, above 0.2; wait "
        "until the machine is idle\n"
    )
    assert said.out == ""
    assert written(clone) == []
    assert (clone / "README.md").read_text() == before


def test_where_the_system_tells_no_load_it_is_not_told(monkeypatch):
    monkeypatch.delattr("os.getloadavg", raising=False)
    assert load.load_average() is None
    load.require_idle(None)
    assert load.load_words(None) == ""


@pytest.mark.slow
def test_exponents_are_fitted_and_drawn(tmp_path):
    def measured(peer, factor, x, power):
        return Measurement("scaling", "", peer, 50, [factor * x**power], int(1e6 * factor * x))

    factors = dict(zip(scaling.PEERS, (1.0, 2.0), strict=True))
    points = {}
    for power, (axis, cases) in enumerate(scaling.axes(2).items()):
        points[axis] = {
            x: {peer: measured(peer, factor, x, power) for peer, factor in factors.items()}
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


def test_the_error_of_an_exponent_is_that_of_least_squares():
    """By hand, for logarithms 0, 1, 2 and 0, 0, 3: slope 3/2, residuals 1/2, -1, 1/2."""
    fit = scaling.exponent([1.0, math.e, math.e**2], [1.0, 1.0, math.e**3])
    assert fit.slope == pytest.approx(1.5)
    assert fit.error == pytest.approx(math.sqrt(1.5 / 1 / 2))


@pytest.mark.slow
def test_peers_may_share_a_process():
    from dataclasses import replace

    if not is_installed("torch"):
        pytest.skip("there is no peer to share it with")
    case = replace(plan(["inference"])[0], batch=2, width=0.05)
    found = run([case], ["tinyprop", "torch"], repeats=1, together=True)
    assert [(m.peer, m.peak_memory, len(m.seconds)) for m in found.measurements] == [
        ("tinyprop", None, 1),
        ("torch", None, 1),
    ]
    assert "all in one process" in report.about(found)[2]
