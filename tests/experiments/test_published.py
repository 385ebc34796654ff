"""What is published follows from the committed ledger."""

from pathlib import Path

import pytest

from tinyprop.experiments import EXPERIMENTS
from tinyprop.experiments.ledger import Ledger
from tinyprop.experiments.report import page, quoted
from tinyprop.experiments.scales import SCALES
from tinyprop.experiments.study import Study
from tinyprop.verify.depth_claims import trained_means

ROOT = Path(__file__).parents[2]
LEDGER = ROOT / "figures/runs"


@pytest.mark.slow
@pytest.mark.skipif(not LEDGER.exists(), reason="the ledger is in the repository only")
def test_the_report_the_readme_and_c38_say_what_the_ledger_says(tmp_path):
    study = Study(
        list(EXPERIMENTS.values()), SCALES["laptop"], Ledger(LEDGER), tmp_path, say=pytest.fail
    )
    experiments = study.experiments()
    report, readme = ((ROOT / name).read_text("utf-8") for name in ("REPRODUCTION.md", "README.md"))
    assert page(experiments, "tinyprop reproduce --continue", "figures/") == report
    assert quoted(report, readme) == readme
    assert quoted(report.replace("So far", "As yet"), readme) != readme
    (finding,) = [f for e in experiments for f in e.findings if "closer to 0" in f.claim.text]
    assert f"has {finding.runs} of {finding.planned} seeds: " in trained_means()
    assert trained_means().endswith(f"; {finding.verdict}")


def test_c38_needs_no_report(monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda self: False)
    assert trained_means() == "tinyprop reproduce covariate-shift measures it"
