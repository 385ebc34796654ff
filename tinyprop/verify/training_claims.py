"""Claims of section 4 on what surrounds a layer: scales, the constraint, weight decay, batches, dropout. And the claims
that only training can settle."""

import math
from itertools import pairwise

import numpy as np

from .. import functional as F
from ..data import BatchNormalizer, GlobalNormalizer
from ..engine.arrays import Array, HostArray
from ..engine.backward import grad
from ..engine.errors import ShapeError
from ..engine.graph import no_grad
from ..engine.tensor import Tensor, tensor
from ..estimate import Estimate
from ..nn import BatchNorm, Dropout, Linear, Module, NormPropLinear, Sequential
from ..optim import SGD, normalize_weights
from ..paper import EPOCH_SECONDS, TEST_ERRORS
from ..random import manual_seed
from .claim import Case, Evidence, claims_of, computed, evidence, shown
from .closed_forms import C1, C2
from .monte_carlo import Sampler, Tally
from .networks import difference_ratio, gaussian, layer_with

claim = claims_of("training")


def small_network(random: np.random.Generator, *widths: int) -> Sequential:
    """A NormProp network in float64, so that what is equal is equal to 15 digits."""
    layers = [layer_with(random.standard_normal((units, inputs))) for inputs, units in pairwise(widths)]
    return Sequential(*layers).to(dtype="float64")


def batch(random: np.random.Generator, *shape: int) -> Tensor:
    return tensor(random.standard_normal(shape))


def largest_difference(a: Tensor, b: Tensor) -> float:
    return float(abs(a.numpy() - b.numpy()).max())


def scale_weights(network: Module, factor: float) -> None:
    for layer in network.modules():
        if isinstance(layer, NormPropLinear):
            layer.weight.data = factor * layer.weight.data


def changes(seed: int, factor: float) -> tuple[float, float]:
    """How far the output of a network moves if its weights are multiplied by a factor, and by minus that."""
    random = np.random.default_rng(seed)
    network, x = small_network(random, 6, 8, 8, 5), batch(random, 20, 6)
    before, found = network(x), []
    for by in (factor, -1.0):
        scale_weights(network, by)
        found.append(largest_difference(network(x), before))
    return found[0], found[1]


@claim("C26", "4.4", "The scale of weight vectors does not affect the representation.")
def scale_is_free(mc: Sampler) -> Evidence:
    """A layer uses its weight vector w as w/|w|, which is the same for w and c w, if c > 0. A factor below 0 turns the
    filter around, and the output changes.
    """
    scaled, turned = changes(mc.seed, 7.0)
    return evidence(
        f"for positive factors; a negative one changes the output by up to {turned:.1f}",
        Case("change of output, weights times 7", 0.0, 0.0, computed(scaled)),
        Case("change of output, weights times -7", 0.0, None, computed(turned), judged=False),
    )


@claim("C27", "4.4", "Constraining weights to unit length only removes a redundant parameter.")
def constraint_is_free(mc: Sampler) -> Evidence:
    """If the loss f of a weight vector w has f(c w) = f(w) for all c > 0, its gradient at c w is 1/c times that at w,
    and at right angles to w. So the same learning rate turns a long vector by a smaller angle, in proportion to
    1/|w|^2, and every step makes it longer: unconstrained, the effective learning rate decays by itself. The constraint
    fixes it.
    """
    random = np.random.default_rng(mc.seed)
    network, x, weights = small_network(random, 6, 8, 5), batch(random, 20, 6), batch(random, 20, 5)

    def slope() -> HostArray:
        layer = network[0]
        assert isinstance(layer, NormPropLinear)
        (found,) = grad((network(x) * weights).sum(), layer.weight)
        return found.numpy()

    first = network[0]
    assert isinstance(first, NormPropLinear)
    before, w = slope(), first.weight.numpy()
    along = float(abs((before * w).sum(axis=1)).max() / np.linalg.norm(before))
    scale_weights(network, 2.0)
    ratio = float(np.linalg.norm(slope()) / np.linalg.norm(before))
    return evidence(
        "the function is unchanged, its optimisation is not: the effective learning rate is proportional to 1/|w|^2",
        Case("gradient at 2w / gradient at w", 1.0, 0.5, computed(ratio)),
        Case("fraction of the gradient along w", 0.0, 0.0, computed(along)),
    )


