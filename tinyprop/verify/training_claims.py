"""Claims of section 4 on what surrounds a layer: scales, the constraint, weight decay, batches,
dropout. And the claims that only training can settle."""

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from .. import ShapeError, Tensor, grad, manual_seed, no_grad, tensor
from .. import functional as F
from ..data import BatchNormalizer, GlobalNormalizer
from ..engine.arrays import Array, HostArray
from ..nn import BatchNorm, Dropout, Linear, Sequential
from ..optim import SGD, normalize_weights
from ..report.estimate import Estimate
from .claim import Case, Findings, claim, computed, is_zero, shown
from .closed_forms import C1, C2
from .monte_carlo import Sampler, Tally
from .networks import batch, difference_ratio, gaussian, largest_difference, layer_with
from .paper import EPOCH_SECONDS, TEST_ERRORS


def small_network(random: np.random.Generator, *widths: int) -> tuple[Sequential, list[Tensor]]:
    """A NormProp network in float64, and its weights."""
    layers = [
        layer_with(random.standard_normal((units, inputs))) for inputs, units in pairwise(widths)
    ]
    return Sequential(*layers).to(dtype="float64"), [layer.weight for layer in layers]


def change(seed: int, factor: float) -> float:
    """How far the output of a network moves if its weights are multiplied by a factor."""
    random = np.random.default_rng(seed)
    (network, weights), x = small_network(random, 6, 8, 8, 5), batch(random, 20, 6)
    before = network(x)
    for weight in weights:
        weight.data = factor * weight.data
    return largest_difference(network(x), before)


@claim("C26", "4.4", "The scale of weight vectors does not affect the representation.")
def scale_is_free(mc: Sampler) -> Findings:
    """A layer uses w/|w|, the same for a weight vector w and c w, if c > 0; c < 0 turns the filter
    around."""
    scaled, turned = change(mc.seed, 7.0), change(mc.seed, -7.0)
    yield is_zero("change of output, weights times 7", scaled)
    yield Case("change of output, weights times -7", 0.0, None, computed(turned), judged=False)
    return f"for positive factors; a negative one changes the output by up to {turned:.1f}"


@claim(
    "C27", "4.4", "Constraining weights to unit length should reduce the parameter search space."
)
def constraint_is_free(mc: Sampler) -> Findings:
    """If the loss f of a weight vector w has f(c w) = f(w) for all c > 0, its gradient at c w is
    1/c times that at w, and orthogonal to w. So the same learning rate turns a long vector by a
    smaller angle, in proportion to 1/|w|^2, and every step makes it longer: the effective learning
    rate decays by itself, unless the constraint fixes it. Whether the smaller search space helps,
    only training can tell: `tinyprop reproduce open-choices --scale plateau`."""
    random = np.random.default_rng(mc.seed)
    (network, (w, _)), x, terms = (
        small_network(random, 6, 8, 5),
        batch(random, 20, 6),
        batch(random, 20, 5),
    )
    (slope,) = grad((network(x) * terms).sum(), w)
    along = abs((slope * w).sum(axis=1).numpy()).max()
    w.data = 2.0 * w.data
    size, scaled = (
        np.linalg.norm(g.numpy()) for g in (slope, *grad((network(x) * terms).sum(), w))
    )
    yield shown("gradient at 2w / gradient at w", 0.5, float(scaled / size))
    yield shown("fraction of the gradient along w", 0.0, float(along / size))
    return (
        "the scale of w changes not the function, but its optimisation: the effective rate is "
        "proportional to 1/|w|^2"
    )


@claim("C28", "4.4", "A small weight decay, 0.0005 to 0.005, was found to be necessary.")
def decay_is_a_rate(mc: Sampler) -> Findings:
    """SGD with learning rate r, gradient g and weight decay d takes w to w - r (g + d w) = (1 - r
    d) (w - r/(1 - r d) g), and scaling to unit length removes the factor in front. So for
    constrained weights and plain SGD, decay only raises the learning rate to r/(1 - r d). It acts
    on gamma, beta and other weights; momentum adds a little. Whether it is necessary, only training
    can tell: `tinyprop reproduce dropout --scale plateau`."""
    rate, decay, steps = 0.05, 0.005, 20

    def trained(rate: float, decay: float) -> HostArray:
        random = np.random.default_rng(mc.seed)
        (network, weights), x = small_network(random, 6, 8, 5), batch(random, 40, 6)
        labels, optimizer = (
            random.integers(0, 5, 40),
            SGD(weights, rate, momentum=0.0, weight_decay=decay),
        )
        normalize_weights(network)
        for _ in range(steps):
            F.cross_entropy(network(x), labels).backward()
            optimizer.step()
            normalize_weights(network)
            optimizer.zero_grad()
        return np.concatenate([w.numpy().ravel() for w in weights])

    added = float(abs(trained(rate, decay) - trained(rate / (1.0 - rate * decay), 0.0)).max())
    yield shown("what decay adds to a learning rate", 0.0, added)
    return (
        "with plain SGD it only raises the learning rate r to r/(1 - r d), for constrained weights"
    )


