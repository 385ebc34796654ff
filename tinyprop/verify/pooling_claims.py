"""Claims on convolutional networks: pooling, padding, and the paper's architecture.

To read a claim: its docstring derives the exact number, `draw` makes samples, and `mc.tally` keeps
their means, with error bars. `claimed` is a number that the claim states: it is compared with the
exact and the measured one, and judged; `beside` is only shown. `samples`, `cost` and `block` say
how much is drawn."""

import math
from functools import partial

import numpy as np
from numpy.random import Generator

from .. import no_grad
from ..engine.arrays import HostArray
from ..nn import NIN, AvgPool2d, MaxPool2d, Module, NormPropConv2d, build
from ..nn.spec import Conv, Pool, parse
from .case import as_derived, beside, claimed, other_than
from .closed_forms import C1, C2, avg_pool_std, max_pool
from .ledger import Findings, claim
from .monte_carlo import Sampler, Tally, Watch
from .networks import gaussian, jacobians

normprop = partial(claim, family="normprop")

WINDOW = 9


def pooled_tally(
    mc: Sampler,
    pool: Module,
    rho: float,
    watch: Watch = Tally.mean,
    samples: int = 400_000,
    name: str = "",
) -> Tally:
    """The first window of a pool over 3 x 3 normalised ReLU units, whose pre-activations have
    correlation rho: they have a part in common."""
    layer = NormPropConv2d(1, 1, 1, gamma=1.0)
    layer.weight.data[...] = 1.0

    def draw(random: Generator, count: int) -> HostArray:
        own, common = gaussian(random, count, 1, 3, 3), gaussian(random, count, 1, 1, 1)
        with no_grad():
            units = layer(own * math.sqrt(1.0 - rho) + common * math.sqrt(rho))
            return pool(units).numpy()[:, 0, 0, 0]  # of a padded pool, the window at a corner

    name = f"{name or repr(pool)} {rho}"
    return mc.tally(name, draw, samples, cost=WINDOW + 1, block=4096, watch=watch)


@normprop(
    "C23",
    "3.2",
    "Max-pooling does not affect the statistics significantly, as the pooled units are correlated.",
    expected="does not hold as stated",
)
def max_pooling(mc: Sampler) -> Findings:
    """If the pre-activations of k units have correlation rho, the largest of the units is
    ReLU(sqrt(rho) Z + sqrt(1 - rho) M), with Z normal and M the largest of k independent normals:
    its moments are an integral over M. For k = 9 and rho near 1 the mean shifts by 1.27 sqrt(1 -
    rho): by 0.13 standard deviations even at 0.99. At a corner of a padded map k is 4."""
    for rho, samples in ((0.9, 400_000), (0.5, 400_000), (0.99, 2_000_000)):
        found = pooled_tally(mc, MaxPool2d(3), rho, samples=samples)
        mean, std = max_pool(WINDOW, rho)
        yield claimed(
            f"mean after max-pooling, rho = {rho:g}", 0.0, exact=mean, measured=found.mean()
        )
        yield claimed(f"std after max-pooling, rho = {rho:g}", 1.0, exact=std, measured=found.std())
    corner = pooled_tally(mc, MaxPool2d(3, 2, 1), 0.5)
    mean, std = max_pool(4, 0.5)
    yield beside("mean at a padded corner, rho = 0.5", exact=mean, measured=corner.mean())
    yield beside("std at a padded corner, rho = 0.5", exact=std, measured=corner.std())
    shift, independent = (max_pool(WINDOW, rho)[0] for rho in (0.9, 0.0))
    return f"the mean shifts by {shift:.2f} sd at rho = 0.9 (independent units: {independent:.2f})"