@claim("C28", "4.4", "Weight decay is necessary besides the unit-length constraint.")
def decay_is_a_rate(mc: Sampler) -> Evidence:
    """A step of SGD with learning rate r, gradient g and weight decay d takes w to w - r (g + d w) = (1 - r d) (w -
    r/(1 - r d) g), and scaling to unit length removes the factor in front. For constrained weights and plain SGD, decay
    d is a learning rate of r/(1 - r d) and nothing else: it can only act on gamma, beta and weights that are not
    constrained. Momentum remembers earlier w, and adds a little.
    """
    rate, decay, steps = 0.05, 0.005, 20

    def moved(rate: float, decay: float, momentum: float) -> HostArray:
        """How far training moves the weights."""
        random = np.random.default_rng(mc.seed)
        network, x, labels = small_network(random, 6, 8, 5), batch(random, 40, 6), random.integers(0, 5, 40)
        normalize_weights(network)
        layers = [layer for layer in network if isinstance(layer, NormPropLinear)]
        start = [layer.weight.numpy().copy() for layer in layers]
        optimizer = SGD([layer.weight for layer in layers], rate, momentum, decay)
        for _ in range(steps):
            F.cross_entropy(network(x), labels).backward()
            optimizer.step()
            normalize_weights(network)
            optimizer.zero_grad()
        return np.concatenate([(layer.weight.numpy() - w).ravel() for layer, w in zip(layers, start, strict=True)])

    def added(momentum: float) -> float:
        """What decay does beyond changing the learning rate, relative to how far the weights move."""
        decayed, faster = moved(rate, decay, momentum), moved(rate / (1.0 - rate * decay), 0.0, momentum)
        return float(np.linalg.norm(decayed - faster) / np.linalg.norm(decayed))

    plain, moving = added(0.0), added(0.9)
    return evidence(
        f"with plain SGD it only raises the learning rate; momentum 0.9 adds {moving:.1%} of the distance moved",
        Case("what decay adds to a learning rate", 0.0, 0.0, computed(plain), "differs from"),
        Case("the same with momentum 0.9", 0.0, None, computed(moving), judged=False),
    )


@claim("C29", "4.2", "Weights start as in Glorot and Bengio; their scale need not be tuned.")
def start_scale(mc: Sampler) -> Evidence:
    """Glorot and Bengio draw uniform weights of variance 2/(inputs + outputs). By C26 only directions matter: ten times
    their scale is the same network.
    """
    change, _ = changes(mc.seed, 10.0)
    manual_seed(mc.seed)
    new = Tally.of(Linear(150, 250).weight.numpy().ravel()).variance()
    return evidence(
        "only directions matter",
        Case("change of output, weights times 10", 0.0, 0.0, computed(change)),
        shown("variance of new weights, 150 inputs, 250 outputs", 2.0 / (150 + 250), new),
    )


@claim("C32", "4.1, 5.4", "With global data normalisation, NormProp trains with batches of one sample.")
def single_samples(mc: Sampler) -> Evidence:
    """No layer looks at another sample: the output of a sample alone is its output in a batch, and the gradient of a
    batch is the sum of the gradients of its samples.
    """
    random, count = np.random.default_rng(mc.seed), 20
    network = Sequential(*small_network(random, 6, 8, 5), Linear(5, 4).to(dtype="float64"))
    x, labels = batch(random, count, 6), random.integers(0, 4, count)
    parameters = list(network.parameters())

    def slopes(part: slice) -> HostArray:
        found = grad(F.cross_entropy(network(x[part]), labels[part], reduction="sum"), parameters)
        return np.concatenate([slope.numpy().ravel() for slope in found])

    singles = [slice(i, i + 1) for i in range(count)]
    alone = F.concatenate([network(x[one]) for one in singles], axis=0)
    together = slopes(slice(None))
    differences = abs(sum(slopes(one) for one in singles) - together)
    bias = parameters[-1]

    def with_bias(x: Tensor, values: Tensor) -> Tensor:
        return F.linear(x, parameters[-2], values)

    slope = difference_ratio(with_bias, [batch(random, 7, 5), bias], random)
    return evidence(
        "every sample goes through the network by itself",
        Case("output alone minus in a batch", 0.0, 0.0, computed(largest_difference(alone, network(x)))),
        Case("sum of single gradients minus that of the batch", 0.0, 0.0, computed(float(differences.max()))),
        shown("slope along input and bias / difference quotient", 1.0, slope, tolerance=1e-5),
    )