@claim("C29", "4.2", "Weights start as in Glorot and Bengio; their scale need not be tuned.")
def start_scale(mc: Sampler) -> Findings:
    """Glorot and Bengio draw uniform weights of variance 2/(inputs + outputs). By C26 only
    directions matter."""
    manual_seed(mc.seed)
    new = Tally.of(Linear(150, 250).weight.numpy().ravel()).variance()
    yield is_zero("change of output, weights times 10", change(mc.seed, 10.0))
    yield shown("variance of new weights, 150 inputs, 250 outputs", 2.0 / (150 + 250), new)
    return "only directions matter"


@claim(
    "C32", "4.1, 5.4", "With global data normalisation, NormProp trains with batches of one sample."
)
def single_samples(mc: Sampler) -> Findings:
    """No layer looks at another sample, and the gradient of a batch is the sum of those of its
    samples."""
    random, count = np.random.default_rng(mc.seed), 20
    network = Sequential(*small_network(random, 6, 8, 5)[0], Linear(5, 4).to(dtype="float64"))
    x, labels = batch(random, count, 6), random.integers(0, 4, count)
    parameters = list(network.parameters())

    def slopes(part: slice) -> HostArray:
        found = grad(F.cross_entropy(network(x[part]), labels[part], reduction="sum"), parameters)
        return np.concatenate([slope.numpy().ravel() for slope in found])

    singles = [slice(i, i + 1) for i in range(count)]
    alone = F.concatenate([network(x[one]) for one in singles], axis=0)
    differences = abs(sum(slopes(one) for one in singles) - slopes(slice(None)))
    *_, weight, bias = parameters
    hidden = tensor(random.standard_normal((7, 5)), requires_grad=True)
    slope = difference_ratio(partial(F.linear, hidden, weight, bias), [hidden, bias], random)
    yield is_zero("output alone minus in a batch", largest_difference(alone, network(x)))
    yield is_zero("sum of single gradients minus that of the batch", differences.max())
    yield shown("slope along input and bias / difference quotient", 1.0, slope, tolerance=1e-5)
    return "every sample goes through the network by itself"


@claim("C33", "1", "BN is inapplicable with batch size 1.")
def single_samples_bn(mc: Sampler) -> Findings:
    """One number has no spread: a fully connected BN layer divides 0 by 0. A convolutional one
    takes its statistics over the places of the map as well, and has H W of them in a single image
    of height H and width W."""
    random = np.random.default_rng(mc.seed)

    def works(*shape: int) -> float:
        try:
            BatchNorm(shape[1]).to(dtype="float64")(batch(np.random.default_rng(mc.seed), *shape))
        except ShapeError:
            return 0.0
        return 1.0

    yield Case("applicable to (1, 8, 4, 4)", 0.0, 1.0, computed(works(1, 8, 4, 4)))
    yield is_zero("applicable to (1, 8)", works(1, 8))
    # As the engine computes it, against its definition, from the same numbers.
    eps, momentum, layer = 1e-5, 0.1, BatchNorm(3).to(dtype="float64")
    x = 2.0 * batch(random, 5, 3, 2, 2) + 1.0
    mean, variance = x.mean(axis=(0, 2, 3), keepdims=True), x.var(axis=(0, 2, 3), keepdims=True)
    training = largest_difference(layer(x), (x - mean) / (variance + eps) ** 0.5)
    # after one step from 1; the mean, from 0
    running = 1.0 - momentum + momentum * variance * (20 / 19)
    evaluated = largest_difference(layer.eval()(x), (x - momentum * mean) / (running + eps) ** 0.5)
    leaves = [Tensor(t.data, requires_grad=True) for t in (x, batch(random, 3), batch(random, 3))]

    def batch_norm() -> Tensor:
        x, weight, bias = leaves
        return F.batch_norm(x, tensor(np.zeros(3)), tensor(np.ones(3)), weight, bias, training=True)

    yield shown("error of BN by the statistics of the batch", 0.0, training)
    yield shown("error of BN by running statistics", 0.0, evaluated)
    slope = difference_ratio(batch_norm, leaves, random)
    yield shown("slope of BN / difference quotient", 1.0, slope, tolerance=1e-5)
    return (
        "true for fully connected layers; convolutional ones have the places of a map to average "
        "over"
    )


@claim("C34", "4.1, 5.1", "Global and batch data normalisation were found to perform similarly.")
def batch_normalized_data(mc: Sampler) -> Findings:
    """A batch of B Gaussian samples x, centered and scaled, lies on a sphere: |x| <= sqrt(B - 1), E
    x^4 = 3 (B - 1)/(B
    + 1). Two samples always become -1 and 1; one is undefined. For the paper's 50 and 100 it is
    nearly Gaussian. How networks perform, only training can tell: `tinyprop reproduce
    data-normalization --scale plateau`."""
    exact = {size: 3.0 * (size - 1.0) / (size + 1.0) for size in (50, 100, 4, 2)}

    def draw(random: np.random.Generator, count: int, size: int) -> Array:
        return (BatchNormalizer((count,))(gaussian(random, size, count)).data ** 4).mean(axis=0)

    for size, fourth in exact.items():
        drawn = partial(draw, size=size)
        tally = mc.tally(
            f"batch {size}", drawn, samples=400_000 // size, cost=size, block=32_768 // size
        )
        yield shown(f"E x^4, batch of {size}", fourth, tally.mean())
    return (
        f"the data are nearly alike: E x^4 is {exact[50]:.2f} for 50, {exact[4]:.2f} for 4, not 3"
    )


