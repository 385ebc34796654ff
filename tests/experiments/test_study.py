"""Which runs come next, from made-up ledgers."""

import re
import zlib
from dataclasses import replace
from functools import cache

import pytest

from tinyprop.experiments import EXPERIMENTS, experiments_at
from tinyprop.experiments.evidence import REGISTERED
from tinyprop.experiments.experiment import decide
from tinyprop.experiments.ledger import Ledger, run_name
from tinyprop.experiments.scales import PAPER_RUN, SCALES
from tinyprop.experiments.study import Study, in_hours

from .runs import record

SHORT = SCALES["short"]
PLATEAU = SCALES["plateau"]


class InMemory(Ledger):
    """Runs of a function of their config; those for which it returns None are not finished."""

    def __init__(self, make):
        object.__setattr__(self, "make", cache(make))

    def find(self, config, log=print):
        return self.make(config)


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A study in which `finished` runs were computed."""
    monkeypatch.setattr("tinyprop.data.found", lambda name, root, download: name != "svhn")

    def make(finished, *names, scale=SHORT):
        chosen = [EXPERIMENTS[name] for name in names or experiments_at(scale)]
        ledger = InMemory(
            lambda config: record(config, **made_up(config)) if finished(config) else None
        )
        return Study(chosen, scale, ledger, tmp_path, log=lambda line: None)

    def made_up(config):
        """BatchNorm is much better; everything else is about alike, so that some claims stay
        open."""
        noise = zlib.crc32(run_name(config).encode()) % 7 - 3
        wide = 4.0 if config.dropout else 1.0
        return {
            "accuracy": 60.0 + 6.0 * (config.norm == "batch") + 0.5 * wide * noise,
            "loss": 1.0 + 0.01 * noise,
        }

    return make


def test_primary_claims_come_first_then_others_then_settings_without_claims(study):
    """All up to the first look; among settings without claims are those of the paper's scale, the
    most expensive."""
    order = study(lambda config: False).wanted()
    controls = {replace(SHORT.protocol, norm=norm) for norm in ("normprop", "batch")}
    first = {
        seed: [i for i, c in enumerate(order) if replace(c, seed=0) in controls and c.seed == seed]
        for seed in (1, 6)
    }
    assert max(first[1]) < min(first[6])
    half_width = [i for i, c in enumerate(order) if (c.width, c.train_size) == (0.5, None)]
    grid = [i for i, c in enumerate(order) if c.width == 0.125]
    primary = [i for i, c in enumerate(order) if c.flip and c.data == "cifar10" and c.width == 0.25]
    assert max(primary) < min(half_width)
    assert max(half_width) < min(grid)
    assert [replace(c, seed=0) for c in order if c.width == 1.0] == [
        PAPER_RUN,
        replace(PAPER_RUN, norm="batch"),
    ]
    assert not [c for c in order if c.data == "svhn"]


def test_rates_are_tried_before_they_are_used(study):
    def tried(config):
        return config.epochs == 1

    def plain(found):
        return [
            c for c in found.wanted() if c.momentum == 0.0 and c.batch_size == 50 and c.epochs > 1
        ]

    assert not plain(study(lambda config: False, "optimizers"))
    assert not plain(study(lambda config: tried(config) and config.lr != 1.5, "optimizers"))
    assert {c.seed for c in plain(study(tried, "optimizers"))} == set(range(1, 7)), (
        "up to the first look"
    )


def test_rates_are_as_urgent_as_the_claims_that_need_them(study):
    """SGD at its chosen rate is part of a primary claim, so its rates are no settings without a
    claim."""
    order = study(lambda config: False).wanted()
    rates = [
        i
        for i, c in enumerate(order)
        if (c.optimizer, c.momentum, c.epochs, c.batch_size) == ("sgd", 0.0, 1, 50)
    ]
    without_claim = [i for i, c in enumerate(order) if c.width == 0.125]
    assert len(rates) == 10
    assert max(rates) < min(without_claim)


def test_decided_claims_get_no_further_runs_and_undecided_ones_their_next_look(study):
    found = study(lambda config: config.seed <= 12)
    experiments = found.experiments()
    decide(experiments)
    claims = {f.claim.text: f for e in experiments for f in e.findings if f.primary}
    decided = [f for f in claims.values() if f.supported is not None]
    assert 0 < len(decided) < len(REGISTERED["primary"])
    order = found.wanted()
    assert {c.seed for c in order} <= set(range(13, 25))
    (flips,) = [f for f in decided if f.claim.text.endswith("with flips.")]
    assert flips.supported is False
    assert not [c for c in order if c.flip]
    open_ = [f for f in claims.values() if f.supported is None and f.next_look]
    assert {f.next_look for f in open_} <= {16, 24}
    widest = max((f for f in open_ if f.next_look == 16), key=lambda f: f.widest[1].width)
    assert widest.claim.text == "Dropout does not help NormProp."
    assert {(c.dropout, c.data_norm) for c in order[:8]} == {(0.0, "batch"), (0.2, "batch")}
    assert [c.seed for c in order[:8]] == [13, 13, 14, 14, 15, 15, 16, 16]


def test_all_finished_leaves_nothing(study):
    assert study(lambda config: True).wanted() == []


def test_what_was_begun_is_finished_first(study, tmp_path):
    found = study(lambda config: False, "convergence")
    last = found.wanted()[-1]
    (tmp_path / run_name(last)).mkdir()
    assert found.wanted()[0] == last


def test_runs_of_another_machine_are_seen(study):
    found = study(lambda config: False, "convergence")
    first = found.wanted()[0]
    found.ledger = InMemory(lambda config: record(config) if config == first else None)
    assert first not in found.wanted()


def test_at_most_so_many_seeds(study):
    found = study(lambda config: False)
    found.most = 2
    assert {c.seed for c in found.wanted()} == {1, 2}


# -- runs that are trained to the end


def test_the_controls_come_first_and_are_completed_even_if_they_are_decided(study):
    order = study(lambda config: False, scale=PLATEAU).wanted()
    first = [replace(c, seed=0) for c in order[:24]]
    assert {c.norm for c in first} == {"normprop", "batch"}
    assert len(set(first)) == 2
    assert sorted(c.seed for c in order[:24]) == sorted(list(range(1, 13)) * 2)
    assert {(c.flip, c.data) for c in order[24:72]} == {(True, "cifar10"), (False, "cifar100")}
    assert [c.width for c in order[72:75]] == [1.0, 1.0, 0.25], "then the paper's scale"


def test_rates_are_tried_with_two_seeds_before_the_rest_of_a_method(study):
    def is_tried(config):
        return config.seed <= 2

    tried = study(is_tried, "optimizers", scale=PLATEAU).wanted()
    assert {c.seed for c in tried} == set(range(3, 7)), "the chosen rates, up to the first look"
    assert len({(c.optimizer, c.momentum) for c in tried}) == 3


def test_the_plan_is_told_in_hours_and_by_names_that_a_person_can_read(study):
    found = study(lambda config: False, "convergence", scale=PLATEAU)
    plan = found.plan(jobs=2)
    hours = sum(found.seconds(found.wanted())) / 3600.0
    assert plan.startswith(f"24 runs to compute, 2 at a time, in about {in_hours(hours / 2)}:")
    assert re.search(r"convergence +24 runs", plan)
    assert found.name(found.wanted()[0]) == "convergence: NormProp, seed 1"


def test_measured_times_are_preferred_to_guesses(study):
    """500 images/s, as the made-up records have it, of 100 images in 32 epochs."""
    found = study(lambda config: config.seed == 1, "convergence", scale=PLATEAU)
    found.experiments()
    assert found.seconds(found.wanted()) == [pytest.approx(32 * 100 / 500)] * 22


def test_the_time_left_goes_by_what_this_command_measures(study):
    """A run here has 2,000 images/s where the others had 500: its setting takes what it took, and
    the other setting a quarter of what it took elsewhere."""
    found = study(lambda config: config.seed == 1, "convergence", scale=PLATEAU)
    found.experiments()
    first = found.wanted()[0]
    slow = record(first)
    fast = [{**row, "images_per_second": 2000.0} for row in slow.history]
    found.records[run_name(first)] = replace(slow, history=fast)
    found.computed.add(run_name(first))
    assert found.seconds(found.wanted()) == [pytest.approx(32 * 100 / 2000)] * 21
