"""What is published follows from the committed ledger, and only tools/publish.py publishes it."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import figure_in_words
from tinyprop.experiments import experiments_at
from tinyprop.experiments.evidence import FINAL_MEAN
from tinyprop.experiments.experiment import Experiment
from tinyprop.experiments.ledger import Ledger
from tinyprop.experiments.scales import SCALES
from tinyprop.report.estimate import student_quantile
from tinyprop.report.plots import panels, save
from tinyprop.verify.depth_claims import trained_means

from .runs import study

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import front
import publish
import recompute

ROOT = Path(__file__).parents[2]
LEDGER = ROOT / publish.LEDGER


@pytest.mark.slow
@pytest.mark.skipif(not LEDGER.exists(), reason="the ledger is in the repository only")
def test_the_report_the_readme_and_c38_say_what_the_ledger_says():
    evidence = publish.finished_runs(ROOT)
    names = ("REPRODUCTION.md", "README.md", publish.SECOND_PAGE)
    report, readme, second = ((ROOT / name).read_text("utf-8") for name in names)
    assert front.page(evidence, publish.COMMAND) == report
    assert front.second_page(evidence, publish.COMMAND) == second
    assert publish.quoted(report, readme) == readme
    assert publish.quoted(report.replace("At the paper's", "At our"), readme) != readme
    (finding,) = [
        f for f in evidence.short["covariate-shift"].findings if f.claim.measures == (FINAL_MEAN,)
    ]
    ((comparison,),) = finding.comparisons.values()
    if not evidence.plateau["covariate-shift"].findings[0].runs:
        assert f"{finding.runs} pairs of runs of 5 epochs, NormProp minus BN is" in trained_means()
        assert comparison.number in trained_means()


@pytest.mark.slow
@pytest.mark.skipif(not LEDGER.exists(), reason="the ledger is in the repository only")
def test_the_figures_say_in_words_what_the_ledger_says():
    evidence = publish.finished_runs(ROOT)
    words = {
        "effects": front.describe_effects(evidence),
        "paper-scale": front.describe_paper_scale(evidence),
    }
    words |= {name: experiment.described() for name, experiment in evidence.short.items()}
    for name, experiment in evidence.plateau.items():
        if front.has_runs(experiment):
            words[f"plateau/{name}"] = experiment.described()
    written = {name: figure_in_words(ROOT / "figures" / f"{name}.png") for name in words}
    assert written == words
    assert "NormProp minus BatchNorm -6.6 ± 1.1 points" in words["convergence"]
    fewer = evidence.short["convergence"].first(3)
    assert fewer.described() != words["convergence"]


@pytest.mark.slow
@pytest.mark.skipif(not LEDGER.exists(), reason="the ledger is in the repository only")
def test_an_independent_computation_agrees_with_the_pages():
    """`tools/recompute.py` imports nothing of tinyprop; a page with one other digit is noticed."""
    command = [sys.executable, "-I", ROOT / "tools/recompute.py", "--check"]
    subprocess.run(command, check=True, capture_output=True)
    runs = recompute.read_ledger(LEDGER)
    findings = recompute.Plan("short", runs).findings()
    page = (ROOT / publish.SECOND_PAGE).read_text("utf-8")
    assert recompute.check(findings, page) == []
    other_digit = page.replace("-6.6 ± 1.1 points", "-6.6 ± 1.2 points")
    assert len(recompute.check(findings, other_digit)) == 1
    other_verdict = page.replace("| not supported |", "| supported |")
    assert len(recompute.check(findings, other_verdict)) == sum(
        finding.verdict == "not supported" for finding in findings
    )
    assert (ROOT / publish.TABLE).read_text("utf-8") == recompute.table(runs)


def test_recompute_imports_nothing_of_tinyprop():
    source = (ROOT / "tools/recompute.py").read_text("utf-8")
    imported = re.findall(r"^\s*(?:import|from) (\w+)", source, re.MULTILINE)
    assert set(imported) - set(sys.stdlib_module_names) == {"numpy"}


def noisy(tmp_path):
    """A ledger of made-up runs that are trained to the end, and what publishing makes of it."""

    def accuracy(setting, seed):
        rng = np.random.default_rng([seed, *setting.encode()])
        shift = 3.0 * ("BatchNorm" in setting) - 2.0 * (setting == "decay 0")
        return 60.0 + shift + rng.normal(0.0, 0.5)

    def loss(setting, seed):
        return 1.0 + 0.001 * (60.0 - accuracy(setting, seed)) * 10.0

    def climb(setting, seed):
        return 0.3 * ("CIFAR-100" in setting)

    ledger = Ledger(tmp_path / publish.LEDGER)
    for name in experiments_at(SCALES["plateau"]):
        found = study(name, "plateau", accuracy=accuracy, loss=loss, climb=climb)
        for arm in found.arms.values():
            for run in arm.records:
                if not ledger.find(run.config):
                    ledger.add(run)
    return publish.finished_runs(tmp_path)


@pytest.mark.slow
def test_verdicts_at_the_plateau_are_recomputed_to_the_digit(tmp_path):
    evidence = noisy(tmp_path)
    page = front.page(evidence, "")
    findings = recompute.Plan(
        "plateau", recompute.read_ledger(tmp_path / publish.LEDGER)
    ).findings()
    assert recompute.check(findings, page) == []
    verdicts = {finding.text: finding.verdict for finding in findings}
    ours = {finding.claim.text: finding.verdict for finding in evidence.findings()}
    assert verdicts == ours
    assert verdicts["NormProp ends at least as good as BN."] == "not supported"
    assert verdicts["NormProp is better than BN or competitive on CIFAR-100."] == (
        "not testable at this scale"
    )
    assert set(verdicts.values()) > {"supported", "not supported"}
    assert save(front.effects(evidence), tmp_path / "effects.png", "").stat().st_size > 10_000
    assert not re.search(r"\b(nan|inf)\b", page)


def test_a_run_that_is_changed_by_a_byte_is_refused_by_recompute(clone):
    path = next((clone / publish.LEDGER).iterdir())
    path.write_bytes(path.read_bytes().replace(b'"error": 0.4', b'"error": 0.3', 1))
    with pytest.raises(SystemExit, match="its digest is not that of its content"):
        recompute.read_ledger(clone / publish.LEDGER)


@pytest.mark.parametrize("freedom", [1, 2, 5, 11, 23])
def test_students_t_of_recompute_is_ours(freedom):
    for confidence in (0.95, 0.9999):
        ours = student_quantile(confidence, freedom)
        assert recompute.student(confidence, freedom) == pytest.approx(ours, rel=1e-8)


def test_c38_takes_its_number_from_the_ledger_and_needs_none(clone):
    folder = clone / publish.LEDGER
    assert trained_means(folder) == "tinyprop reproduce covariate-shift measures it"
    ledger = Ledger(folder)
    for arm in study("covariate-shift").arms.values():
        for run in arm.records[:3]:
            layers = [
                replace(x, size=[*x.size, 0.1 + 0.2 * (run.config.norm == "batch")])
                for x in run.layers
            ]
            ledger.add(replace(run, layers=layers))
    said = trained_means(folder)
    assert said.startswith("in 3 pairs of runs of 5 epochs, NormProp minus BN is -0.200")


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


def test_publishing_writes_the_figures_the_pages_and_what_the_readme_quotes(clone):
    ledger = {path: path.read_bytes() for path in (clone / publish.LEDGER).iterdir()}
    assert publish.missing_from_clone(clone) == []
    written = {path.relative_to(clone).as_posix() for path in publish.publish(clone)}
    names = ["effects", "paper-scale", *experiments_at(SCALES["short"])]
    figures = {f"figures/{name}.png" for name in names}
    pages = {"REPRODUCTION.md", "README.md", publish.SECOND_PAGE, publish.TABLE}
    assert written == figures | pages, "no figure of an experiment without runs"
    report = (clone / "REPRODUCTION.md").read_text("utf-8")
    first, mark, quoted, mark_again, last = (clone / "README.md").read_text("utf-8").splitlines()
    assert (first, mark, mark_again, last) == ("before", publish.MARK, publish.MARK, "after")
    assert quoted.startswith("Trained for 32 epochs on small images")
    assert quoted.count("no run yet") == 3, "small images, and both methods at the paper's scale"
    assert "In short runs (5 epochs, 1,000 steps), NormProp minus BatchNorm is " in quoted
    bold = re.findall(r"^\*\*(.*)\*\*$", report, re.MULTILINE)
    assert quoted == " ".join(bold)
    everything = {path for path in clone.rglob("*") if path.is_file()}
    assert everything == {clone / name for name in written} | ledger.keys()
    assert {path: path.read_bytes() for path in ledger} == ledger


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
    shutil.copytree(ROOT / "tools", tool.parent, ignore=shutil.ignore_patterns("__pycache__"))
    before = {path: path.read_bytes() for path in clone.rglob("*") if path.is_file()}
    done = subprocess.run([sys.executable, tool], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"got:  {clone}, without {lacks}\nrule: ")
    assert "Traceback" not in done.stderr
    assert {path: path.read_bytes() for path in clone.rglob("*") if path.is_file()} == before
