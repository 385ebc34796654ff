"""What the paper says outside its experiments: where gamma starts, optimisers, regularisation, activations."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

from .. import paper
from ..estimate import Estimate
from ..train import Config
from .evidence import ACCURACY, Comparison, Measure, compared
from .experiment import CHANCE, NORMPROP, Arm, Claim, Experiment
from .figures import Curves
from .scales import Scale, Settings
from .section5 import rate

INVERSE, ONE = f"gamma = 1/{paper.JACOBIAN_FACTOR:g}", "gamma = 1"
STARTS: Mapping[str, Mapping[str, Any]] = {INVERSE: {}, ONE: {"gamma": 1.0}, "exact": {"mode": "exact"}}
GAMMA_RATES = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4)
LARGEST_RATE = Measure("largest rate", "octaves", lambda record: math.nan, better=1, form=".1f")  # of several runs


class JacobianFactor(Experiment):
    name, section, title = "jacobian-factor", "4.3", "Where gamma starts"
    note = "Short runs at learning rates a factor of 2 apart. What each start does to gradients: `tinyprop verify`."
    x = "learning rate (no point where a run diverged)"

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        return {
            f"{start}, rate {lr:g}": replace(scale.protocol, lr=lr, epochs=scale.rate_epochs, **change)
            for start, change in STARTS.items()
            for lr in GAMMA_RATES
        }

    def by_rate(self, start: str) -> dict[float, Arm]:
        return {lr: self.arms[f"{start}, rate {lr:g}"] for lr in GAMMA_RATES}

    def claims(self) -> list[Claim]:
        larger = f"{INVERSE} trains at larger rates than {ONE} without diverging."
        text = f"At a rate at which both train, {INVERSE} is better."
        pairs = {f"at rate {lr:g}": (f"{INVERSE}, rate {lr:g}", f"{ONE}, rate {lr:g}") for lr in GAMMA_RATES}
        return [
            Claim(larger, "no number", Comparison.better, pairs, (LARGEST_RATE,)),
            Claim(text, "not in the paper", Comparison.better, pairs),
        ]

    def rates_survived(self, start: str) -> dict[int, float]:
        """For each random seed, how many rates, from the smallest up, train without diverging."""
        trained = [{r.config.seed: not r.diverged for r in arm.records} for arm in self.by_rate(start).values()]
        seeds = set.intersection(*map(set, trained))
        return {seed: [*(fine[seed] for fine in trained), False].index(False) for seed in seeds}

    def compared(self, claim: Claim) -> dict[str, list[Comparison]]:
        if claim.measures != (LARGEST_RATE,):
            return super().compared(claim)
        found = compared(LARGEST_RATE, self.rates_survived(INVERSE), self.rates_survived(ONE))
        return {f"{INVERSE} minus {ONE}": [found]}

    def levels(self) -> dict[str, Curves]:
        def curve(start: str) -> dict[float, Estimate]:
            found = {lr: arm.estimate(ACCURACY) for lr, arm in self.by_rate(start).items() if not arm.diverged}
            return {lr: estimate for lr, estimate in found.items() if estimate.n}

        return {"Test accuracy, %": {start: curve(start) for start in STARTS}}


RATES = {"RMSProp": (0.0001, 0.0003, 0.001, 0.003, 0.01), "SGD": (0.015, 0.05, 0.15, 0.5, 1.5)}
CHANGES: Mapping[str, Mapping[str, Any]] = {"RMSProp": {"optimizer": "rmsprop"}, "SGD": {"momentum": 0.0}}
MOMENTUM, RMSPROP, PLAIN = "momentum 0.9", "RMSProp, at its chosen rate", "SGD, at its chosen rate"
ONE_MOMENTUM, ONE_PLAIN = "momentum, one image", "SGD, one image"


class Optimizers(Experiment):
    name, section, title = "optimizers", "5.3, footnote", "SGD, momentum and RMSProp"
    note = (
        "The rates of SGD and RMSProp are those with the least validation loss among five, in short runs of two seeds. "
        "With single images SGD has ten times the rate of momentum, which makes steps of the same size."
    )

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        short, single = (
            replace(scale.protocol, epochs=scale.rate_epochs, validation=True),
            replace(scale.protocol, data_norm="global", batch_size=1, lr=rate(1)),
        )
        tried = {f"{name}, rate {lr:g}": replace(short, lr=lr, **CHANGES[name]) for name in RATES for lr in RATES[name]}
        one_plain = replace(single, lr=10 * single.lr, momentum=0.0)
        return {**tried, MOMENTUM: scale.protocol, ONE_MOMENTUM: single, ONE_PLAIN: one_plain}

    @classmethod
    def later_settings(cls, scale: Scale, arms: Mapping[str, Arm]) -> Mapping[str, Config | None]:
        def best(name: str) -> Config | None:
            tried = {lr: arms[f"{name}, rate {lr:g}"] for lr in RATES[name]}

            def badness(lr: float) -> tuple[int, float]:
                losses = [record.validation.loss for record in tried[lr].survivors if record.validation]
                return tried[lr].diverged, statistics.fmean(losses) if losses else math.inf

            if any(len(arm.records) < arm.planned for arm in tried.values()):
                return None
            return replace(scale.protocol, lr=min(tried, key=badness), **CHANGES[name])

        return {f"{name}, at its chosen rate": best(name) for name in RATES}

    @classmethod
    def before(cls, name: str) -> list[str]:
        optimizer, _, chosen = name.partition(", at its ")
        return [f"{optimizer}, rate {lr:g}" for lr in RATES[optimizer]] if chosen else []

    def shown(self) -> dict[str, Arm]:
        return {name: self.arms[name] for name in (MOMENTUM, RMSPROP, PLAIN, ONE_MOMENTUM, ONE_PLAIN)}

    def claims(self) -> list[Claim]:
        names = {"Momentum": MOMENTUM, "RMSProp": RMSPROP, "SGD": PLAIN}
        text, single = "With batches of one image, SGD is like momentum.", (ONE_PLAIN, ONE_MOMENTUM)
        return [
            Claim(
                f"{ours} is better than {theirs}, with batches of 50.",
                "in general, for most batch sizes",
                Comparison.better,
                {f"{ours} minus {theirs}": (names[ours], names[theirs])},
            )
            for ours, theirs in combinations(names, 2)
        ] + [Claim(text, "very similar", Comparison.alike, {"SGD minus momentum, one image": single})]

    def remarks(self) -> str:
        configs = [self.arms[name].config for name in (RMSPROP, PLAIN)]
        rates = [f"{config.lr:g}" if config else "not chosen yet" for config in configs]
        return f"{self.note} The chosen rates: {rates[0]} for RMSProp, {rates[1]} for SGD."


class Regularization(Experiment):
    name, section, title = "dropout", "4.4", "Dropout and weight decay"
    note = "Dropout is 0.2 after the two hidden pooling layers; weight decay is 0.001 or 0."

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        return {
            NORMPROP: scale.protocol,
            "with dropout": replace(scale.protocol, dropout=0.2),
            "without decay": replace(scale.protocol, weight_decay=0.0),
        }

    def claims(self) -> list[Claim]:
        decays = " to ".join(f"{decay:g}" for decay in paper.WEIGHT_DECAYS)
        dropout = {"without minus with dropout": (NORMPROP, "with dropout")}
        decay = {"with minus without decay": (NORMPROP, "without decay")}
        return [
            Claim("Dropout does not help NormProp.", "no number", Comparison.at_least_as_good, dropout),
            Claim("A small weight decay is necessary.", decays, Comparison.better, decay),
        ]


class Activations(Experiment):
    name, section, title = "activations", "4.6", "Other activations"
    note = "Each activation has its own constants, and the same learning rate."

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        names = ("relu", "prelu", "tanh", "elu", "gelu")
        return {name: replace(scale.protocol, activation=name) for name in names}

    def claims(self) -> list[Claim]:
        extends = "NormProp extends to other activations: all train, beyond chance."
        as_good = "The other activations are at least as good as ReLU."
        others = [name for name in self.arms if name != "relu"]
        chance = {f"{name} minus chance": (name, CHANCE) for name in others}
        relu = {f"{name} minus relu": (name, "relu") for name in others}
        return [
            Claim(extends, "no number", Comparison.better, chance, (ACCURACY,)),
            Claim(as_good, "not in the paper", Comparison.at_least_as_good, relu),
        ]
