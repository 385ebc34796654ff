"""What the paper says outside its experiments: where gamma starts, optimisers, regularisation, activations."""

import math
import statistics
from collections.abc import Hashable, Mapping
from typing import Any

from .. import paper
from ..plots import COLOURS
from .drawing import label_ends, with_bars
from .evidence import ACCURACY, Comparison, Measure
from .experiment import CONTROLS, NORMPROP, Arm, Claim, Experiment, Finding, Pair, Settings
from .scales import Scale
from .section5 import rate

INVERSE, ONE = f"gamma = 1/{paper.JACOBIAN_FACTOR:g}", "gamma = 1"
GAMMA_RATES = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4)
STARTS: Mapping[str, Mapping[str, Any]] = {INVERSE: {}, ONE: {"gamma": 1.0}, "exact": {"mode": "exact"}}


class JacobianFactor(Experiment):
    name, section, title = "jacobian-factor", "4.3", "Where gamma starts"
    note = "Short runs at learning rates a factor of 2 apart. What each start does to gradients: `tinyprop verify`."

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        return {
            (start, lr): scale.setting(f"{start}, rate {lr:g}", 4, lr=lr, epochs=scale.rate_epochs, **change)
            for start, change in STARTS.items()
            for lr in scale.some(GAMMA_RATES)
        }

    def claims(self) -> list[Claim]:
        text, rates = f"At a rate at which both train, {INVERSE} is better.", self.scale.some(GAMMA_RATES)
        pairs = (Pair(f"1/1.21 minus 1, rate {lr:g}", (INVERSE, lr), (ONE, lr)) for lr in rates)
        return [Claim(text, "not in the paper", Comparison.better, tuple(pairs))]

    def rates_survived(self, start: str) -> dict[int, float]:
        """For each random seed, how many rates, from the smallest up, train without diverging."""
        arms = [self.arms[start, lr] for lr in self.scale.some(GAMMA_RATES)]
        trained = [{record.config.seed: not record.diverged for record in arm.records} for arm in arms]
        seeds = set.intersection(*map(set, trained))
        return {seed: next((i for i, fine in enumerate(trained) if not fine[seed]), len(arms)) for seed in seeds}

    def findings(self) -> list[Finding]:
        octaves = Measure("largest rate", " octaves", lambda record: math.nan, better=1, form=".1f")
        found = Comparison(octaves, self.rates_survived(INVERSE), self.rates_survived(ONE))
        claim = f"{INVERSE} trains at larger rates than {ONE} without diverging."
        return [Finding(claim, "no number", str(found), found.better()), *super().findings()]

    def left_panel(self, axes: Any) -> None:
        """Final accuracies by rate; a cross at the bottom where a run diverged."""
        ends = []
        for start, color in zip(STARTS, COLOURS, strict=False):
            arms = {lr: self.arms[start, lr] for lr in self.scale.some(GAMMA_RATES)}
            trained = {lr: arm.estimate(ACCURACY) for lr, arm in arms.items() if arm.survivors}
            with_bars(axes, list(trained), list(trained.values()), color)
            ends += [(lr, trained[lr].mean, start, color) for lr in list(trained)[-1:]]
            lost = [lr for lr, arm in arms.items() if arm.diverged]
            axes.plot(lost, [0.02] * len(lost), "x", color=color, transform=axes.get_xaxis_transform())
        axes.set(xscale="log", xlabel="learning rate (cross: a run diverged)", title="Test accuracy, %", ylim=(0, 100))
        axes.set_xticks(list(arms), [f"{lr:g}" for lr in arms])
        axes.set_xticks([], minor=True)
        label_ends(axes, ends)


RATES = {"RMSProp": (0.0001, 0.0003, 0.001, 0.003, 0.01), "SGD": (0.015, 0.05, 0.15, 0.5, 1.5)}
CHANGES: Mapping[str, Mapping[str, Any]] = {"RMSProp": {"optimizer": "rmsprop"}, "SGD": {"momentum": 0.0}}
MOMENTUM, ONE_MOMENTUM, ONE_SGD = "momentum 0.9", "momentum, one image", "SGD, one image"


