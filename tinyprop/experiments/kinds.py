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
from .experiment import BATCHNORM, NORMPROP, NOT_IN_THE_PAPER, TABLE, Arm, Claim, Experiment
from .figures import Curves
from .record import Layer, Record
from .scales import IMAGES, PAPER_RUN, Settings

NORMS = {NORMPROP: "normprop", BATCHNORM: "batch"}  # as a Config says it


class CovariateShift(Experiment):
    """Layer by layer."""

    reported = (*ENDPOINTS, evidence.FINAL_MEAN, evidence.BUT_ONE)

    def levels(self) -> dict[str, Curves]:
        return {f"Mean input of layer {i}": self.mean_inputs(i) for i in HIDDEN}

    def mean_inputs(self, i: int) -> Curves:
        """Of layer i, in each setting."""

        def sizes(record: Record) -> list[float]:
            return record.layers[i - 1].size

        return {name: arm.curve(sizes, start=0) for name, arm in self.arms.items()}

    def differences(self) -> list[dict[str, Comparison]]:
        final = self.by_layer("final mean input", evidence.final_mean)
        movement = self.by_layer("movement", evidence.movement)
        return [final, movement]

    def by_layer(self, name: str, of: Callable[[Layer], float]) -> dict[str, Comparison]:
        """NormProp minus BatchNorm in each hidden layer."""
        compared = {}
        for i in HIDDEN:
            measure = averaged(name, of, [i])
            compared[f"layer {i}"] = self.compare(NORMPROP, BATCHNORM, measure)
        return compared


class Results(Experiment):
    """The rows of the scale, with both normalisers."""

    x = "Test accuracy, %"

    def settings(self) -> Settings:
        settings = {}
        for row, config in self.scale.rows.items():
            for name, norm in NORMS.items():
                settings[f"{row}, {name}"] = replace(config, norm=norm)
        return settings

    def claims(self) -> list[Claim]:
        return [self.claim(row) for row in self.scale.rows]

    def claim(self, row: str) -> Claim:
        printed = paper.TEST_ERRORS.get(row)
        errors = NOT_IN_THE_PAPER
        if printed:
            errors = f"errors of {printed.normprop} and {printed.batch_norm} %"
        return Claim(
            text=f"NormProp is better than BN or competitive on {row}.",
            paper=errors,
            holds=Comparison.at_least_as_good,
            pairs={row: (f"{row}, {NORMPROP}", f"{row}, {BATCHNORM}")},
        )

    def levels(self) -> dict[str, Curves]:
        curves = {}
        for name in NORMS:
            arms = {row: self.arms[f"{row}, {name}"] for row in self.scale.rows}
            curves[name] = {row: arm.estimate(ACCURACY) for row, arm in arms.items()}
        return {"Test accuracy": curves}


class JacobianFactor(Experiment):
    """By learning rate."""

    x = "learning rate (no point where a run diverged)"

    def by_rate(self) -> dict[str, dict[float, Arm]]:
        """The settings of each start."""
        by_start: dict[str, dict[float, Arm]] = {}
        for name, arm in self.arms.items():
            start, _, rate = name.partition(", rate ")
            by_start.setdefault(start, {})[float(rate)] = arm
        return by_start

    def rates_survived(self, start: str) -> dict[int, float]:
        """For each random seed, how many rates, from the smallest up, train without diverging."""
        arms = list(self.by_rate()[start].values())
        survivors = [{record.config.seed for record in arm.survivors} for arm in arms]
        common_seeds = set.intersection(*(arm.seeds for arm in arms))
        survived: dict[int, float] = {}
        for seed in common_seeds:
            rates = 0
            while rates < len(arms) and seed in survivors[rates]:
                rates += 1
            survived[seed] = rates
        return survived

    def compared(self, claim: Claim) -> dict[str, list[Comparison]]:
        if claim.measures != (LARGEST_RATE,):
            return super().compared(claim)
        ours, theirs = list(self.by_rate())[:2]
        comparison = evidence.compared(
            LARGEST_RATE, self.rates_survived(ours), self.rates_survived(theirs)
        )
        return {f"{ours} minus {theirs}": [comparison]}

    def levels(self) -> dict[str, Curves]:
        curves: dict[str, dict[float, Estimate]] = {}
        for start, arms in self.by_rate().items():
            curves[start] = {}
            for lr, arm in arms.items():
                if not arm.diverged:
                    curves[start][lr] = arm.estimate(ACCURACY)
        return {"Test accuracy, %": curves}


