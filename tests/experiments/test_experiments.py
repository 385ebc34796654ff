"""Every experiment at every scale: settings, findings, figures and pages from made-up runs."""

import math
import re
from collections import Counter
from dataclasses import replace

import pytest

from tests.helpers import quick_only
from tinyprop.experiments import EXPERIMENTS
from tinyprop.experiments.evidence import ACCURACY, REGISTERED
from tinyprop.experiments.experiment import CHANCE, NORMPROP, decide
from tinyprop.experiments.report import page
from tinyprop.experiments.scales import SCALES
from tinyprop.report.plots import save

from .runs import record, study


def judged(found):
    decide([found])
    return found.findings


def verdicts(found):
    return Counter(finding.verdict for finding in judged(found))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_settings_of_an_experiment_differ_and_its_pairs_are_among_them(name, scale):
    found = study(name, scale)
    configs = [arm.config for arm in found.arms.values()]
    assert len(set(configs)) == len(configs)
    for claim in found.claims():
        for pair in claim.pairs.values():
            assert set(pair) <= found.arms.keys() | {CHANCE}


def test_planned_runs_are_those_of_the_preregistration():
    arms = {name: study(name, REGISTERED["scale"]).arms for name in EXPERIMENTS}
    planned = {
        name: {label: arm.planned for label, arm in some.items()} for name, some in arms.items()
    }
    assert planned == REGISTERED["planned"]


@pytest.mark.parametrize("primary", REGISTERED["primary"], ids=lambda primary: primary["claim"])
def test_primary_claims_are_reported_as_registered(primary):
    found = study(primary["experiment"])
    (finding,) = [finding for finding in found.unjudged() if finding.claim.text == primary["claim"]]
    assert finding.claim.holds.__name__.replace("_", " ") == primary["judged"]
    assert finding.primary


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("finished", quick_only(["all"], ["all", "diverged", "none"]))
def test_every_figure_and_paragraph_can_be_made_of_any_runs(name, finished, tmp_path):
    found = study(name, "tiny")
    if finished == "diverged":
        found = study(name, "tiny", lost=set(found.arms))
    if finished == "none":
        found.arms = {name: replace(arm, records=()) for name, arm in found.arms.items()}
    text = page([found], "tinyprop reproduce")
    assert save(found.figure(), tmp_path / "figure.png").stat().st_size > 10_000
    assert not re.search(r"\b(nan|inf)\b", text)
    if finished == "none":
        assert set(verdicts(found)) <= {"cannot tell"}


@pytest.mark.parametrize(
    ("name", "sign", "supported"),
    [
        *[
            (name, sign, sign > 0)
            for name in ("convergence", "dropout", "results")
            for sign in (1, -1)
        ],
        *[("data-normalization", sign, not sign) for sign in (1, 0, -1)],
    ],
)
def test_claims_are_supported_by_runs_that_show_them_and_only_by_these(name, sign, supported):
    """NormProp (or batch data normalisation) is better, alike, or worse, by 5 points and 0.2
    nats."""

    def mine(setting):
        return sign * setting.startswith("batch, ") or sign * setting.endswith(NORMPROP)

    found = study(
        name,
        accuracy=lambda setting, seed: 50.0 + 5.0 * mine(setting) + 0.3 * (seed % 3),
        loss=lambda setting, seed: 1.0 - 0.2 * mine(setting) + 0.001 * (seed % 3),
    )
    about = {f.supported for f in judged(found) if f.claim.measures[0].name.startswith("test")}
    assert about == {supported}


@pytest.mark.parametrize(("lost", "verdict"), [((), "supported"), (["tanh"], "not supported")])
def test_a_setting_that_always_diverges_does_not_train(lost, verdict):
    assert judged(study("activations", lost=lost))[0].verdict == verdict


def test_rates_are_chosen_by_validation_loss_among_those_that_never_diverge():
    def loss(setting, seed):
        return 1.0 + abs(float(setting.split()[-1]) - 0.001) if ", rate" in setting else 1.0

    found = study("optimizers", loss=loss, lost={("RMSProp, rate 0.001", 1)}).chosen()
    assert {name: config.lr for name, config in found.items()} == {
        "RMSProp, at its chosen rate": 0.0003,
        "SGD, at its chosen rate": 0.015,
    }


def test_the_largest_rate_is_the_last_before_a_run_diverges():
    found = study(
        "jacobian-factor",
        lost={"gamma = 1, rate 0.05", "gamma = 1, rate 0.1", "gamma = 1/1.21, rate 0.2"},
    )
    assert set(found.rates_survived("gamma = 1").values()) == {2}
    assert set(found.rates_survived("gamma = 1/1.21").values()) == {4}
    assert judged(found)[0].supported is None, "equal for all four seeds"


def test_the_page_counts_the_claims_and_names_what_normprop_loses():
    tiny = page([study("results", "tiny")], "")
    assert "Primary claims: 0 supported, 0 not supported, 0 undecided." in tiny
    assert "Nowhere so far." in tiny
    names, lost = ("convergence", "results"), " test accuracy: -5.0 points (one seed)"
    worse = [
        study(name, accuracy=lambda setting, seed: 60.0 - 5.0 * (NORMPROP in setting))
        for name in names
    ]
    both = page([found.first(1) for found in worse], "", "figures/")
    assert "![Test errors on the data sets](figures/results.png)" in both
    counts = re.search(
        r"Primary claims: (\d+) supported, (\d+) not supported, (\d+) undecided", both
    )
    assert sum(map(int, counts.groups())) == 4
    lines = [line for line in both.splitlines() if line.startswith("- ") and line.endswith(lost)]
    assert f"- Convergence of NormProp and BatchNorm, NormProp minus BatchNorm,{lost}" in lines
    assert len(lines) == len(set(lines)) == 6, "CIFAR-10 has the same runs as Convergence"


