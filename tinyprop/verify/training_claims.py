"""Claims of section 4 on what surrounds a layer: scales, the constraint, weight decay, batches,
dropout. And the claims that only training can settle.

To read a claim: its docstring derives the exact number, `draw` makes samples, and `mc.tally` keeps
their means, with error bars. `claimed` is a number that the claim states: it is compared with the
exact and the measured one, and judged; `beside` is only shown. `samples`, `cost` and `block` say
how much is drawn."""

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.random import Generator

from .. import ShapeError, Tensor, grad, manual_seed, no_grad
from .. import functional as F
from ..data import BatchNormalizer, GlobalNormalizer
from ..engine.arrays import HostArray
from ..nn import BatchNorm, Dropout, Linear, Sequential
from ..optim import SGD, normalize_weights
from .case import Case, beside, claimed, other_than
from .closed_forms import C1, C2
from .ledger import Findings, claim
from .monte_carlo import Sampler, Tally
from .networks import batch, gaussian, largest_difference, layer_with, one_unit
from .paper import EPOCH_SECONDS, TEST_ERRORS

normprop = partial(claim, family="normprop")


def small_network(random: Generator, *widths: int) -> Sequential:
    """A NormProp network in float64."""
    layers = [
        layer_with(random.standard_normal((units, inputs))) for inputs, units in pairwise(widths)
    ]
    return Sequential(*layers).to(dtype="float64")


def weights_of(network: Sequential) -> list[Tensor]:
    return [parameter for parameter in network.parameters() if parameter.ndim == 2]


def change(seed: int, factor: float) -> float:
    """How far the output of a network moves if its weights are multiplied by a factor."""
    random = np.random.default_rng(seed)
    network, x = small_network(random, 6, 8, 8, 5), batch(random, 20, 6)
    before = network(x)
    for weight in weights_of(network):
        weight.data = factor * weight.data
    return largest_difference(network(x), before)


@normprop(
    "C26",
    "4.4",
    "The scale of weight vectors does not affect the representation.",
    expected="holds",
)
def scale_is_free(mc: Sampler) -> Findings:
    """A layer uses w/|w|, the same for a weight vector w and c w, if c > 0; c < 0 turns the filter
    around."""
    turned = change(mc.seed, -7.0)
    yield claimed(
        "change of output, weights times 7", 0.0, exact=0.0, measured=change(mc.seed, 7.0)
    )
    yield beside("change of output, weights times -7", measured=turned)
    return f"for positive factors; a negative one changes the output by up to {turned:.1f}"


@normprop(
    "C27",
    "4.4",
    "Constraining weights to unit length should reduce the parameter search space.",
    expected="empirical",
)
def constraint_is_free(mc: Sampler) -> Findings:
    """If the loss f of a weight vector w has f(c w) = f(w) for all c > 0, its gradient at c w is
    1/c times that at w, and orthogonal to w. So the same learning rate turns a long vector by a
    smaller angle, in proportion to 1/|w|^2, and every step makes it longer: the effective learning
    rate decays by itself, unless the constraint fixes it. Whether the smaller search space helps,
    only training can tell: `tinyprop reproduce open-choices --scale plateau`."""
    random = np.random.default_rng(mc.seed)
    network = small_network(random, 6, 8, 5)
    x, terms = batch(random, 20, 6), batch(random, 20, 5)
    w = weights_of(network)[0]

    def gradient() -> HostArray:
        (slope,) = grad((network(x) * terms).sum(), w)
        return slope.numpy()

    before = gradient()
    along = abs((before * w.numpy()).sum(axis=1)).max()
    w.data = 2.0 * w.data
    size = np.linalg.norm(before)
    ratio = np.linalg.norm(gradient()) / size
    yield beside("gradient at 2w / gradient at w", exact=0.5, measured=float(ratio))
    yield beside("fraction of the gradient along w", exact=0.0, measured=float(along / size))
    return (
        "the scale of w changes not the function, but its optimisation: the effective rate is "
        "proportional to 1/|w|^2"
    )