# width and number of images, as multiples of the protocol's
GRID = ((0.5, 0.5), (0.5, 2.0), (1.0, 0.5), (1.0, 1.0), (1.0, 2.0), (2.0, 1.0))


class Scaling(Experiment):
    """NormProp minus BatchNorm on a grid of small scales, and what it predicts for larger ones."""

    paper = paper.ACCURACY_AFTER_30_EPOCHS

    def grid(self) -> Settings:
        base = self.scale.protocol
        if base.train_size is None:  # all images: there are no more of them
            return {}
        settings = {}
        for width_factor, images_factor in GRID:
            width = width_factor * base.width
            images = round(images_factor * base.train_size)
            label = f"width {width:g}, {images:,} images"
            settings[label] = replace(base, width=width, train_size=images)
        return settings

    def settings(self) -> Settings:
        settings = {}
        for label, config in {**self.grid(), **self.scale.larger}.items():
            for name, norm in NORMS.items():
                settings[f"{name}, {label}"] = replace(config, norm=norm)
        return settings

    def pairs(self) -> dict[str, tuple[str, str]]:
        labels = [*self.grid(), *self.scale.larger]
        return {label: (f"{NORMPROP}, {label}", f"{BATCHNORM}, {label}") for label in labels}

    def prediction(self, config: Config, measure: Measure) -> Comparison:
        """Of the difference at another scale, by linear regression over the grid."""
        pairs = self.pairs()
        places = []
        differences = []
        for label, small in self.grid().items():
            ours, theirs = pairs[label]
            difference = self.compare(ours, theirs, measure).difference
            if difference.n:
                places.append(regressors(small))
                differences.append(difference.mean)
        predicted = Estimate.predicted(places, differences, regressors(config))
        return Comparison(measure, predicted)

    def differences(self) -> list[dict[str, Comparison]]:
        """With a prediction before each difference at a larger scale."""
        panels = []
        for measure, panel in zip(self.reported, super().differences(), strict=True):
            with_predictions = {}
            for label, comparison in panel.items():
                if label in self.scale.larger:
                    predicted = self.prediction(self.scale.larger[label], measure)
                    with_predictions[f"{label}, predicted"] = predicted
                with_predictions[label] = comparison
            panels.append(with_predictions)
        return panels

    def levels(self) -> dict[str, Curves]:
        curves = {}
        for label in self.scale.larger:
            for norm in NORMS:
                name = f"{norm}, {label}"
                curves[name] = self.arms[name].curve(Record.accuracies, start=1)
        return {"Accuracy, %": curves}

    def remarks(self) -> str:
        remarks = [super().remarks()]
        for name, arm in self.arms.items():
            is_long = arm.config is not None and arm.config.epochs == PAPER_RUN.epochs
            if is_long:
                norm = name.partition(",")[0]
                remarks += [self.remark(norm, record) for record in arm.survivors]
        return " ".join(remarks)

    def remark(self, norm: str, record: Record) -> str:
        """The accuracies, the protocol and the speed of a long run."""
        accuracies = dict(enumerate(record.accuracies(), start=1))  # by epoch
        best_epoch = max(accuracies, key=accuracies.__getitem__)
        some = []
        for epoch, accuracy in accuracies.items():
            if epoch == 1 or epoch % 5 == 0:
                some.append(f"{accuracy:.2f} % ({epoch})")

        images = record.images["train"]
        speeds = [row["images_per_second"] for row in record.history]
        seconds = [images / speed for speed in speeds if speed]  # 0: not measured
        return str(self.facts["long"]).format(
            norm=norm,
            c=record.config,
            images=images,
            paper=self.paper,
            best=best_epoch,
            most=accuracies[best_epoch],
            some=", ".join(some),
            last=accuracies[len(accuracies)],
            hours=sum(seconds) / 3600.0,
            speed=len(seconds) * images / sum(seconds),
        )


def regressors(config: Config) -> tuple[float, float, float]:
    """What a difference depends on, in a prediction."""
    images = config.train_size or IMAGES
    return 1.0, math.log(config.width), math.log(images)


KINDS = {
    "covariate-shift": CovariateShift,
    "results": Results,
    "scale": Scaling,
    "jacobian-factor": JacobianFactor,
}
EXPERIMENTS: dict[str, Callable[..., Experiment]] = {
    name: partial(KINDS.get(name, Experiment), name) for name in TABLE
}