@claim("C35", "4.1", "Normalising each feature makes the range of the inputs irrelevant.")
def range_is_free(mc: Sampler) -> Findings:
    """a x + b minus its mean, over its standard deviation, is the same as for x itself, if a >
    0."""
    x = batch(np.random.default_rng(mc.seed), 200, 5)
    moved = 255.0 * x + 128.0
    one, other = (
        GlobalNormalizer((5,)).to(dtype="float64").fit(samples.data)(samples)
        for samples in (x, moved)
    )
    yield is_zero("difference", largest_difference(other, one))
    yield is_zero(
        "mean of a normalised feature, farthest from 0", abs(one.numpy().mean(axis=0)).max()
    )
    return "x and 255 x + 128 become the same"


@claim("C36", "4.4", "Dropout changes the distribution of the output of a layer.")
def dropout(mc: Sampler) -> Findings:
    """If each output survives with probability p and is scaled by 1/p, a normalised output has
    variance 1/p; dropped before it is normalised, (1/(2p) - c2^2)/c1^2, with c1 and c2 the standard
    deviation and mean of ReLU(Z), Z ~ N(0, 1). Multiplying by sqrt(p) after the normalisation would
    restore the variance."""
    keep = 0.5
    layer, drop = layer_with([[1.0]], gamma=1.0), Dropout(1.0 - keep)

    def draw(random: np.random.Generator, count: int) -> HostArray:
        manual_seed(int(random.integers(2**32)))  # of the masks
        with no_grad():
            out = layer(gaussian(random, count, 1))
            after, before = drop(out), (drop(out * C1 + C2) - C2) / C1
        return np.stack([after.numpy()[:, 0], before.numpy()[:, 0]])

    tally = replace(mc, threads=1).tally("dropout", draw, samples=400_000, watch=Tally.variance)
    unnormalized = (1.0 / (2.0 * keep) - C2**2) / C1**2
    yield Case("Var o, dropout after", 1.0, 1.0 / keep, tally.variance(0), "differs from")
    yield Case("Var o, dropout before", 1.0, unnormalized, tally.variance(1), "differs from")
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


def counted_again(mc: Sampler, ours: float, theirs: float, images: int) -> Estimate:
    """The same from simulated test sets of this size, whose images are wrong with these
    probabilities."""

    def draw(random: np.random.Generator, count: int) -> HostArray:
        p, q = (random.binomial(images, rate / 100.0, count) for rate in (ours, theirs))
        return np.array([q - p, (q - p) ** 2], np.float64)

    tally = mc.tally(f"count {ours} {theirs}", draw, samples=100_000)
    return tally.function(lambda means: means[0] / math.sqrt(means[1] - means[0] ** 2))


def printed_margins(mc: Sampler, rival: str, name: str) -> Findings:
    """Whether the printed errors differ by more than counting explains, on each data set."""
    clear = 0
    for data, row in TEST_ERRORS.items():
        numbers = row.normprop, getattr(row, rival), row.test_images
        exact = significance(*numbers)
        clear += exact > SIGNIFICANT
        yield shown(f"standard errors below {name}, {data}", exact, counted_again(mc, *numbers))
    of = f"{clear} of {len(TEST_ERRORS)}"
    return (
        f"tinyprop reproduce results measures it. In print, {of} margins exceed the counting error"
    )


@claim("C42", "5.5", "NormProp is better than BN, or competitive, on all data sets.")
def better_than_bn(mc: Sampler) -> Findings:
    """Training settles it: `tinyprop reproduce results`. The printed errors are compared in
    standard errors of a binomial count, of which 1.96 (our threshold, not the paper's) is
    significant at 5 %, if seeds add no error."""
    return (yield from printed_margins(mc, "batch_norm", "BN"))


@claim("C43", "5.5", "NormProp beats the state of the art.")
def state_of_the_art(mc: Sampler) -> Findings:
    """Training settles it: `tinyprop reproduce results`. Printed margins are compared as in C42."""
    return (yield from printed_margins(mc, "best_other", "the best other"))


@claim("C44", "5.6", "NormProp is faster than BN: 84 against 96 seconds for an epoch.")
def faster(mc: Sampler) -> Findings:
    """The time of an epoch depends on hardware and code: in a clone, `python -m benchmarks steps`
    measures a step."""
    yield Case(
        "fraction of the time saved",
        1.0 - EPOCH_SECONDS["normprop"] / EPOCH_SECONDS["batch"],
        judged=False,
    )
    return "it depends on hardware and code: python -m benchmarks steps measures it"
