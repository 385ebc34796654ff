"""The experiments by name: most are rows of experiments.toml alone, and some need more."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from ..report.estimate import Estimate
from ..train import Config
from ..verify import paper
from . import evidence
from .evidence import ACCURACY, ENDPOINTS, HIDDEN, LARGEST_RATE, Comparison, Measure, averaged
from .experiment import BATCHNORM, NORMPROP, NOT_IN_THE_PAPER, Arm, Claim, Experiment
from .figures import Curves
from .record import Layer, Record
from .registration import PLATEAU, SHORT
from .scales import IMAGES, PAPER_RUN, Scale, Settings

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
        movement = self.by_layer("movement", evidence.movement, evidence.unit_of_features)
        return [final, movement]

    def by_layer(
        self,
        name: str,
        of: Callable[[Layer], float],
        unit: Callable[[Record], float] = lambda record: 1.0,
    ) -> dict[str, Comparison]:
        """NormProp minus BatchNorm in each hidden layer."""
        compared = {}
        for i in HIDDEN:
            measure = averaged(name, of, [i], unit=unit)
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
        elsewhere = self.facts.get("claimed_elsewhere", ())
        return [self.claim(row) for row in self.scale.rows if row not in elsewhere]

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
            width = width_factor * base.width_used
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
        epochs_measured = sum(row["images_per_second"] > 0 for row in record.history)
        return str(self.facts["long"]).format(
            norm=norm,
            c=record.config,
            images=images,
            paper=self.paper,
            best=best_epoch,
            most=accuracies[best_epoch],
            some=", ".join(some),
            last=accuracies[len(accuracies)],
            hours=record.seconds / 3600.0,
            speed=epochs_measured * images / record.seconds,
        )


class PaperScale(Experiment):
    """Both methods at the paper's own size, one run each."""

    paper = paper.ACCURACY_AFTER_30_EPOCHS

    def remarks(self) -> str:
        remarks = [super().remarks()]
        for name, arm in self.arms.items():
            remarks += [in_words(name, record, self.paper) for record in arm.survivors]
        return " ".join(remarks)


@dataclass(frozen=True)
class LongRun:
    """The accuracies of a run at the paper's scale, in %."""

    last: float  # after the last epoch before annealing, which is the paper's last
    last_epoch: int
    best: float  # of these epochs
    best_epoch: int
    averaged: float | None  # of averaged weights
    annealed: float | None

    @classmethod
    def of(cls, record: Record) -> "LongRun":
        annealed_epochs = record.config.anneal or 0
        accuracies = record.accuracies()
        last_epoch = len(accuracies) - annealed_epochs
        before = accuracies[:last_epoch]
        best = max(before)
        averaged_error = record.averaged.error if record.averaged else math.nan
        return cls(
            last=before[-1],
            last_epoch=last_epoch,
            best=best,
            best_epoch=before.index(best) + 1,
            averaged=100.0 * (1.0 - averaged_error) if record.averaged else None,
            annealed=accuracies[-1] if annealed_epochs else None,
        )


def in_words(name: str, record: Record, printed: float) -> str:
    """A sentence on a run at the paper's scale."""
    run = LongRun.of(record)
    words = f"{name}: {run.last:.2f} % of the test images after {run.last_epoch} epochs, "
    words += f"{run.best:.2f} % at its best, after {run.best_epoch}"
    if run.averaged is not None:
        words += f", {run.averaged:.2f} % with averaged weights"
    if run.annealed is not None:
        words += f", {run.annealed:.2f} % annealed"
    hours = record.seconds / 3600.0
    return f"{words}; the paper's best is {printed} %. Training took {hours:.1f} h."


def regressors(config: Config) -> tuple[float, float, float]:
    """What a difference depends on, in a prediction."""
    images = config.train_size or IMAGES
    return 1.0, math.log(config.width_used), math.log(images)


KINDS = {
    "covariate-shift": CovariateShift,
    "results": Results,
    "scale": Scaling,
    "jacobian-factor": JacobianFactor,
    "paper-scale": PaperScale,
}
Maker = Callable[[Scale], Experiment]
# by name, of all plans; a scale has those of its own plan
EXPERIMENTS: dict[str, Maker] = {
    name: partial(KINDS.get(name, Experiment), name)
    for name in (*SHORT.experiments, *PLATEAU.experiments)
}


def experiments_at(scale: Scale) -> dict[str, Maker]:
    """The experiments that are planned at a scale, in the order of its plan."""
    return {name: EXPERIMENTS[name] for name in scale.registration.experiments}
