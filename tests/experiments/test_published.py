"""What is published follows from the committed ledger, and only tools/publish.py publishes it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tinyprop.experiments import EXPERIMENTS
from tinyprop.experiments.experiment import Experiment
from tinyprop.experiments.ledger import Ledger
from tinyprop.experiments.report import page
from tinyprop.report.plots import panels
from tinyprop.verify.depth_claims import trained_means

from .runs import study

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import publish

ROOT = Path(__file__).parents[2]
LEDGER = ROOT / publish.LEDGER


@pytest.mark.slow
@pytest.mark.skipif(not LEDGER.exists(), reason="the ledger is in the repository only")
def test_the_report_the_readme_and_c38_say_what_the_ledger_says():
    experiments = publish.finished_experiments(ROOT)
    report, readme = ((ROOT / name).read_text("utf-8") for name in ("REPRODUCTION.md", "README.md"))
    assert publish.published_page(experiments) == report
    assert publish.quoted(report, readme) == readme
    assert publish.quoted(report.replace("So far", "As yet"), readme) != readme
    (finding,) = [f for e in experiments for f in e.findings if "closer to 0" in f.claim.text]
    assert f"has {finding.runs} of {finding.planned} seeds: " in trained_means()
    assert trained_means().endswith(f"; {finding.verdict}")


def test_c38_needs_no_report(monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda self: False)
    assert trained_means() == "tinyprop reproduce covariate-shift measures it"


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """What publishing needs of a clone, with two runs in its ledger."""
    # figures are tested elsewhere
    monkeypatch.setattr(Experiment, "figure", lambda self: panels(1, 1.0, 1.0)[0])
    (tmp_path / ".git").mkdir()
    (tmp_path / "REPRODUCTION.md").write_text("old\n")
    (tmp_path / "README.md").write_text(
        f"before\n{publish.MARK}\nold\n{publish.MARK}\nafter\n", "utf-8"
    )
    ledger = Ledger(tmp_path / publish.LEDGER)
    for arm in study("convergence").arms.values():
        ledger.add(arm.records[0])
    return tmp_path


def test_publishing_writes_the_figures_the_page_and_what_the_readme_quotes(clone):
    ledger = {path: path.read_bytes() for path in (clone / publish.LEDGER).iterdir()}
    assert publish.missing_from_clone(clone) == []
    written = {path.relative_to(clone).as_posix() for path in publish.publish(clone)}
    figures = {f"figures/{name}.png" for name in EXPERIMENTS}
    assert written == figures | {"REPRODUCTION.md", "README.md"}
    report = (clone / "REPRODUCTION.md").read_text("utf-8")
    assert all(f"({figure})" in report for figure in figures)
    first, mark, quoted, mark_again, last = (clone / "README.md").read_text("utf-8").splitlines()
    assert (first, mark, mark_again, last) == ("before", publish.MARK, publish.MARK, "after")
    assert quoted.startswith("So far 2 of 464 planned runs are finished. Primary claims: ")
    assert "**" not in quoted
    everything = {path for path in clone.rglob("*") if path.is_file()}
    assert everything == {clone / name for name in written} | ledger.keys()
    assert {path: path.read_bytes() for path in ledger} == ledger


def test_the_readme_quotes_every_bold_sentence_of_the_report():
    found = page([study("scale", accuracy=lambda setting, seed: 90.0)], "")
    readme = publish.quoted(found, f"{publish.MARK}\nold\n{publish.MARK}\n")
    _, text, _ = readme.splitlines()
    starts = ["So far ", "At the paper's scale NormProp ", "At the paper's scale BatchNorm "]
    sentences = re.split(r"(?<=\.) (?=So far|At the paper's scale)", text)
    assert [s.startswith(start) for s, start in zip(sentences, starts, strict=True)] == [True] * 3
    assert all(f"**{sentence}**" in found for sentence in sentences)


def test_a_damaged_record_is_not_published(clone):
    damaged = next((clone / publish.LEDGER).iterdir())
    damaged.write_text("{")
    with pytest.raises(ValueError, match=f"{damaged.name} is damaged"):
        publish.publish(clone)
    assert (clone / "REPRODUCTION.md").read_text() == "old\n"


@pytest.mark.slow
@pytest.mark.parametrize("lacks", [".git", "REPRODUCTION.md", "figures/runs"])
def test_nothing_is_published_outside_of_a_clone(lacks, clone):
    path = clone / lacks
    path.unlink() if path.is_file() else shutil.rmtree(path)
    tool = clone / "tools/publish.py"
    tool.parent.mkdir()
    shutil.copy(ROOT / "tools/publish.py", tool)
    before = {path: path.read_bytes() for path in clone.rglob("*") if path.is_file()}
    done = subprocess.run([sys.executable, tool], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"got:  {clone}, without {lacks}\nrule: ")
    assert "Traceback" not in done.stderr
    assert {path: path.read_bytes() for path in clone.rglob("*") if path.is_file()} == before
