"""Every experiment at every scale: settings, findings, figures and pages from made-up runs."""

import math
import re
from collections import Counter
from dataclasses import replace

import pytest

from tests.helpers import figure_in_words, quick_only
from tinyprop.experiments import experiments_at, registration
from tinyprop.experiments.evidence import ACCURACY, MOVEMENT, REGISTERED, window_means
from tinyprop.experiments.experiment import CHANCE, NORMPROP, decide
from tinyprop.experiments.report import page
from tinyprop.experiments.scales import PAPER_RUN, SCALES
from tinyprop.nn import NIN
from tinyprop.report.plots import save

from .runs import record, study

SHORT = SCALES["short"]
PLATEAU = SCALES["plateau"]


def judged(found):
    decide([found])
    return found.findings


def verdicts(found):
    return Counter(finding.verdict for finding in judged(found))


@pytest.mark.parametrize(
    ("name", "scale"), [(name, scale) for scale in SCALES for name in experiments_at(SCALES[scale])]
)
def test_settings_of_an_experiment_differ_and_its_pairs_are_among_them(name, scale):
    found = study(name, scale)
    configs = list(found.settings().values())
    assert len(set(configs)) == len(configs)
    for claim in found.claims():
        for pair in claim.pairs.values():
            assert set(pair) <= found.arms.keys() | {CHANCE}


def test_planned_runs_are_those_of_the_preregistration():
    arms = {name: study(name, REGISTERED["scale"]).arms for name in experiments_at(SHORT)}
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


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        *[(name, "tiny") for name in experiments_at(SCALES["tiny"])],
        *[(name, "plateau") for name in experiments_at(SCALES["plateau"])],
    ],
)
@pytest.mark.parametrize("finished", quick_only(["all"], ["all", "diverged", "none"]))
def test_every_figure_and_paragraph_can_be_made_of_any_runs(name, scale, finished, tmp_path):
    found = study(name, scale)
    if finished == "diverged":
        found = study(name, scale, lost=set(found.arms))
    if finished == "none":
        found.arms = {name: replace(arm, records=()) for name, arm in found.arms.items()}
    text = page([found], "tinyprop reproduce")
    path = save(found.figure(), tmp_path / "figure.png", found.described())
    assert path.stat().st_size > 10_000
    words = figure_in_words(path)
    drawn = [c for panel in found.differences() for c in panel.values() if c.difference.n]
    assert all(comparison.number in words for comparison in drawn)
    assert not re.search(r"\b(nan|inf)\b", text + words)
    if finished == "none":
        assert set(verdicts(found)) <= {"undecided"}


def test_a_caption_counts_the_runs_that_have_no_curve():
    assert "diverged" not in study("convergence", "tiny").caption()
    found = study("convergence", "tiny", lost={NORMPROP})
    runs = len(found.arms[NORMPROP].records)
    assert f"{runs} runs diverged, without a curve" in found.caption()


@pytest.mark.parametrize("name", ["convergence", "results", "jacobian-factor"])
def test_a_caption_speaks_of_curves_where_there_are_some(name):
    found = study(name, "tiny")
    assert ("Curves by epoch: " in found.caption()) == (name == "convergence")
    assert ("Accuracies: test images" in found.caption()) == (name != "convergence")


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
    anchor, whole = SHORT.larger.values()
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


# -- trained to the end


def end_of_training(found):
    return {f.claim.text: f for f in judged(found)}["NormProp ends at least as good as BN."]


def test_a_claim_about_the_end_is_judged_where_the_control_is_on_its_plateau():
    """NormProp is 3 points better. By the gate of plateau.toml, a control that still climbs by 0.3
    points an epoch, 1.5 in five, leaves the claim open, whatever its interval says."""

    def accuracy(setting, seed):
        return 60.0 + (3.0 + 0.2 * (seed % 3)) * (setting == NORMPROP)

    def loss(setting, seed):
        return 1.0 - 0.1 * (setting == NORMPROP) + 0.001 * (seed % 3)

    flat = study("convergence", "plateau", accuracy=accuracy, loss=loss)
    assert end_of_training(flat).verdict == "supported"
    climbing = study(
        "convergence", "plateau", accuracy=accuracy, loss=loss, climb=lambda setting, seed: 0.3
    )
    finding = end_of_training(climbing)
    assert finding.verdict == "not testable at this scale"
    assert finding.supported is None
    (gate,) = finding.gates.values()
    assert gate.drift.mean == pytest.approx(1.5, abs=0.1)
    text = page([climbing], "")
    assert "1 not testable at this scale" in text
    assert "control +1.5 ± " in text


def test_a_difference_that_still_changes_is_not_testable():
    """BatchNorm, the control, stays; NormProp climbs by half a point an epoch."""
    found = study("convergence", "plateau", climb=lambda setting, seed: 0.5 * (setting == NORMPROP))
    (gate,) = end_of_training(found).gates.values()
    assert abs(gate.drift.mean) < 1.0
    assert gate.late.mean - gate.early.mean == pytest.approx(2.5, abs=0.1)
    assert gate.is_open is False


def test_claims_about_the_beginning_and_short_runs_have_no_gate():
    by_text = {f.claim.text: f for f in judged(study("convergence", "plateau"))}
    assert [bool(finding.gates) for finding in by_text.values()] == [True, False]
    assert not any(finding.gates for finding in judged(study("convergence")))