def test_a_page_of_some_runs_says_so():
    found = study(
        "convergence",
        accuracy=lambda setting, seed: 60.0 + (setting == NORMPROP) * 2.0 * (-1.0) ** seed,
    )
    found.arms = {name: arm.first(9) for name, arm in found.arms.items()}
    text = page([found], "")
    assert "18 of 48 planned runs" in text
    assert "| 9 of 24 |" in text
    assert (
        "planned: 0 because all claims about them are decided, 0 because there are no data "
        "(svhn), 2 because"
    ) in text
    (finding,) = [f for f in judged(found) if f.claim.text.startswith("NormProp ends")]
    assert [fraction for fraction, _ in finding.looks] == [6 / 24], (
        "what comes after a look waits for the next one"
    )
    assert finding.next_look == 12
    assert finding.supported is None
    assert f"; 9 seeds find {finding.widest[1].detectable(finding.level):.1f} points |" in text


@pytest.mark.parametrize(
    ("shift", "verdict"), [(0.0, "may be pooled"), (9.0, "should not be pooled")]
)
def test_runs_of_other_versions_are_pooled_if_they_are_alike(shift, verdict):
    def by_version(arm):
        newer = {"tinyprop": "0", "sources": "1a2b3c4d5e"}  # the same version by its name
        records = [
            replace(record(r.config, 60.0 + shift, 1.0 + 0.1 * shift), versions=newer)
            if r.config.seed % 2
            else r
            for r in arm.records
        ]
        return replace(arm, records=tuple(records))

    found = study(
        "convergence",
        accuracy=lambda setting, seed: 60.0 + 0.1 * (seed // 2 % 3),
        loss=lambda *_: 1.0,
    )
    assert page([found], "").count("all runs of each setting are of one version") == 2
    found.arms = {name: by_version(arm) for name, arm in found.arms.items()}
    assert page([found], "").count(f"they {verdict}") == 2


def test_predictions_continue_the_trend_over_scales():
    """A difference of 4 points that halves with each doubling of the width, whatever the number of
    images."""

    def accuracy(setting, seed):
        width = re.search(r"width ([\d.]+)", setting)
        steps = math.log2(float(width[1]) / 0.125) if width else 3.0
        return 60.0 - (4.0 - steps) * setting.startswith(NORMPROP)

    found = study("scale", accuracy=accuracy)
    anchor, whole = SCALES["laptop"].larger.values()
    assert found.prediction(anchor, ACCURACY).difference.mean == pytest.approx(-2.0)
    assert found.prediction(whole, ACCURACY).difference.mean == pytest.approx(-1.0)


def test_a_long_run_is_told_epoch_by_epoch():
    found = study("scale", accuracy=lambda setting, seed: 90.0)
    accuracies = found.arms["NormProp, the paper's scale"].records[0].accuracies()
    text, (best, epoch) = (
        page([found], ""),
        max((accuracy, i) for i, accuracy in enumerate(accuracies, 1)),
    )
    assert f"By epoch: {accuracies[0]:.2f} % (1), {accuracies[4]:.2f} % (5), " in text
    assert "% (30). Width 1, 100 training images" in text
    assert "(500 images/s; threads: 1), without evaluation" in text
    short = (
        f"At the paper's scale NormProp classifies {accuracies[-1]:.2f} % of the test images "
        "correctly after 30 epochs"
    )
    paper = "the paper's best is 90.35 %."
    # bold: the README quotes it
    assert f"**{short}, and {best:.2f} % at its best, after {epoch}; {paper}**" in text


def test_what_a_look_has_decided_stays_decided():
    """Batches of 1 are clearly better with six seeds, and clearly worse with the next six."""
    found = study(
        "batch-size",
        accuracy=lambda setting, seed: (
            60.0 + (setting == "batches of 1") * (8.0 if seed <= 6 else -20.0)
        ),
        loss=lambda setting, seed: 1.0 - (setting == "batches of 1") * (0.2 if seed <= 6 else -0.5),
    )
    assert {f.claim.text: f.supported for f in judged(found)}[
        "Smaller batches perform slightly better."
    ] is True


def test_a_primary_claim_needs_stronger_evidence(monkeypatch):
    """Roughness in 24 pairs that differs with a p-value of about 0.01."""

    def rough(setting, seed):
        return 10.0 - (setting == NORMPROP) * (0.27 + 0.5 * (-1.0) ** seed)

    found = study("convergence", rough=rough)
    assert judged(found)[1].supported is True
    claim = {"experiment": "convergence", "claim": found.claims()[1].text}
    monkeypatch.setitem(REGISTERED, "primary", [claim] * 12)
    assert judged(found)[1].supported is None


def test_a_setting_may_stop_when_it_is_decided():
    found = study(
        "dropout",
        accuracy=lambda setting, seed: 60.0 + 9.0 * (setting == NORMPROP),
        loss=lambda setting, seed: 1.0 - 0.3 * (setting == NORMPROP) + 0.001 * (seed % 3),
    ).first(12)
    assert [f.supported for f in judged(found)] == [True, True]
    text = page([found], "")
    assert (
        "2 because all claims about them are decided, 0 because there are no data (svhn), 0 because"
    ) in text
