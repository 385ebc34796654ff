"""The experiments of section 5 of the paper."""

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import replace

from .. import paper
from ..estimate import Estimate
from ..train import Config
from .evidence import ACCURACY, ENDPOINTS, Comparison, Measure, predicted, roughness
from .experiment import BATCHNORM, CHANCE, NORMPROP, NORMS, Claim, Experiment
from .figures import Curves
from .record import Layer, Record
from .scales import IMAGES, PAPER_RUN, Scale, Settings

CONFIGURED = {NORMPROP: "normprop", BATCHNORM: "batch"}  # as a Config says it


class DataNormalization(Experiment):
    name, section, title = "data-normalization", "5.1", "Global and batch data normalisation"
    note = "The other experiments normalise data by batch, as the paper does, except where batches of 1 are compared."

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        return {
            f"{kind}, batches of {n}": replace(scale.protocol, data_norm=kind, batch_size=n, lr=lr)
            for n, lr in paper.LEARNING_RATES.items()
            for kind in ("batch", "global")
        }

    def claims(self) -> list[Claim]:
        text = "Global and batch data normalisation perform very similarly, with batches of"
        best = f"no number; the best, {paper.ACCURACY_AFTER_30_EPOCHS} %, with batch data normalisation"
        pairs = {n: (f"global, batches of {n}", f"batch, batches of {n}") for n in paper.LEARNING_RATES}
        return [
            Claim(f"{text} {n}.", best, Comparison.alike, {f"global minus batch, {n}": pair})
            for n, pair in pairs.items()
        ]


# -- 5.2

HIDDEN, LOWER = range(2, 10), range(2, 6)  # the paper's "last 8 layers", and its "lower hidden layers"


def final_mean(layer: Layer) -> float:
    return layer.size[-1]


def movement(layer: Layer) -> float:
    """How far means move in an epoch; the first epoch leaves the random start and does not count."""
    return statistics.fmean(layer.moved[2:] or layer.moved)


def averaged(name: str, of: Callable[[Layer], float], layers: Iterable[int]) -> Measure:
    """A number of each layer, averaged over some layers."""
    return Measure(name, "", lambda record: statistics.fmean(of(record.layers[i - 1]) for i in layers))


FINAL_MEAN = averaged("final mean input", final_mean, HIDDEN)
BUT_ONE = Measure(
    "without the largest layer",
    "",
    lambda record: statistics.fmean(sorted(final_mean(record.layers[i - 1]) for i in HIDDEN)[:-1]),
)


class CovariateShift(Experiment):
    name, section, title = "covariate-shift", "5.2", "Internal covariate shift: the mean inputs of the layers"
    note = (
        "The mean input of a layer is the |mean| of what arrives from the layer below, averaged over all features. Its "
        "movement is how far these means move in an epoch, after the first. Epoch 0 is before training. Whether they "
        "converge after 32 epochs, as in the paper, cannot be seen in short runs."
    )
    reported = (*ENDPOINTS, FINAL_MEAN, BUT_ONE)

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        rates = (paper.UNNORMALIZED_RATE, 0.01)  # at the second it trains
        none = {f"no normalisation, rate {lr:g}": replace(scale.protocol, norm="none", lr=lr) for lr in rates}
        return {**super().settings(scale), **none}

    def claims(self) -> list[Claim]:
        stable = "The mean inputs of lower hidden layers (2 to 5) are more stable with NormProp than with BN."
        near = "On average over layers 2 to 9, mean inputs end closer to 0 with NormProp than with BN."
        printed = f"{paper.MEAN_INPUTS['normprop']} against {paper.MEAN_INPUTS['batch']}"
        return [
            Claim(stable, "a plot", Comparison.better, NORMS, (averaged("movement", movement, LOWER),)),
            Claim(near, printed, Comparison.better, NORMS, (FINAL_MEAN,)),
        ]

    def levels(self) -> dict[str, Curves]:
        def curves(i: int) -> Curves:
            return {name: arm.curve(lambda record: record.layers[i - 1].size, 0) for name, arm in self.arms.items()}

        return {f"Mean input of layer {i}": curves(i) for i in HIDDEN}

    def differences(self) -> list[dict[str, Comparison]]:
        return [
            {f"layer {i}": self.compare(NORMPROP, BATCHNORM, averaged(name, of, [i])) for i in HIDDEN}
            for name, of in (("final mean input", final_mean), ("movement", movement))
        ]