@normprop(
    "C28",
    "4.4",
    "A small weight decay, 0.0005 to 0.005, was found to be necessary.",
    expected="empirical",
)
def decay_is_a_rate(mc: Sampler) -> Findings:
    """SGD with learning rate r, gradient g and weight decay d takes w to w - r (g + d w) = (1 - r
    d) (w - r/(1 - r d) g), and scaling to unit length removes the factor in front. So for
    constrained weights and plain SGD, decay only raises the learning rate to r/(1 - r d). (It also
    acts on gamma, beta and unconstrained weights, and momentum adds a little.) Whether it is
    necessary, only training can tell: `tinyprop reproduce dropout --scale plateau`."""
    rate, decay, steps = 0.05, 0.005, 20

    def trained(rate: float, decay: float) -> HostArray:
        random = np.random.default_rng(mc.seed)
        network, x = small_network(random, 6, 8, 5), batch(random, 40, 6)
        labels = random.integers(0, 5, 40)
        weights = weights_of(network)
        optimizer = SGD(weights, rate, momentum=0.0, weight_decay=decay)
        normalize_weights(network)
        for _ in range(steps):
            F.cross_entropy(network(x), labels).backward()
            optimizer.step()
            normalize_weights(network)
            optimizer.zero_grad()
        return np.concatenate([w.numpy().ravel() for w in weights])

    with_decay, with_rate = trained(rate, decay), trained(rate / (1.0 - rate * decay), 0.0)
    added = float(abs(with_decay - with_rate).max())
    yield beside("what decay adds to a learning rate", exact=0.0, measured=added)
    return (
        "with plain SGD it only raises the learning rate r to r/(1 - r d), for constrained weights"
    )


@normprop(
    "C29",
    "4.2",
    "Weights start as in Glorot and Bengio; their scale need not be tuned.",
    expected="holds",
)
def start_scale(mc: Sampler) -> Findings:
    """Glorot and Bengio draw uniform weights of variance 2/(inputs + outputs). By C26 only
    directions matter."""
    yield claimed(
        "change of output, weights times 10", 0.0, exact=0.0, measured=change(mc.seed, 10.0)
    )
    return "only directions matter"


@normprop(
    "C32",
    "4.1, 5.4",
    "With global data normalisation, NormProp trains with batches of one sample.",
    expected="holds",
)
def single_samples(mc: Sampler) -> Findings:
    """No layer looks at another sample, so an output is the same alone and in a batch, and the
    gradient of a batch is the sum of those of its samples."""
    random, count = np.random.default_rng(mc.seed), 20
    network = Sequential(*small_network(random, 6, 8, 5), Linear(5, 4).to(dtype="float64"))
    x, labels = batch(random, count, 6), random.integers(0, 4, count)

    def gradient(part: slice) -> HostArray:
        loss = F.cross_entropy(network(x[part]), labels[part], reduction="sum")
        slopes = grad(loss, list(network.parameters()))
        return np.concatenate([slope.numpy().ravel() for slope in slopes])

    singles = [slice(i, i + 1) for i in range(count)]
    alone = F.concatenate([network(x[one]) for one in singles], axis=0)
    difference = largest_difference(alone, network(x))
    yield claimed("output alone minus in a batch", 0.0, exact=0.0, measured=difference)
    sums = sum(gradient(one) for one in singles)
    yield claimed(
        "sum of single gradients minus that of the batch",
        0.0,
        exact=0.0,
        measured=abs(sums - gradient(slice(None))).max(),
    )
    return "every sample goes through the network by itself"


