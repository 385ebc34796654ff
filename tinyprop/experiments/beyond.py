"""What the paper says outside its experiments: where gamma starts, optimisers, regularisation, activations."""

import math
import statistics
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

from .. import paper
from ..plots import COLOURS
from .drawing import label_ends, with_bars
from .evidence import ACCURACY, Comparison, Measure
from .experiment import CONTROLS, NORMPROP, Arm, Claim, Experiment, Finding, Pair, Setting, Settings
from .scales import Scale
from .section5 import rate

GAMMA_RATES = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4)
STARTS: Mapping[str, Mapping[str, Any]] = {
    "gamma = 1/1.21": {},
    "gamma = 1": {"gamma": 1.0},
    "exact": {"mode": "exact"},
}


class JacobianFactor(Experiment):
    name, section, title = "jacobian-factor", "4.3", "Where gamma starts"
    note = "Short runs at learning rates a factor of 2 apart. What each start does to gradients: `tinyprop verify`."

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        short = replace(scale.protocol, epochs=scale.rate_epochs)
        return {
            (start, lr): Setting(f"{start}, rate {lr:g}", replace(short, lr=lr, **change), scale.seeds(4))
            for start, change in STARTS.items()
            for lr in scale.some(GAMMA_RATES)
        }

    def claims(self) -> list[Claim]:
        text, rates = "At a rate at which both train, gamma = 1/1.21 is better.", self.scale.some(GAMMA_RATES)
        pairs = (Pair(f"1/1.21 minus 1, rate {lr:g}", ("gamma = 1/1.21", lr), ("gamma = 1", lr)) for lr in rates)
        return [Claim(text, "not in the paper", Comparison.better, tuple(pairs))]

    def rates_survived(self, start: str) -> dict[int, float]:
        """For each random seed, how many rates, from the smallest up, train without diverging."""
        arms = [self.arms[start, lr] for lr in self.scale.some(GAMMA_RATES)]
        diverged = [{record.config.seed for record in arm.records if record.diverged} for arm in arms]
        seeds = {record.config.seed for arm in arms for record in arm.records}
        return {seed: next((i for i, lost in enumerate(diverged) if seed in lost), len(arms)) for seed in seeds}

    def findings(self) -> list[Finding]:
        octaves = Measure("largest rate", " octaves", lambda record: math.nan, better=1, form=".1f")
        found = Comparison(octaves, self.rates_survived("gamma = 1/1.21"), self.rates_survived("gamma = 1"))
        claim = f"gamma = 1/{paper.JACOBIAN_FACTOR} trains at larger rates than gamma = 1 without diverging."
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
        short = replace(scale.protocol, epochs=scale.rate_epochs, validation=True)
        single = replace(scale.protocol, data_norm="global", batch_size=1, lr=rate(1))
        tried: Settings = {
            (name, lr): Setting(f"{name}, rate {lr:g}", replace(short, lr=lr, **CHANGES[name]), scale.seeds(2))
            for name in RATES
            for lr in scale.some(RATES[name])
        }
        return {
            **tried,
            MOMENTUM: Setting(MOMENTUM, scale.protocol, scale.seeds(CONTROLS)),
            ONE_MOMENTUM: Setting(ONE_MOMENTUM, single, scale.seeds(12)),
            ONE_SGD: Setting(ONE_SGD, replace(single, momentum=0.0, lr=10 * rate(1)), scale.seeds(6)),
        }

    @classmethod
    def later_settings(cls, scale: Scale, arms: Mapping[Hashable, Arm]) -> Settings:
        def badness(arm: Arm) -> tuple[int, float]:
            losses = [record.validation.loss for record in arm.survivors if record.validation]
            return arm.diverged, statistics.fmean(losses) if losses else math.inf

        best = {name: min(scale.some(rates), key=lambda lr: badness(arms[name, lr])) for name, rates in RATES.items()}
        configs = {name: replace(scale.protocol, lr=lr, **CHANGES[name]) for name, lr in best.items()}
        return {name: Setting(f"{name}, rate {best[name]:g}", c, scale.seeds(12)) for name, c in configs.items()}

    def shown(self) -> list[Arm]:
        return [self.arms[role] for role in (MOMENTUM, *RATES, ONE_MOMENTUM, ONE_SGD)]

    def claims(self) -> list[Claim]:
        order, better = "in general (for most mini-batch sizes)", Comparison.better
        single = Pair("SGD minus momentum, one image", ONE_SGD, ONE_MOMENTUM)
        return [
            Claim(
                f"{ours} is better than {theirs}, with batches of 50.",
                order,
                better,
                (Pair(f"{ours} minus {theirs}", ours, theirs),),
            )
            for ours, theirs in ((MOMENTUM, "RMSProp"), ("RMSProp", "SGD"), (MOMENTUM, "SGD"))
        ] + [Claim("With batches of one image, SGD is like momentum.", "very similar", Comparison.alike, (single,))]


class Regularization(Experiment):
    name, section, title = "dropout", "4.4", "Dropout and weight decay"
    note = "Dropout is 0.2 after the two hidden pooling layers; weight decay is 0.001 or 0."

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        base = scale.protocol
        return {
            NORMPROP: Setting(NORMPROP, base, scale.seeds(CONTROLS)),
            "dropout": Setting("with dropout", replace(base, dropout=0.2), scale.seeds(16)),
            "no decay": Setting("without decay", replace(base, weight_decay=0.0), scale.seeds(12)),
        }

    def claims(self) -> list[Claim]:
        dropout = Pair("without minus with dropout", NORMPROP, "dropout")
        decay = Pair("with minus without decay", NORMPROP, "no decay")
        return [
            Claim("Dropout does not help NormProp.", "no number", Comparison.at_least_as_good, (dropout,)),
            Claim("A small weight decay is necessary.", "0.0005 to 0.005", Comparison.better, (decay,)),
        ]


class Activations(Experiment):
    name, section, title = "activations", "4.6", "Other activations"
    note = "Each activation has its own constants, and the same learning rate."

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        planned = {"relu": CONTROLS, "prelu": 6, "tanh": 6, "elu": 6, "gelu": 6}
        configs = {name: replace(scale.protocol, activation=name) for name in planned}
        return {name: Setting(name, config, scale.seeds(planned[name])) for name, config in configs.items()}

    def claims(self) -> list[Claim]:
        pairs = tuple(Pair(f"{name} minus relu", name, "relu") for name in list(self.arms)[1:])
        return [
            Claim(
                "The other activations are at least as good as ReLU.",
                "not in the paper",
                Comparison.at_least_as_good,
                pairs,
            )
        ]

    def findings(self) -> list[Finding]:
        claim = "NormProp extends to other activations: all train, beyond chance."
        return [self.beyond_chance(claim, "no number", self.arms), *super().findings()]