class Convergence(Experiment):
    name, section, title = "convergence", "5.3", "Convergence of NormProp and BatchNorm"
    note = (
        "Roughness is the root mean square of the training loss about a smooth curve (a cubic polynomial in the "
        "logarithm of the step). The standard deviation over epochs is not used: it measures the climb."
    )

    def claims(self) -> list[Claim]:
        text = "NormProp converges more stably than BN"
        varies = f"{text}: after the first epoch its accuracy varies less between random seeds."
        steady = f"{text}: its training loss, averaged over 50 steps, is less rough."
        early = Measure("distance from the median", "%", lambda r: r.accuracies()[0], form=".2f", spread=True)
        rough = Measure("roughness", "nats", lambda record: roughness(record.losses), form=".4f")
        return [
            Claim(varies, "a plot", Comparison.better, NORMS, (early,)),
            Claim(steady, "a plot", Comparison.better, NORMS, (rough,)),
            Claim("NormProp ends at least as good as BN.", "a plot", Comparison.at_least_as_good, NORMS),
        ]


# -- 5.4

SIZES = (1, 10, 50, 100, 250)


def rate(size: int) -> float:
    """The learning rate of a batch size, which for 50 and 100 is the paper's.

    >>> [rate(size) for size in SIZES]
    [0.001, 0.01, 0.05, 0.08, 0.08]
    """
    return min(size / 1000, paper.LEARNING_RATES[100])


class BatchSize(Experiment):
    name, section, title = "batch-size", "5.4", "The batch size"
    note = (
        "Every size sees the same images, normalised globally, at a rate of size / 1000 but at most 0.08, which for 50 "
        "and 100 is the paper's. In short runs small batches also make more steps."
    )

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        base = replace(scale.protocol, data_norm="global")
        return {f"batches of {n}": replace(base, batch_size=n, lr=rate(n)) for n in SIZES}

    def claims(self) -> list[Claim]:
        unaffected = "NormProp is largely unaffected by the batch size (1, 10, 100 and 250 against 50)."
        pairs = {f"{n} minus 50": (f"batches of {n}", "batches of 50") for n in SIZES if n != 50}
        ends = {"1 minus 250": ("batches of 1", "batches of 250")}
        single, one = "NormProp trains with batches of one image.", {"1 minus chance": ("batches of 1", CHANCE)}
        return [
            Claim(unaffected, "a plot", Comparison.alike, pairs),
            Claim("Smaller batches perform slightly better.", "a plot", Comparison.better, ends),
            Claim(single, "it does", Comparison.better, one, (ACCURACY,)),
        ]


class Results(Experiment):
    name, section, title = "results", "5.5", "Test errors on the data sets"
    note = (
        "The paper's errors are those of its full protocol, without intervals: compare who is better, not the values. "
        "The row at half width has all images and 8 epochs, with the rate halved every 2."
    )
    x = "Test accuracy, %"

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        return {
            f"{row}, {name}": replace(config, norm=norm)
            for row, config in scale.rows.items()
            for name, norm in CONFIGURED.items()
        }

    def claims(self) -> list[Claim]:
        found = []
        for row in self.scale.rows:
            printed = paper.TEST_ERRORS.get(row)
            errors = f"errors of {printed.normprop} and {printed.batch_norm} %" if printed else "not in the paper"
            text = f"NormProp is better than BN or competitive on {row}."
            pairs = {row: (f"{row}, {NORMPROP}", f"{row}, {BATCHNORM}")}
            found.append(Claim(text, errors, Comparison.at_least_as_good, pairs))
        return found

    def levels(self) -> dict[str, Curves]:
        def curve(norm: str) -> dict[str, Estimate]:
            return {row: self.arms[f"{row}, {norm}"].estimate(ACCURACY) for row in self.scale.rows}

        return {"Test accuracy": {norm: curve(norm) for norm in CONFIGURED}}