class Optimizers(Experiment):
    name, section, title = "optimizers", "5.3, footnote", "SGD, momentum and RMSProp"
    note = (
        "The rates of SGD and RMSProp are those with the least validation loss among five, in short runs of two seeds. "
        "With single images SGD has ten times the rate of momentum, which makes steps of the same size."
    )

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        short = {"epochs": scale.rate_epochs, "validation": True}
        single = {"data_norm": "global", "batch_size": 1}
        found: Settings = {
            (name, lr): scale.setting(f"{name}, rate {lr:g}", 2, lr=lr, **short, **CHANGES[name])
            for name in RATES
            for lr in scale.some(RATES[name])
        }
        found[MOMENTUM] = scale.setting(MOMENTUM, CONTROLS)
        found[ONE_MOMENTUM] = scale.setting(ONE_MOMENTUM, 12, lr=rate(1), **single)
        found[ONE_SGD] = scale.setting(ONE_SGD, 6, lr=10 * rate(1), momentum=0.0, **single)
        return found

    @classmethod
    def later_settings(cls, scale: Scale, arms: Mapping[Hashable, Arm]) -> Settings:
        def badness(arm: Arm) -> tuple[int, float]:
            losses = [record.validation.loss for record in arm.survivors if record.validation]
            return arm.diverged, statistics.fmean(losses) if losses else math.inf

        best = {name: min(scale.some(rates), key=lambda lr: badness(arms[name, lr])) for name, rates in RATES.items()}
        return {n: scale.setting(f"{n}, rate {lr:g}", 12, lr=lr, **CHANGES[n]) for n, lr in best.items()}

    def shown(self) -> list[Arm]:
        return [self.arms[role] for role in (MOMENTUM, *RATES, ONE_MOMENTUM, ONE_SGD)]

    def claims(self) -> list[Claim]:
        single = Pair("SGD minus momentum, one image", ONE_SGD, ONE_MOMENTUM)
        found = [Claim("With batches of one image, SGD is like momentum.", "very similar", Comparison.alike, (single,))]
        for ours, theirs in ((MOMENTUM, "SGD"), ("RMSProp", "SGD"), (MOMENTUM, "RMSProp")):
            text, pair = (
                f"{ours} is better than {theirs}, with batches of 50.",
                Pair(f"{ours} minus {theirs}", ours, theirs),
            )
            found.insert(0, Claim(text, "in general, for most batch sizes", Comparison.better, (pair,)))
        return found


class Regularization(Experiment):
    name, section, title = "dropout", "4.4", "Dropout and weight decay"
    note = "Dropout is 0.2 after the two hidden pooling layers; weight decay is 0.001 or 0."

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        return {
            NORMPROP: scale.setting(NORMPROP, CONTROLS),
            "dropout": scale.setting("with dropout", 16, dropout=0.2),
            "no decay": scale.setting("without decay", 12, weight_decay=0.0),
        }

    def claims(self) -> list[Claim]:
        decays = " to ".join(f"{decay:g}" for decay in paper.WEIGHT_DECAYS)
        dropout = Pair("without minus with dropout", NORMPROP, "dropout")
        decay = Pair("with minus without decay", NORMPROP, "no decay")
        return [
            Claim("Dropout does not help NormProp.", "no number", Comparison.at_least_as_good, (dropout,)),
            Claim("A small weight decay is necessary.", decays, Comparison.better, (decay,)),
        ]


class Activations(Experiment):
    name, section, title = "activations", "4.6", "Other activations"
    note = "Each activation has its own constants, and the same learning rate."

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        planned = {"relu": CONTROLS, "prelu": 6, "tanh": 6, "elu": 6, "gelu": 6}
        return {name: scale.setting(name, seeds, activation=name) for name, seeds in planned.items()}

    def claims(self) -> list[Claim]:
        pairs = tuple(Pair(f"{name} minus relu", name, "relu") for name in list(self.arms)[1:])
        claim = "The other activations are at least as good as ReLU."
        return [Claim(claim, "not in the paper", Comparison.at_least_as_good, pairs)]

    def findings(self) -> list[Finding]:
        claim = "NormProp extends to other activations: all train, beyond chance."
        return [self.beyond_chance(claim, "no number", self.arms), *super().findings()]