@claim("C33", "1", "BN is inapplicable with batch size 1.")
def single_samples_bn(mc: Sampler) -> Evidence:
    """One number has no spread: a fully connected BN layer divides 0 by 0. A convolutional one takes its statistics
    over the places of the map as well, and has H W of them in a single image of height H and width W.
    """

    def works(*shape: int) -> float:
        try:
            BatchNorm(shape[1])(tensor(np.random.default_rng(mc.seed).standard_normal(shape).astype(np.float32)))
        except ShapeError:
            return 0.0
        return 1.0

    return evidence(
        "true for fully connected layers; convolutional ones have the places of a map to average over",
        Case("applicable to (1, 8, 4, 4)", 0.0, 1.0, computed(works(1, 8, 4, 4))),
        Case("applicable to (1, 8)", 0.0, 0.0, computed(works(1, 8))),
        *_batch_norm_cases(np.random.default_rng(mc.seed)),
    )


def _batch_norm_cases(random: np.random.Generator) -> list[Case]:
    """BN as the engine computes it, against its definition, from the same numbers."""
    eps, momentum = 1e-5, 0.1
    layer, x = BatchNorm(3).to(dtype="float64"), 2.0 * random.standard_normal((5, 3, 2, 2)) + 1.0

    def by(mean: HostArray, variance: HostArray) -> HostArray:
        return (x - mean[:, None, None]) / np.sqrt(variance + eps)[:, None, None]

    mean, variance = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
    training = abs(layer(tensor(x)).numpy() - by(mean, variance)).max()
    later = by(momentum * mean, 1.0 - momentum + momentum * variance * 20 / 19)  # after one step from 0 and 1
    evaluated = abs(layer.eval()(tensor(x)).numpy() - later).max()

    def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.batch_norm(x, tensor(np.zeros(3)), tensor(np.ones(3)), weight, bias, training=True)

    slope = difference_ratio(batch_norm, [tensor(x), batch(random, 3), batch(random, 3)], random)
    return [
        shown("error of BN by the statistics of the batch", 0.0, training),
        shown("error of BN by running statistics", 0.0, evaluated),
        shown("slope of BN / difference quotient", 1.0, slope, tolerance=1e-5),
    ]


