"""The experiments of sections 5.1 to 5.4 of the paper."""

import statistics
from collections.abc import Callable
from dataclasses import replace

import matplotlib
from matplotlib.figure import Figure

from .. import paper
from ..plots import GREY, panels, styled
from .drawing import BLACK, label_ends, with_bars
from .evidence import Comparison, Measure, deviations, roughness
from .experiment import BATCHNORM, CONTROLS, NORMPROP, Claim, Experiment, Finding, Pair, Settings, controls
from .record import Layer, Record
from .scales import Scale

NORMS = Pair("NormProp minus BatchNorm", NORMPROP, BATCHNORM)


class DataNormalization(Experiment):
    name, section, title = "data-normalization", "5.1", "Global and batch data normalisation"
    note = (
        "The other experiments normalise data by batch, as the paper does, except where a batch size of 1 is compared."
    )

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        planned = {("batch", 50): CONTROLS, ("global", 50): 16, ("batch", 100): 12, ("global", 100): 12}
        return {
            (kind, n): scale.setting(
                f"{kind}, batches of {n}", seeds, data_norm=kind, batch_size=n, lr=paper.LEARNING_RATES[n]
            )
            for (kind, n), seeds in planned.items()
        }

    def claims(self) -> list[Claim]:
        text = "Global and batch data normalisation perform very similarly."
        best = f"no number; the best, {paper.ACCURACY_AFTER_30_EPOCHS} %, with batch data normalisation"
        pairs = (Pair(f"global minus batch, {n}", ("global", n), ("batch", n)) for n in paper.LEARNING_RATES)
        return [Claim(text, best, Comparison.alike, tuple(pairs))]


# -- 5.2


def hidden(record: Record) -> tuple[Layer, ...]:
    """The paper's "last 8 layers", 2 to 9."""
    return record.layers[1:]


def final_mean(layer: Layer) -> float:
    return layer.size[-1]


def movement(layer: Layer) -> float:
    """How far means move in an epoch; the first epoch leaves the random start and does not count."""
    return statistics.fmean(layer.moved[2:] or layer.moved)


def averaged(of: Callable[[Layer], float], layers: slice = slice(None)) -> Measure:
    """A number of each layer, averaged over some of the last eight."""
    return Measure("", "", lambda record: statistics.fmean(map(of, hidden(record)[layers])))


class CovariateShift(Experiment):
    name, section, title = "covariate-shift", "5.2", "Internal covariate shift: the mean inputs of the layers"
    note = (
        "The mean input of a layer is the |mean| of what arrives from the layer below, averaged over all features. Its "
        "movement is how far these means move in an epoch, after the first. Epoch 0 is before training. That they "
        "converge after 32 epochs cannot be seen in short runs."
    )

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        found = controls(scale)
        for lr in (paper.UNNORMALIZED_RATE, 0.01):
            found[lr] = scale.setting(f"no normalisation, rate {lr:g}", 6, norm="none", lr=lr)
        return found

    def findings(self) -> list[Finding]:
        stable = "The mean inputs of lower hidden layers (2 to 5) are more stable with NormProp than with BN."
        near = "On average over layers 2 to 9, mean inputs end closer to 0 with NormProp than with BN."
        printed = f"{paper.MEAN_INPUTS['normprop']} against {paper.MEAN_INPUTS['batch']}"
        findings = []
        for claim, their, measure in (
            (stable, "a plot", averaged(movement, slice(4))),
            (near, printed, averaged(final_mean)),
        ):
            found = self.compare(NORMS, measure)
            levels = " against ".join(self.arms[norm].words(measure) for norm in (NORMPROP, BATCHNORM))
            findings.append(Finding(claim, their, f"{levels}: {found}", found.better()))
        return findings

    @styled
    def figure(self) -> Figure:
        """The mean input of each layer by epoch, and for each layer the difference of NormProp and BatchNorm."""
        figure, every = panels(3, 12.0, 6.0, rows=2)
        colors = [matplotlib.colormaps["viridis"](0.9 * i / 7) for i in range(8)]
        top = max(
            (max(layer.size) for arm in self.arms.values() for r in arm.survivors for layer in hidden(r)), default=1
        )
        for axes, arm in zip(every[[0, 1, 3, 4]], self.arms.values(), strict=True):
            ends = []
            for i, color in enumerate(colors):
                curves = zip(*(hidden(record)[i].size for record in arm.survivors), strict=True)
                if means := [statistics.fmean(values) for values in curves]:
                    axes.plot(range(len(means)), means, "o-", color=color, markersize=2.5)
                    ends.append((len(means) - 1, means[-1], str(i + 2), color))
            axes.set(title=arm.setting.label, xlabel="epoch", ylabel="mean input, layers 2 to 9", ylim=(0, top))
            axes.xaxis.get_major_locator().set_params(integer=True)
            label_ends(axes, ends)
        for axes, of, title in ((every[2], final_mean, "final mean input"), (every[5], movement, "movement")):
            found = [self.compare(NORMS, averaged(of, slice(i, i + 1))).difference for i in range(8)]
            with_bars(axes, range(2, 10), found, BLACK, "o")
            axes.axhline(0.0, color=GREY, linewidth=1, linestyle=":")
            axes.set(title=f"NormProp minus BN: {title}", xlabel="layer", xticks=range(2, 10))
        return figure


# -- 5.3


class Convergence(Experiment):
    name, section, title = "convergence", "5.3", "Convergence of NormProp and BatchNorm"
    note = (
        "Roughness is the root mean square of the training loss about a smooth curve (a cubic polynomial in the "
        "logarithm of the step). The standard deviation over epochs, which measures the climb, is not used."
    )

    @classmethod
    def settings(cls, scale: Scale) -> Settings:
        return controls(scale)

    def claims(self) -> list[Claim]:
        return [Claim("NormProp ends at least as good as BN.", "a plot", Comparison.at_least_as_good, (NORMS,))]

    def findings(self) -> list[Finding]:
        early = Measure("", " points", lambda record: record.accuracies()[0], form=".2f")
        first = self.compare(NORMS, early)
        spread = replace(first, ours=deviations(first.ours), theirs=deviations(first.theirs))
        rough = self.compare(NORMS, Measure("", " nats", lambda record: roughness(record.losses), form=".4f"))
        claim = "NormProp converges more stably than BN, especially early"
        varies = f"{claim}: after the first epoch its accuracy varies less between random seeds."
        steady = f"{claim}: its training loss, averaged over 50 steps, is less rough."
        return [
            Finding(varies, "a plot", f"distance from the median: {spread}", spread.better()),
            Finding(steady, "a plot", f"roughness: {rough}", rough.better()),
            *super().findings(),
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
            n: scale.setting(f"batches of {n}", 16 if n == 50 else 12, data_norm="global", batch_size=n, lr=rate(n))
            for n in SIZES
        }

    def claims(self) -> list[Claim]:
        pairs = tuple(Pair(f"{size} minus 50", size, 50) for size in SIZES if size != 50)
        ends = Pair(f"{SIZES[0]} minus {SIZES[-1]}", SIZES[0], SIZES[-1])
        return [
            Claim("NormProp is largely unaffected by the batch size.", "a plot", Comparison.alike, pairs),
            Claim("Smaller batches perform slightly better.", "a plot", Comparison.better, (ends,)),
        ]

    def findings(self) -> list[Finding]:
        return [self.beyond_chance("NormProp trains with batches of one image.", "it does", [1]), *super().findings()]