def test_annealed_epochs_do_not_count_for_the_gate():
    config = replace(PLATEAU.protocol, seed=1)
    run = record(config)
    annealed = [dict(row, validation_error=0.0) for row in run.history[-2:]]
    assert window_means(replace(run, history=[*run.history[:-2], *annealed]), 6) == window_means(
        run, 6
    )


def test_the_plan_is_one_file_whose_digest_changes_with_every_byte(monkeypatch):
    plan = PLATEAU.registration
    assert len(plan.digest) == 64
    text = registration.text("plateau.toml")
    monkeypatch.setattr(
        registration, "text", lambda name: text.replace("points = 1.0", "points = 2.0")
    )
    assert registration.Registration(("plateau.toml",)).digest != plan.digest


def test_both_plans_have_one_rule():
    """What the code takes from the first holds for the second."""
    ours, theirs = SHORT.registration.facts, PLATEAU.registration.facts
    assert ours["endpoints"] == theirs["endpoints"]
    assert ours["rule"]["confidence"] == theirs["rule"]["confidence"]
    assert ours["rule"]["looks"][: len(theirs["rule"]["looks"])] == theirs["rule"]["looks"]
    assert PLATEAU.most_seeds == theirs["rule"]["looks"][-1]


def test_every_setting_of_the_plateau_has_its_seeds_and_belongs_to_the_plan():
    for name, facts in PLATEAU.registration.experiments.items():
        settings = facts["settings"].keys() | facts.get("chosen", {}).keys()
        assert facts["seeds"].keys() == settings, name
    measures = PLATEAU.registration.facts["measures"]
    used = {
        measure.name
        for name in experiments_at(PLATEAU)
        for claim in study(name, "plateau").claims()
        for measure in claim.measures
    }
    assert used <= measures.keys()


def test_the_protocol_is_the_papers_network_for_small_images():
    assert PLATEAU.protocol.spec == NIN.replace("C(192,5,1,0)", "C(192,3,1,0)").replace(
        "C(192,1,1,2)", "C(192,1,1,1)"
    ).replace("P(8,8", "P(4,4")
    paper_scale = study("paper-scale", "plateau").arms[NORMPROP].config
    assert replace(paper_scale, average=None, anneal=None, epochs=30) == PAPER_RUN


def test_a_chosen_rate_is_that_of_the_first_two_seeds():
    def loss(setting, seed):
        is_best = setting.endswith("0.1") if seed <= 2 else setting.endswith("0.2")
        return 1.0 - 0.2 * is_best

    chosen = study("measured-moments", "plateau", loss=loss).chosen()
    assert chosen["measured, at its chosen rate"].lr == 0.1
    assert chosen["measured, at its chosen rate"].norm == "normprop-measured"


def test_a_curve_at_the_chosen_rate_stands_for_those_that_were_tried():
    (short,) = study("optimizers").levels().values()
    assert "momentum 0.9" in short, "the other methods are compared with it"
    assert not [name for name in short if ", rate" in name]
    (plateau,) = study("measured-moments", "plateau").levels().values()
    assert list(plateau) == [
        f"{name}, at its chosen rate" for name in (NORMPROP, "BatchNorm", "measured")
    ]


def test_a_run_at_chance_with_a_large_loss_has_diverged():
    config = SHORT.protocol
    assert record(config, 10.4, 9.0).has_diverged
    assert not record(config, 12.0, 9.0).has_diverged, "it has learnt something"
    assert not record(config, 10.4, 2.30).has_diverged, "it does not know, and says so"
    hundred = replace(config, data="cifar100")
    assert record(hundred, 1.5, 9.0).has_diverged
    assert not record(hundred, 10.4, 9.0).has_diverged


def test_movement_is_in_the_units_of_batchnorm():
    """The features of NormProp are divided by c1, the standard deviation of ReLU(Z)."""
    ours, theirs = (
        MOVEMENT.of(record(replace(SHORT.protocol, norm=n))) for n in ("normprop", "batch")
    )
    assert ours / theirs == pytest.approx(math.sqrt(0.5 - 0.5 / math.pi))


def test_a_correction_follows_the_words_of_its_experiment():
    """Every entry is about an experiment of a plan, and none is left unprinted."""
    plans = {scale.registration.names[0]: scale for scale in (SHORT, PLATEAU)}
    for plan, corrections in registration.table("corrections.toml").items():
        scale = plans[f"{plan}.toml"]
        for name, correction in corrections.items():
            found = experiments_at(scale)[name](scale)
            remarks = study(name, scale.name).remarks()
            assert correction["what"] in remarks
            assert remarks.index(found.facts["note"]) < remarks.index(correction["what"])


def test_a_chosen_rate_says_whether_it_is_at_an_end_of_those_that_were_tried():
    found = study("optimizers", "plateau")
    name = "momentum, at its chosen rate"
    middle = found.arms["momentum, rate 0.05"].config
    for lr, end in (
        (0.025, "(the smallest that was tried)"),
        (0.05, ""),
        (0.1, "(the largest that was tried)"),
    ):
        found.arms[name] = replace(found.arms[name], config=replace(middle, lr=lr))
        assert found.chosen_rate(name) == f"{lr} for momentum {end}".rstrip()