def batch_tally(mc: Sampler, size: int) -> Tally:
    """The fourth moment of batches of Gaussian samples, normalised by their own mean and standard deviation."""

    def draw(random: np.random.Generator, count: int) -> Array:
        layer = BatchNormalizer((count,))
        with no_grad():
            return (layer(gaussian(random, size, count)).data ** 4).mean(axis=0)

    return mc.tally(f"batch {size}", draw, samples=400_000 // size, cost=size, block=32_768 // size)


@claim("C34", "4.1, 5.1", "Batch data normalisation is as good as global normalisation.")
def batch_normalized_data(mc: Sampler) -> Evidence:
    """A batch of B Gaussian samples x, centered and scaled, lies on a sphere: |x| <= sqrt(B - 1), E x^4 = 3 (B - 1)/(B
    + 1). Two samples always become -1 and 1; one is undefined. For the paper's 50 and 100 it is nearly Gaussian.
    """
    cases = []
    for size in (50, 100, 4, 2):
        estimate = batch_tally(mc, size).mean()
        exact = 3.0 * (size - 1.0) / (size + 1.0)
        cases.append(Case(f"E x^4, batch of {size}", 3.0, exact, estimate, judged=size >= 50))
    return evidence(f"nearly: E x^4 is {cases[0].exact:.2f} for 50, {cases[2].exact:.2f} for 4, 3 globally", *cases)


@claim("C35", "4.1", "Normalising each feature makes the range of the inputs irrelevant.")
def range_is_free(mc: Sampler) -> Evidence:
    """a x + b minus its mean, over its standard deviation, is the same as for x itself, if a > 0."""
    x = np.random.default_rng(mc.seed).standard_normal((200, 5))

    def normalized(samples: HostArray) -> Tensor:
        array = tensor(samples).data
        return GlobalNormalizer((5,)).to(dtype="float64").fit(array)(Tensor(array))

    gap = largest_difference(normalized(255.0 * x + 128.0), normalized(x))
    mean = float(abs(normalized(x).numpy().mean(axis=0)).max())
    return evidence(
        "x and 255 x + 128 become the same",
        Case("difference", 0.0, 0.0, computed(gap)),
        Case("mean of a normalised feature, farthest from 0", 0.0, 0.0, computed(mean)),
    )


@claim("C36", "4.4", "Dropout changes the distribution of the output of a layer.")
def dropout(mc: Sampler) -> Evidence:
    """If each output survives with probability p and is scaled by 1/p, a normalised output has variance 1/p; dropped
    before it is normalised, (1/(2p) - c2^2)/c1^2, with c1 and c2 the standard deviation and mean of ReLU(Z), Z ~ N(0,
    1). Multiplying by sqrt(p) after the normalisation would restore the variance.
    """
    keep = 0.5
    layer, drop = layer_with([[1.0]], gamma=1.0), Dropout(1.0 - keep)

    def draw(random: np.random.Generator, count: int) -> HostArray:
        manual_seed(int(random.integers(2**32)))  # of the masks
        with no_grad():
            out = layer(gaussian(random, count, 1))
            after, before = drop(out), (drop(out * C1 + C2) - C2) / C1
        return np.stack([after.numpy()[:, 0], before.numpy()[:, 0]])

    tally = mc.tally("dropout", draw, samples=400_000, watch=Tally.variance, threads=1)
    unnormalized = (1.0 / (2.0 * keep) - C2**2) / C1**2
    return evidence(
        f"at p = 1/2 the variance is {1.0 / keep:g} after the normalisation, {unnormalized:.2f} if dropped before it",
        Case("Var o, dropout after", 1.0, 1.0 / keep, tally.variance(0), "differs from"),
        Case("Var o, dropout before", 1.0, unnormalized, tally.variance(1), "differs from"),
    )


# Only training can settle these.

SIGNIFICANT = 1.96
RIVALS = {"batch_norm": "BN", "best_other": "the best other"}


def significance(ours: float, theirs: float, images: int) -> float:
    """How many standard errors of counting two error rates, in %, are apart: positive if ours is lower."""
    p, q = ours / 100.0, theirs / 100.0
    return (q - p) / math.sqrt((p * (1.0 - p) + q * (1.0 - q)) / images)


def counted_again(mc: Sampler, ours: float, theirs: float, images: int) -> Estimate:
    """The same from simulated test sets of this size, whose images are wrong with these probabilities."""

    def draw(random: np.random.Generator, count: int) -> HostArray:
        p, q = (random.binomial(images, rate / 100.0, count) for rate in (ours, theirs))
        return np.array([q - p, (q - p) ** 2], np.float64)

    tally = mc.tally(f"count {ours} {theirs}", draw, samples=100_000)
    return tally.function(lambda means: means[0] / math.sqrt(means[1] - means[0] ** 2))


def printed_cases(mc: Sampler, rival: str) -> tuple[str, list[Case]]:
    """Whether the printed errors differ by more than counting explains, on each data set."""
    cases = []
    for name, row in TEST_ERRORS.items():
        other, what = getattr(row, rival), f"standard errors below {RIVALS[rival]}, {name}"
        exact = significance(row.normprop, other, row.test_images)
        cases.append(shown(what, exact, counted_again(mc, row.normprop, other, row.test_images)))
    clear = sum((case.exact or 0.0) > SIGNIFICANT for case in cases)
    reason = (
        f"tinyprop reproduce results measures it. In print, {clear} of {len(cases)} margins exceed the counting error"
    )
    return reason, cases


@claim("C42", "5.5", "NormProp is better than BN, or competitive, on all data sets.")
def better_than_bn(mc: Sampler) -> Evidence:
    """Training settles it: `tinyprop reproduce results`. What the printed errors themselves can show is their distance
    in standard errors of a binomial count, of which 1.96 (our threshold, not the paper's) would be significant at 5 %;
    the variance over random seeds, which is not printed, comes on top.
    """
    reason, cases = printed_cases(mc, "batch_norm")
    return evidence(reason, *cases)


@claim("C43", "5.5", "NormProp beats the state of the art.")
def state_of_the_art(mc: Sampler) -> Evidence:
    """Training settles it: `tinyprop reproduce results`. The printed margins are compared with the error of counting,
    as in C42.
    """
    reason, cases = printed_cases(mc, "best_other")
    return evidence(reason, *cases)


@claim("C44", "5.6", "NormProp is faster than BN: 84 against 96 seconds for an epoch.")
def faster(mc: Sampler) -> Evidence:
    """The time of an epoch depends on hardware and code: `tinyprop reproduce speed` measures it here."""
    saved = 1.0 - EPOCH_SECONDS["normprop"] / EPOCH_SECONDS["batch"]
    return evidence(
        "it depends on hardware and code: tinyprop reproduce speed measures it",
        Case("fraction of the time saved", saved, judged=False),
    )
