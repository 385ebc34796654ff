"""The experiments by name: most are rows of experiments.toml alone, and some need more."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ..report.estimate import Estimate
from ..train import Config
from ..verify import paper
from . import evidence
from .evidence import ACCURACY, ENDPOINTS, HIDDEN, LARGEST_RATE, Comparison, Measure, averaged
from .experiment import BATCHNORM, NORMPROP, TABLE, Arm, Claim, Experiment
from .figures import Curves
from .record import Record
from .scales import IMAGES, PAPER_RUN, Settings

NORMS = {NORMPROP: "normprop", BATCHNORM: "batch"}  # as a Config says it


class CovariateShift(Experiment):
    """Layer by layer."""

    reported = (*ENDPOINTS, evidence.FINAL_MEAN, evidence.BUT_ONE)

    def levels(self) -> dict[str, Curves]:
        def curves(i: int) -> Curves:
            return {
                name: arm.curve(lambda record: record.layers[i - 1].size, 0)
                for name, arm in self.arms.items()
            }

        return {f"Mean input of layer {i}": curves(i) for i in HIDDEN}

    def differences(self) -> list[dict[str, Comparison]]:
        return [
            {
                f"layer {i}": self.compare(NORMPROP, BATCHNORM, averaged(name, of, [i]))
                for i in HIDDEN
            }
            for name, of in (
                ("final mean input", evidence.final_mean),
                ("movement", evidence.movement),
            )
        ]


class Results(Experiment):
    """The rows of the scale, with both normalisers."""

    x = "Test accuracy, %"

    def settings(self) -> Settings:
        rows = self.scale.rows.items()
        return {
            f"{row}, {name}": replace(config, norm=norm)
            for row, config in rows
            for name, norm in NORMS.items()
        }

    def claims(self) -> list[Claim]:
        found = []
        for row in self.scale.rows:
            printed = paper.TEST_ERRORS.get(row)
            errors = (
                f"errors of {printed.normprop} and {printed.batch_norm} %"
                if printed
                else "not in the paper"
            )
            text = f"NormProp is better than BN or competitive on {row}."
            pairs = {row: (f"{row}, {NORMPROP}", f"{row}, {BATCHNORM}")}
            found.append(Claim(text, errors, Comparison.at_least_as_good, pairs))
        return found

    def levels(self) -> dict[str, Curves]:
        rows = self.scale.rows
        return {
            "Test accuracy": {
                n: {row: self.arms[f"{row}, {n}"].estimate(ACCURACY) for row in rows} for n in NORMS
            }
        }


class JacobianFactor(Experiment):
    """By learning rate."""

    x = "learning rate (no point where a run diverged)"

    def by_rate(self) -> dict[str, dict[float, Arm]]:
        """The settings of each start."""
        found: dict[str, dict[float, Arm]] = {}
        for name, arm in self.arms.items():
            start, _, rate = name.partition(", rate ")
            found.setdefault(start, {})[float(rate)] = arm
        return found

    def rates_survived(self, start: str) -> dict[int, float]:
        """For each random seed, how many rates, from the smallest up, train without diverging."""
        trained = [
            {r.config.seed: not r.diverged for r in arm.records}
            for arm in self.by_rate()[start].values()
        ]
        seeds = set.intersection(*map(set, trained))
        return {seed: [*(fine[seed] for fine in trained), False].index(False) for seed in seeds}

    def compared(self, claim: Claim) -> dict[str, list[Comparison]]:
        if claim.measures != (LARGEST_RATE,):
            return super().compared(claim)
        ours, theirs = list(self.by_rate())[:2]
        found = evidence.compared(
            LARGEST_RATE, self.rates_survived(ours), self.rates_survived(theirs)
        )
        return {f"{ours} minus {theirs}": [found]}

    def levels(self) -> dict[str, Curves]:
        def curve(arms: dict[float, Arm]) -> dict[float, Estimate]:
            return {lr: arm.estimate(ACCURACY) for lr, arm in arms.items() if not arm.diverged}

        return {"Test accuracy, %": {start: curve(arms) for start, arms in self.by_rate().items()}}


# widths and images of the protocol
GRID = ((0.5, 0.5), (0.5, 2.0), (1.0, 0.5), (1.0, 1.0), (1.0, 2.0), (2.0, 1.0))


class Scaling(Experiment):
    """NormProp minus BatchNorm on a grid of small scales, and what it predicts for larger ones."""

    paper = paper.ACCURACY_AFTER_30_EPOCHS

    def grid(self) -> Settings:
        base = self.scale.protocol
        sizes = [
            (wide * base.width, round(many * base.train_size))
            for wide, many in GRID
            if base.train_size
        ]
        return {
            f"width {w:g}, {n:,} images": replace(base, width=w, train_size=n) for w, n in sizes
        }

    def settings(self) -> Settings:
        every = {**self.grid(), **self.scale.larger}.items()
        return {
            f"{name}, {label}": replace(c, norm=norm)
            for label, c in every
            for name, norm in NORMS.items()
        }

    def pairs(self) -> dict[str, tuple[str, str]]:
        labels = [*self.grid(), *self.scale.larger]
        return {label: (f"{NORMPROP}, {label}", f"{BATCHNORM}, {label}") for label in labels}

    def prediction(self, config: Config, measure: Measure) -> Comparison:
        """Of the difference at another scale."""

        def place(config: Config) -> tuple[float, ...]:
            return 1.0, math.log(config.width), math.log(config.train_size or IMAGES)

        found = {
            label: self.compare(*self.pairs()[label], measure).difference for label in self.grid()
        }
        known = {
            place(small): found[label].mean
            for label, small in self.grid().items()
            if found[label].n
        }
        return Comparison(
            measure, Estimate.predicted(list(known), list(known.values()), place(config))
        )

    def differences(self) -> list[dict[str, Comparison]]:
        panels = super().differences()
        for label, config in self.scale.larger.items():
            for panel, m in zip(panels, self.reported, strict=True):
                found = panel.pop(label)
                panel |= {f"{label}, predicted": self.prediction(config, m), label: found}
        return panels

    def levels(self) -> dict[str, Curves]:
        names = [f"{name}, {label}" for label in self.scale.larger for name in NORMS]
        return {
            "Accuracy, %": {name: self.arms[name].curve(Record.accuracies, 1) for name in names}
        }

    def remarks(self) -> str:
        long = {
            name: arm
            for name, arm in self.arms.items()
            if arm.config and arm.config.epochs == PAPER_RUN.epochs
        }
        told = [
            self.told(name.partition(",")[0], record)
            for name, arm in long.items()
            for record in arm.survivors
        ]
        return " ".join([super().remarks(), *told])

    def told(self, norm: str, record: Record) -> str:
        """The accuracies, the protocol and the speed of a long run."""
        images, accuracies = record.images["train"], dict(enumerate(record.accuracies(), 1))
        best = max(accuracies, key=accuracies.__getitem__)
        # 0: not measured
        seconds = [images / speed for row in record.history if (speed := row["images_per_second"])]
        some = ", ".join(
            f"{accuracies[epoch]:.2f} % ({epoch})"
            for epoch in accuracies
            if epoch == 1 or epoch % 5 == 0
        )
        facts = {
            "best": best,
            "most": accuracies[best],
            "some": some,
            "last": accuracies[len(accuracies)],
        }
        times = {"hours": sum(seconds) / 3600.0, "speed": len(seconds) * images / sum(seconds)}
        return self.facts["long"].format(
            norm=norm, c=record.config, images=images, paper=self.paper, **facts, **times
        )


KINDS = {
    "covariate-shift": CovariateShift,
    "results": Results,
    "scale": Scaling,
    "jacobian-factor": JacobianFactor,
}
EXPERIMENTS: dict[str, Callable[..., Experiment]] = {
    n: partial(KINDS.get(n, Experiment), n) for n in TABLE
}