@normprop("C33", "1", "BN is inapplicable with batch size 1.", expected="does not hold as stated")
def single_samples_bn(mc: Sampler) -> Findings:
    """A single number has no spread: a fully connected BN layer would divide 0 by 0. A
    convolutional one takes its statistics over the places of the map as well: a single image of
    height H and width W has H W of them."""

    def works(*shape: int) -> float:
        try:
            BatchNorm(shape[1]).to(dtype="float64")(batch(np.random.default_rng(mc.seed), *shape))
        except ShapeError:
            return 0.0
        return 1.0

    yield claimed("applicable to (1, 8, 4, 4)", 0.0, exact=1.0, measured=works(1, 8, 4, 4))
    yield claimed("applicable to (1, 8)", 0.0, exact=0.0, measured=works(1, 8))
    return (
        "true for fully connected layers; convolutional ones have the places of a map to average "
        "over"
    )


@normprop(
    "C34",
    "4.1, 5.1",
    "Global and batch data normalisation were found to perform similarly.",
    expected="empirical",
)
def batch_normalized_data(mc: Sampler) -> Findings:
    """In a batch of B Gaussian samples, centred and scaled, the values x of a feature lie on a
    sphere: |x| <= sqrt(B - 1) and E x^4 = 3 (B - 1)/(B + 1). Two samples always become -1 and 1; of
    one, the spread is undefined. For the paper's 50 and 100, x is nearly Gaussian. How networks
    perform, only training can tell: `tinyprop reproduce data-normalization --scale plateau`."""
    exact = {size: 3.0 * (size - 1.0) / (size + 1.0) for size in (50, 100, 4, 2)}

    def draw(random: Generator, count: int, size: int) -> Tensor:
        """Of `count` features, each over a batch of this size."""
        x = BatchNormalizer((count,))(gaussian(random, size, count))
        return (x**4).mean(axis=0)

    for size, fourth in exact.items():
        drawn, samples = partial(draw, size=size), 800_000 // size
        found = mc.tally(f"batch {size}", drawn, samples, cost=size, block=32_768 // size)
        yield beside(f"E x^4, batch of {size}", exact=fourth, measured=found.mean())
    return (
        f"the data are nearly alike: E x^4 is {exact[50]:.2f} for 50, {exact[4]:.2f} for 4, not 3"
    )


@normprop(
    "C35",
    "4.1",
    "Normalising each feature makes the range of the inputs irrelevant.",
    expected="holds",
)
def range_is_free(mc: Sampler) -> Findings:
    """a x + b minus its mean, over its standard deviation, is the same as for x itself, if a >
    0."""

    def normalized(samples: Tensor) -> Tensor:
        return GlobalNormalizer((5,)).to(dtype="float64").fit(samples.data)(samples)

    x = batch(np.random.default_rng(mc.seed), 200, 5)
    one, other = normalized(x), normalized(255.0 * x + 128.0)
    yield claimed("difference", 0.0, exact=0.0, measured=largest_difference(other, one))
    farthest = abs(one.numpy().mean(axis=0)).max()
    what = "mean of a normalised feature, farthest from 0"
    yield claimed(what, 0.0, exact=0.0, measured=farthest)
    return "x and 255 x + 128 become the same"


@normprop(
    "C36",
    "4.4",
    "Dropout changes the distribution of the output of a layer.",
    expected="holds",
)
def dropout(mc: Sampler) -> Findings:
    """If each output survives with probability p and is scaled by 1/p, a normalised output has
    variance 1/p. If it is dropped before it is normalised, the variance is (1/(2p) - c2^2)/c1^2,
    with c1 and c2 the standard deviation and the mean of ReLU(Z), Z ~ N(0, 1). Multiplying by
    sqrt(p) after the normalisation would restore it."""
    keep = 0.5
    layer, drop = one_unit(gamma=1.0), Dropout(1.0 - keep)

    def draw(random: Generator, count: int) -> dict[str, HostArray]:
        manual_seed(int(random.integers(2**32)))  # of the masks
        with no_grad():
            out = layer(gaussian(random, count, 1))
            rectified = C1 * out + C2
            after, before = drop(out), (drop(rectified) - C2) / C1
        return {"after": after.numpy()[:, 0], "before": before.numpy()[:, 0]}

    one_thread = replace(mc, threads=1)  # which has one generator of masks
    found = one_thread.tally("dropout", draw, samples=4_000_000, watch=Tally.variance)
    unnormalized = (1.0 / (2.0 * keep) - C2**2) / C1**2
    yield claimed(
        "Var o, dropout after",
        other_than(1.0),
        exact=1.0 / keep,
        measured=found.variance("after"),
    )
    yield claimed(
        "Var o, dropout before",
        other_than(1.0),
        exact=unnormalized,
        measured=found.variance("before"),
    )
    return (
        f"at p = 1/2 the variance is {1.0 / keep:g} after the normalisation, {unnormalized:.2f} "
        "if dropped before it"
    )


# Only training can settle these.

SIGNIFICANT = 1.96


def significance(ours: float, theirs: float, images: int) -> float:
    """How many standard errors of counting two error rates, in %, are apart: positive if ours is
    lower."""
    p, q = ours / 100.0, theirs / 100.0
    return (q - p) / math.sqrt((p * (1.0 - p) + q * (1.0 - q)) / images)


def printed_margins(mc: Sampler, rival: str, name: str) -> Findings:
    """Whether the printed errors differ by more than counting explains, on each data set. They are
    counted again on simulated test sets of this size, whose images are wrong with these
    probabilities."""
    clear = 0
    for data, row in TEST_ERRORS.items():
        ours, theirs, images = row.normprop, getattr(row, rival), row.test_images

        def draw(
            random: Generator,
            count: int,
            ours: float = ours,
            theirs: float = theirs,
            images: int = images,
        ) -> dict[str, HostArray]:
            more = random.binomial(images, theirs / 100.0, count)
            margin = (more - random.binomial(images, ours / 100.0, count)).astype(np.float64)
            return {"margin": margin, "square": margin**2}

        found = mc.tally(f"count {ours} {theirs}", draw, samples=400_000)
        counted = found.function(
            lambda mean: mean["margin"] / math.sqrt(mean["square"] - mean["margin"] ** 2)
        )
        exact = significance(ours, theirs, images)
        clear += exact > SIGNIFICANT
        yield beside(f"standard errors below {name}, {data}", exact=exact, measured=counted)
    of = f"{clear} of {len(TEST_ERRORS)}"
    return (
        f"tinyprop reproduce results measures it. In print, {of} margins exceed the counting error"
    )


@normprop(
    "C42",
    "5.5",
    "NormProp is better than BN, or competitive, on all data sets.",
    expected="empirical",
)
def better_than_bn(mc: Sampler) -> Findings:
    """Training settles it: `tinyprop reproduce results`. The printed errors are compared in
    standard errors of a binomial count, of which 1.96 (our threshold, not the paper's) is
    significant at 5 %, if seeds add no error."""
    return (yield from printed_margins(mc, "batch_norm", "BN"))


@normprop("C43", "5.5", "NormProp beats the state of the art.", expected="empirical")
def state_of_the_art(mc: Sampler) -> Findings:
    """Training settles it: `tinyprop reproduce results`. Printed margins are compared as in C42."""
    return (yield from printed_margins(mc, "best_other", "the best other"))


@normprop(
    "C44",
    "5.6",
    "NormProp is faster than BN: 84 against 96 seconds for an epoch.",
    expected="empirical",
)
def faster(mc: Sampler) -> Findings:
    """The time of an epoch depends on hardware and code: in a clone, `python -m benchmarks steps`
    measures a step."""
    saved = 1.0 - EPOCH_SECONDS["normprop"] / EPOCH_SECONDS["batch"]
    yield Case("fraction of the time saved", saved, judged=False)
    return "it depends on hardware and code: python -m benchmarks steps measures it"