@normprop(
    "C24",
    "3.2",
    "Average-pooling does not affect the statistics significantly.",
    expected="does not hold as stated",
)
def average_pooling(mc: Sampler) -> Findings:
    """The mean stays. The variance of an average of k units is (1 + (k - 1) R(rho))/k, where rho is
    the correlation of the pre-activations and R(rho) that of the units. At a corner of a padded
    map, 4 units and 5 zeros are averaged."""
    exact = {rho: avg_pool_std(WINDOW, rho) for rho in (0.5, 0.9, 0.99)}
    for rho, std in exact.items():
        found = pooled_tally(mc, AvgPool2d(3), rho, Tally.std)
        yield claimed(
            f"std after average-pooling, rho = {rho:g}", 1.0, exact=std, measured=found.std()
        )
        yield claimed(
            f"mean after average-pooling, rho = {rho:g}", 0.0, exact=0.0, measured=found.mean()
        )
    corner = pooled_tally(mc, AvgPool2d(3, 2, 1), 0.5, Tally.std)
    yield beside(
        "std at a padded corner, rho = 0.5",
        exact=avg_pool_std(4, 0.5) * 4 / WINDOW,
        measured=corner.std(),
    )
    return (
        f"the mean stays, the deviation falls to {exact[0.5]:.2f} at rho = 0.5, {exact[0.9]:.2f} "
        "at 0.9"
    )


@normprop(
    "C25",
    "3.2",
    "If the pooled units were independent, mean and standard deviation would be different.",
    expected="holds",
)
def independent_units(mc: Sampler) -> Findings:
    """The max of 9 independent units is ReLU of the largest of 9 normals."""
    found = pooled_tally(mc, MaxPool2d(3), 0.0)
    mean, std = max_pool(WINDOW, 0.0)
    # rectified, before it is normalised: c1 o + c2
    largest, deviation = C1 * mean + C2, C1 * std
    yield claimed(
        "E max of 9 rectified",
        other_than(C2),
        exact=largest,
        measured=found.function(lambda means: C1 * means[0] + C2),
    )
    yield beside("std of the max, in c1", exact=std, measured=found.std())
    return (
        f"the max of 9 has mean {largest:.3f} and deviation {deviation:.3f} instead of "
        f"{C2:.3f} and {C1:.3f}"
    )


def map_sizes(spec: str, size: int) -> list[int]:
    """The size of the map after each convolution and pool, by the formula of C40.

    >>> map_sizes("C(8,5,1,0)-P(3,2,1,max)-C(10,1,1,0)", 32)
    [28, 14, 14]
    """
    sizes = []
    for layer in parse(spec):
        assert isinstance(layer, Conv | Pool)
        size = (size + 2 * layer.padding - layer.size) // layer.stride + 1
        sizes.append(size)
    return sizes


@normprop(
    "C40",
    "5",
    "The nine-layer architecture fits together for images of 32 x 32.",
    expected="holds",
)
def architecture(mc: Sampler) -> Findings:
    """A window of size k, stride s and padding p turns a map of size L into (L + 2p - k)/s + 1,
    rounded down."""
    x = gaussian(np.random.default_rng(mc.seed), 1, 3, 32, 32)
    sizes = []
    with no_grad():
        for layer in build(NIN, width=0.05):
            x = layer(x)
            sizes.append(x.shape[-1])
    *maps, classes = sizes
    by_formula = map_sizes(NIN, 32)
    wrong = sum(a != b for a, b in zip(maps, by_formula, strict=True))
    yield claimed("size of the last map", 1.0, exact=1.0, measured=maps[-1])
    yield claimed("classes", 10.0, exact=10.0, measured=classes)
    yield claimed("maps of another size", 0.0, exact=0.0, measured=wrong)
    return f"sizes {', '.join(map(str, maps))}"


