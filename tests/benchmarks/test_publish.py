"""What is told about speed is what was measured."""

import math
import re
from pathlib import Path

import pytest

from benchmarks import figures, report, scaling
from benchmarks.cases import plan
from benchmarks.measure import Measurement, Results, run
from benchmarks.peers import is_installed
from benchmarks.publish import write_results
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
    ("networks", "alone", "tinyprop", 0.3),
]


def test_what_is_slower_than_at_pytorchs_best_is_named():
    assert report.behind(results(*STEPS, *NETWORKS)) == ["the BatchNorm step (0.75)", "MLP (0.50)"]


def test_pages_and_readme_say_the_same(tmp_path):
    (tmp_path / "README.md").write_text(README.read_text())
    (tmp_path / "benchmarks").mkdir()
    small_ops = Table(["op", "ratio"], [["x + y", "1.23"]], "An op")
    measured = (
        results(*STEPS, *NETWORKS),
        results(*STEPS, threads=1),
        results(*STEPS, together=False, load_before=2.0),
    )
    for _ in range(2):  # it can be written again
        write_results(tmp_path, *measured, small_ops)
    readme, page = (
        (tmp_path / name).read_text() for name in ("README.md", "benchmarks/RESULTS.md")
    )
    row = "| PyTorch channels_last | 400 | 400-400 | 125 | 1 | 2.00 | 800 | 2.00 | 0.50 |"
    for words in (row, "the BatchNorm step (0.75); MLP (0.50)", "0.25"):
        assert words in readme.replace("\n", " ")
        assert words in page
    assert "load of the machine before: 2.00" not in page, "that is the load of our own first run"
    outside = re.compile(r"The time of a training step.*?(?=To train large)", re.S)
    assert outside.sub("", readme) == outside.sub("", README.read_text())


def test_a_readme_without_the_table_is_refused(tmp_path):
    (tmp_path / "README.md").write_text("no table")
    (tmp_path / "benchmarks").mkdir()
    with pytest.raises(ValueError, match="0 tables"):
        write_results(tmp_path, *[results(*STEPS)] * 3, Table(["op"], []))


def test_exponents_are_fitted_and_drawn(tmp_path):
    peers = dict(zip(scaling.PEERS, (1.0, 2.0), strict=True))
    found = {
        axis: {
            x: {
                p: Measurement("scaling", "", p, 50, [k * x**power], int(1e6 * k * x))
                for p, k in peers.items()
            }
            for x in cases
        }
        for power, (axis, cases) in enumerate(scaling.axes(2).items())
    }
    fits = scaling.fitted(found)
    assert fits["depth", "tinyprop"][0] == pytest.approx((2.0, 0.0), abs=1e-6)
    slope, error = fits["threads", "tinyprop"][0]
    assert slope == pytest.approx(3.0)
    assert math.isnan(error), "two points have no error"
    assert ["depth", "tinyprop", "2.00 ± 0.00", "1.00 ± 0.00"] in scaling.growth(fits).rows
    assert ["threads", "tinyprop", "3.00", "1.00"] in scaling.growth(fits).rows
    assert figures.scaling(found, fits, tmp_path / "scaling.png").stat().st_size > 10_000


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
