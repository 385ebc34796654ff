"""Every experiment at every scale: settings, findings, figures and pages from made-up runs."""

import re
from collections import Counter
from dataclasses import replace

import pytest

from tinyprop.experiments import EXPERIMENTS
from tinyprop.experiments.beyond import Optimizers
from tinyprop.experiments.evidence import ACCURACY
from tinyprop.experiments.report import page
from tinyprop.experiments.results import BATCHNORM, NORMPROP, Speed
from tinyprop.experiments.scales import SCALES

from .runs import arms

TRAINED = [experiment for experiment in EXPERIMENTS.values() if experiment is not Speed]
TIMES = {"where": "one thread", "width": 1.0, "machine": {"cpu": "a CPU"}}


def study(experiment, scale="laptop", **made_up):
    scale = SCALES[scale]
    return experiment(scale, arms(experiment, scale, **made_up))


def speed(ours, theirs):
    times = {NORMPROP: [ours + 0.1 * (i % 3) for i in range(15)], BATCHNORM: [theirs] * 15}
    return Speed(SCALES["tiny"], {}, TIMES | {"milliseconds": times})


def verdicts(found):
    return Counter(finding.verdict for finding in found.findings())


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("experiment", TRAINED)
def test_settings_of_an_experiment_differ_and_its_pairs_are_among_them(experiment, scale):
    found = study(experiment, scale)
    configs = [arm.setting.config for arm in found.arms.values()]
    assert len(set(configs)) == len(configs)
    labels = [arm.setting.label for arm in found.shown()]
    assert len(set(labels)) == len(labels)
    for claim in found.claims():
        for pair in claim.pairs:
            assert {pair.ours, pair.theirs} <= found.arms.keys()


def test_controls_are_shared():
    scale = SCALES["laptop"]
    controls = {setting.config for e in TRAINED for role, setting in e.settings(scale).items() if role == NORMPROP}
    assert controls == {scale.protocol}
    assert scale.protocol in {arm.setting.config for arm in study(EXPERIMENTS["data-normalization"]).arms.values()}


@pytest.mark.parametrize("experiment", TRAINED)
@pytest.mark.parametrize("runs", ["all", "diverged", "none"])
def test_every_figure_and_paragraph_can_be_made_of_any_runs(experiment, runs, tmp_path):
    from tinyprop.plots import save

    scale = SCALES["tiny"]
    made_up = arms(experiment, scale, lost=set(arms(experiment, scale)) if runs == "diverged" else ())
    if runs == "none":
        made_up = {role: replace(arm, records=()) for role, arm in made_up.items()}
    found = experiment(scale, made_up)
    text = page([found], "tinyprop reproduce")
    assert save(found.figure(), tmp_path / "figure.png").stat().st_size > 10_000
    assert not re.search(r"\b(nan|inf)\b", text)
    if runs == "none":
        assert set(verdicts(found)) == {"cannot tell"}


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("experiment", "claimed"), [("convergence", 1), ("dropout", 1), ("results", 1), ("data-normalization", 0)]
)
def test_claims_are_supported_by_runs_that_show_them_and_only_by_these(experiment, claimed, sign):
    """NormProp (or batch data normalisation) is better, or worse, by 5 points and 0.2 nats."""

    def mine(role):
        return bool({NORMPROP, "batch"} & set(role if isinstance(role, tuple) else [role]))

    found = study(
        EXPERIMENTS[experiment],
        accuracy=lambda role, seed: 50.0 + sign * 5.0 * mine(role) + 0.3 * (seed % 3),
        loss=lambda role, seed: 1.0 - sign * 0.2 * mine(role) + 0.001 * (seed % 3),
    )
    endpoints = {f.supported for f in found.findings() if "(test " in f.claim}
    assert endpoints == {claimed == sign}


def test_alike_runs_support_that_they_are_alike():
    found = study(EXPERIMENTS["data-normalization"], accuracy=lambda role, seed: 50.0 + 0.1 * seed)
    assert verdicts(found) == {"supported": 2}


def test_rates_are_chosen_by_validation_loss_among_those_that_never_diverge():
    scale = SCALES["laptop"]
    tried = Optimizers.settings(scale)
    names = {role[0] for role in tried if isinstance(role, tuple)}

    def loss(role, seed):
        return 1.0 + abs(role[1] - 0.001) if isinstance(role, tuple) else 1.0

    found = Optimizers.later_settings(scale, arms(Optimizers, scale, loss=loss, lost={(("RMSProp", 0.001), 1)}))
    assert found.keys() == names
    assert found["RMSProp"].config.lr == 0.0003
    assert found["SGD"].config.lr == 0.015


def test_the_largest_rate_is_the_last_before_a_run_diverges():
    lost = {("gamma = 1", 0.05), ("gamma = 1", 0.1), ("gamma = 1/1.21", 0.2)}
    found = study(EXPERIMENTS["jacobian-factor"], lost=lost)
    assert set(found.rates_survived("gamma = 1").values()) == {2}
    assert set(found.rates_survived("gamma = 1/1.21").values()) == {4}
    assert found.findings()[0].supported is True


@pytest.mark.parametrize(("ours", "theirs", "supported"), [(8.0, 10.0, True), (12.0, 10.0, False), (9.9, 10.0, None)])
def test_speed_is_judged_by_ratios_of_rounds(ours, theirs, supported, tmp_path):
    from tinyprop.plots import save

    found = speed(ours, theirs)
    assert found.findings()[0].supported is supported
    assert save(found.figure(), tmp_path / "speed.png").stat().st_size > 10_000
    assert "ms with NormProp" in found.paragraph()


def test_the_page_counts_the_claims_of_the_paper():
    found = study(EXPERIMENTS["results"], "tiny")
    assert "Of the paper's claims: 0 supported, 0 not supported, 0 cannot tell." in page([found], "")
    both = page([study(EXPERIMENTS["dropout"]), study(EXPERIMENTS["convergence"])], "", "figures/")
    assert "![Dropout and weight decay](figures/dropout.png)" in both
    assert sum(map(int, re.findall(r"(\d+) (?:not )?(?:supported|cannot tell)", both.splitlines()[-1]))) == 8
    assert ACCURACY.name in both