@normprop(
    "C41",
    "3.3, 5",
    "In the nine-layer architecture as printed, the input of the last layer is canonical.",
    expected="does not hold as stated",
)
def padded_border(mc: Sampler) -> Findings:
    """This is about what is probably a misprint: the paper's C(192,5,1,0)-C(192,1,1,2) pads a 1 x 1
    filter, and may stand for C(192,5,1,2)-C(192,1,1,0). As printed, C(192,1,1,2) pads 4 x 4 to 8 x
    8. A 1 x 1 filter sees only zeros in the 48 new pixels, which become the constant (ReLU(0) -
    c2)/c1 = -0.683, with c1 and c2 the standard deviation and the mean of ReLU(Z), Z ~ N(0, 1). So
    the mean over the map is 48/64 of that. And where a 5 x 5 filter with padding 2 meets zeros, Var
    u is the fraction of the filter that is inside."""
    inside, side = 4, 8
    new = 1.0 - inside**2 / side**2
    layer = NormPropConv2d(16, 4, 1, padding=2, gamma=1.0)
    layer.weight.data = gaussian(np.random.default_rng(mc.seed), *layer.weight.shape).data

    def draw(random: Generator, count: int) -> dict[str, HostArray]:
        with no_grad():
            out = layer(gaussian(random, count, 16, inside, inside)).numpy()
        return {"mean": out.mean(axis=(1, 2, 3)), "square": (out**2).mean(axis=(1, 2, 3))}

    found = mc.tally("border", draw, samples=8_000, cost=256, block=100)
    constant = -C2 / C1
    yield claimed("mean over the map", 0.0, exact=new * constant, measured=found.mean("mean"))
    yield claimed(
        "second moment over the map",
        1.0,
        exact=1.0 - new + new * constant**2,
        measured=found.mean("square"),
    )
    first = NormPropConv2d(3, 1, 5, padding=2, activation="identity", gamma=1.0)
    first.weight.data[...] = 1.0
    (slopes,) = jacobians(first, gaussian(np.random.default_rng(0), 1, 3, 16, 16))
    variances = (slopes**2).sum(axis=1)  # of each place, for pixels of variance 1
    # inside the map, along one axis, averaged over places
    of_filter = (12 * 5 + 2 * (4 + 3)) / (16 * 5)
    yield beside(
        "Var u over a map of 16 x 16, 5 x 5 filters",
        exact=of_filter**2,
        measured=variances.mean(),
    )
    yield beside("the same, at a corner", exact=(3 / 5) ** 2, measured=variances[0])
    return (
        f"as printed, probably a misprint, {new:.0%} of it is the constant {constant:.3f} of "
        "padding"
    )


@normprop(
    "G5",
    "beyond 3.2",
    "Max-pooling of equally correlated units has exact constants.",
    expected="holds",
)
def pooling_constants(mc: Sampler) -> Findings:
    """An integral over the largest of k normals (C23). For two units X and Y of correlation rho it
    has a closed form: with th = arccos(sqrt((1 - rho)/2)), E max(0, X, Y) = (2 + sqrt(2 - 2
    rho))/sqrt(8 pi), and E max(0, X, Y)^2 = 1 - th/pi + sin(2 th)/(2 pi)."""
    rho = 0.5
    mean, std = max_pool(WINDOW, rho)
    found = pooled_tally(mc, MaxPool2d(3), rho, name="pooling constants")
    yield claimed(
        "mean after max-pooling, rho = 0.5", as_derived, exact=mean, measured=found.mean()
    )
    yield claimed("std after max-pooling, rho = 0.5", as_derived, exact=std, measured=found.std())
    pair_mean, pair_std = max_pool(2, rho)
    by_integral = C1 * pair_mean + C2
    closed = (2.0 + math.sqrt(2.0 - 2.0 * rho)) / math.sqrt(8.0 * math.pi)
    yield claimed("E max(0, X, Y)", closed, exact=by_integral)
    th = math.acos(math.sqrt((1.0 - rho) / 2.0))
    square = 1.0 - th / math.pi + math.sin(2.0 * th) / (2.0 * math.pi)
    yield claimed("E max(0, X, Y)^2", square, exact=(C1 * pair_std) ** 2 + by_integral**2)
    return (
        f"subtract {mean:.3f} and divide by {std:.3f} after a 3 x 3 pool at rho = 0.5, and it is "
        "normalised again"
    )