# -- towards the paper's scale

GRID = ((0.5, 0.5), (0.5, 2.0), (1.0, 0.5), (1.0, 1.0), (1.0, 2.0), (2.0, 1.0))  # widths and images of the protocol


class Scaling(Experiment):
    name, section, title = "scale", "5.1", "From laptop scale towards the paper's"
    note = (
        "Predictions come from a linear regression of NormProp minus BatchNorm on the logarithms of width and number "
        "of images, over the small scales alone, which have no flips and fewer epochs; with 95 % prediction intervals. "
        "Curves are on validation images; at the paper's scale on test images, as in the paper."
    )
    paper = paper.ACCURACY_AFTER_30_EPOCHS

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        return {
            f"{name}, {label}": replace(config, norm=norm)
            for label, config in {**cls.grid(scale), **scale.larger}.items()
            for name, norm in CONFIGURED.items()
        }

    @classmethod
    def grid(cls, scale: Scale) -> Settings:
        base = scale.protocol
        sizes = [(wide * base.width, round(many * base.train_size)) for wide, many in GRID if base.train_size]
        return {f"width {w:g}, {n:,} images": replace(base, width=w, train_size=n) for w, n in sizes}

    def claims(self) -> list[Claim]:
        return []

    def pair(self, label: str, measure: Measure) -> Comparison:
        return self.compare(f"{NORMPROP}, {label}", f"{BATCHNORM}, {label}", measure)

    def prediction(self, config: Config, measure: Measure) -> Comparison:
        """Of the difference at another scale."""

        def place(config: Config) -> list[float]:
            return [1.0, math.log(config.width), math.log(config.train_size or IMAGES)]

        found = [(place(small), self.pair(label, measure)) for label, small in self.grid(self.scale).items()]
        known = [(x, comparison.difference.mean) for x, comparison in found if comparison.difference.n]
        return Comparison(measure, predicted([x for x, _ in known], [y for _, y in known], place(config)))

    def differences(self) -> list[dict[str, Comparison]]:
        panels = [{label: self.pair(label, measure) for label in self.grid(self.scale)} for measure in self.reported]
        for label, config in self.scale.larger.items():
            for panel, m in zip(panels, self.reported, strict=True):
                panel |= {f"{label}, predicted": self.prediction(config, m), label: self.pair(label, m)}
        return panels

    def levels(self) -> dict[str, Curves]:
        names = [f"{name}, {label}" for label in self.scale.larger for name in CONFIGURED]
        return {"Accuracy, %": {name: self.arms[name].curve(Record.accuracies, 1) for name in names}}

    def remarks(self) -> str:
        texts = [self.note, f"The paper's best accuracy is {self.paper} %, after {PAPER_RUN.epochs} epochs."]
        for label, config in self.scale.larger.items():
            for measure in self.reported:
                expected, found = self.prediction(config, measure), self.pair(label, measure)
                parts = [f"predicted {expected.number}"] if expected.difference.n else []
                parts += [f"found {found}"] if found.difference.n else []
                texts += [f"{label.capitalize()}, {measure.name}: {', '.join(parts)}."] if parts else []
        for name, arm in self.arms.items():
            if arm.config and arm.config.epochs == PAPER_RUN.epochs:
                texts += [f"{name}: {at_length(record)}." for record in arm.survivors]
        return " ".join(texts)


def at_length(record: Record) -> str:
    """The protocol, the accuracy and the speed of a long run."""
    c, images, accuracies = record.config, record.images["train"], record.accuracies()
    best, seconds = max(accuracies), sum(images / row["images_per_second"] for row in record.history)
    return (
        f"width {c.width:g}, {images:,} images, batches of {c.batch_size}, rate {c.lr:g} halved every {c.halve_every} "
        f"epochs, weight decay {c.weight_decay:g} (which the paper does not give for this run); {accuracies[-1]:.2f} % "
        f"after {c.epochs} epochs, the best {best:.2f} % after {accuracies.index(best) + 1}; {seconds / 3600:.1f} h on "
        f"one thread, {c.epochs * images / seconds:.0f} images/s"
    )
