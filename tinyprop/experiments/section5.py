"""The experiments of section 5 of the paper."""

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import replace

from .. import paper
from ..estimate import Estimate
from .evidence import ACCURACY, ENDPOINTS, Comparison, Measure, predicted, roughness
from .experiment import BATCHNORM, CHANCE, CONTROLS, NORMPROP, NORMS, Claim, Experiment
from .figures import Curves
from .record import Layer, Record
from .scales import IMAGES, PAPER_RUN, Scale, Setting, Settings, Turn


class DataNormalization(Experiment):
    name, section, title = "data-normalization", "5.1", "Global and batch data normalisation"
    note = "The other experiments normalise data by batch, as the paper does, except where batches of 1 are compared."

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        planned = {("batch", 50): CONTROLS, ("global", 50): 16, ("batch", 100): 12, ("global", 100): 12}
        return {
            f"{kind}, batches of {n}": scale.setting(seeds, data_norm=kind, batch_size=n, lr=rate(n))
            for (kind, n), seeds in planned.items()
        }

    def claims(self) -> list[Claim]:
        text = "Global and batch data normalisation perform very similarly, with batches of"
        best = f"no number; the best, {paper.ACCURACY_AFTER_30_EPOCHS} %, with batch data normalisation"
        found = []
        for n in paper.LEARNING_RATES:
            pairs = {f"global minus batch, {n}": (f"global, batches of {n}", f"batch, batches of {n}")}
            found.append(Claim(f"{text} {n}.", best, Comparison.alike, pairs))
        return found


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


class CovariateShift(Experiment):
    name, section, title = "covariate-shift", "5.2", "Internal covariate shift: the mean inputs of the layers"
    note = (
        "The mean input of a layer is the |mean| of what arrives from the layer below, averaged over all features. Its "
        "movement is how far these means move in an epoch, after the first. Epoch 0 is before training. Whether they "
        "converge after 32 epochs cannot be seen in short runs."
    )
    reported = (*ENDPOINTS, FINAL_MEAN)

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        rates = (paper.UNNORMALIZED_RATE, 0.01)  # at the second it trains
        unnormalized = {f"no normalisation, rate {lr:g}": scale.setting(6, norm="none", lr=lr) for lr in rates}
        return super().settings(scale) | unnormalized

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
        "logarithm of the step). The standard deviation over epochs, which measures the climb, is not used."
    )

    def claims(self) -> list[Claim]:
        text = "NormProp converges more stably than BN"
        varies = f"{text}: after the first epoch its accuracy varies less between random seeds."
        steady = f"{text}: its training loss, averaged over 50 steps, is less rough."
        early = Measure("distance from the median", " %", lambda r: r.accuracies()[0], form=".2f", spread=True)
        rough = Measure("roughness", " nats", lambda record: roughness(record.losses), form=".4f")
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
        return {
            f"batches of {n}": scale.setting(16 if n == 50 else 12, data_norm="global", batch_size=n, lr=rate(n))
            for n in SIZES
        }

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


# -- 5.5 and 5.6

CONFIGURED = {NORMPROP: "normprop", BATCHNORM: "batch"}  # as a Config says it


class Results(Experiment):
    name, section, title = "results", "5.5", "Test errors on the data sets"
    note = (
        "The paper's errors are those of its full protocol, without intervals: compare who is better, not the values. "
        "What is not run has no data here. The row at half width has all images and 8 epochs, with the rate halved "
        "every 2."
    )
    x, form = "", "o"

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        return {
            f"{row}, {name}": replace(setting, config=replace(setting.config, norm=norm))
            for row, setting in scale.rows.items()
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
            rows = self.scale.rows
            return {row: self.arms[f"{row}, {norm}"].estimate(ACCURACY) for row in rows}

        return {"Test accuracy, %": {norm: curve(norm) for norm in CONFIGURED}}


def image_times(record: Record) -> list[float]:
    """Milliseconds of training for an image, in each epoch."""
    return [1000.0 / row["images_per_second"] for row in record.history]


IMAGE_TIME = Measure("training time of an image", " ms", lambda record: statistics.fmean(image_times(record)))


class Speed(Experiment):
    name, section, title = "speed", "5.6", "The time of training"
    note = (
        "Runs of the same random seed are computed at about the same time, each on one thread. What else the machine "
        "does at that time is not controlled: `benchmarks` measures speed."
    )
    reported = (IMAGE_TIME,)

    def claims(self) -> list[Claim]:
        printed = " against ".join(f"{seconds:g}" for seconds in paper.EPOCH_SECONDS.values())
        text = "NormProp takes less time than BN."
        return [Claim(text, f"{printed} s for an epoch, on a GPU", Comparison.better, NORMS, self.reported)]

    def levels(self) -> dict[str, Curves]:
        return {"Training time of an image, ms": {name: arm.curve(image_times, 1) for name, arm in self.arms.items()}}


# -- towards the paper's scale

GRID = ((0.5, 0.5), (0.5, 2.0), (1.0, 0.5), (1.0, 1.0), (1.0, 2.0), (2.0, 1.0))  # widths and images of the protocol


class Scaling(Experiment):
    name, section, title = "scale", "5.1", "From laptop scale towards the paper's"
    note = (
        "Predictions are by a linear regression of NormProp minus BatchNorm over the logarithms of width and number of "
        "images, from the small scales alone, which have neither flips nor more epochs; with their prediction "
        "intervals. Curves are on validation images; at the paper's scale on test images, as in the paper."
    )
    paper = paper.ACCURACY_AFTER_30_EPOCHS

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        found = {}
        for label, setting in (cls.grid(scale) | scale.larger).items():
            for name, norm in CONFIGURED.items():
                turn = Turn.EXPLORATORY if (setting.turn, norm) == (Turn.PAPER, "batch") else setting.turn
                found[f"{name}, {label}"] = replace(setting, config=replace(setting.config, norm=norm), turn=turn)
        return found

    @classmethod
    def grid(cls, scale: Scale) -> Settings:
        base = scale.protocol
        if base.train_size is None:
            return {}
        sizes = [(wide * base.width, round(many * base.train_size)) for wide, many in GRID]
        return {f"width {w:g}, {n:,} images": scale.setting(4, width=w, train_size=n) for w, n in sizes}

    def claims(self) -> list[Claim]:
        return []

    def pair(self, label: str, measure: Measure) -> Comparison:
        return self.compare(f"{NORMPROP}, {label}", f"{BATCHNORM}, {label}", measure)

    def prediction(self, setting: Setting, measure: Measure) -> Comparison:
        """Of the difference at another scale."""

        def place(setting: Setting) -> list[float]:
            config = setting.config
            return [1.0, math.log(config.width), math.log(config.train_size or IMAGES)]

        found = [(place(setting), self.pair(name, measure)) for name, setting in self.grid(self.scale).items()]
        known = [(x, comparison.difference.mean) for x, comparison in found if comparison.difference.n]
        return Comparison(measure, predicted([x for x, _ in known], [y for _, y in known], place(setting)))

    def differences(self) -> list[dict[str, Comparison]]:
        panels = [{label: self.pair(label, measure) for label in self.grid(self.scale)} for measure in self.reported]
        for label, setting in self.scale.larger.items():
            for panel, m in zip(panels, self.reported, strict=True):
                panel |= {f"{label}, predicted": self.prediction(setting, m), label: self.pair(label, m)}
        return panels

    def levels(self) -> dict[str, Curves]:
        names = [f"{name}, {label}" for label in self.scale.larger for name in CONFIGURED]
        return {"Accuracy, %": {name: self.arms[name].curve(Record.accuracies, 1) for name in names}}

    def remarks(self) -> str:
        texts = [self.note, f"The paper's best accuracy is {self.paper} %, after {PAPER_RUN.epochs} epochs."]
        for label, setting in self.scale.larger.items():
            for measure in self.reported:
                expected, found = self.prediction(setting, measure), self.pair(label, measure)
                texts.append(f"NormProp minus BatchNorm, {label}: predicted {expected}, found {found}.")
        for name, arm in self.arms.items():
            for record in arm.survivors if arm.setting.config.epochs == PAPER_RUN.epochs else ():
                c, images, accuracies = record.config, record.images["train"], record.accuracies()
                best, hours = max(accuracies), sum(images / row["images_per_second"] for row in record.history) / 3600
                texts.append(
                    f"{name} (width {c.width:g}, {images:,} images, batches of {c.batch_size}, rate {c.lr:g} halved "
                    f"every {c.halve_every} epochs, weight decay {c.weight_decay:g}, which the paper does not give for "
                    f"this run): {accuracies[-1]:.2f} % after {c.epochs} epochs, the best {best:.2f} % after "
                    f"{accuracies.index(best) + 1}; {hours:.1f} h on one thread, "
                    f"{c.epochs * images / hours / 3600:.0f} images/s."
                )
        return " ".join(texts)
