"""Claims on the covariance of pre-activations: Proposition 1, the canonical error bound, and
correlated inputs.

To read a claim: its docstring derives the exact number, `draw` makes samples, and `mc.tally` keeps
their means, with error bars. `claimed` is a number that the claim states: it is compared with the
exact and the measured one, and judged; `beside` is only shown. `samples`, `cost` and `block` say
how much is drawn."""

import math
from functools import partial

import numpy as np
from numpy.random import Generator

from .. import Tensor, grad, jacobian, tensor
from .. import functional as F
from ..engine.arrays import HostArray
from ..nn import NormPropLinear
from ..report.estimate import Estimate
from .case import at_most, beside, claimed
from .ledger import Findings, claim
from .monte_carlo import Sampler, Tally, each
from .networks import gaussian, layer_with, random_layer, whole_jacobian

normprop = partial(claim, family="normprop")


def covariance_of(weights: HostArray, sigma: float = 1.0) -> HostArray:
    """The covariance of a linear map of these weights, for inputs of covariance sigma^2 I."""
    origin = tensor(np.zeros(weights.shape[1]))
    slopes = whole_jacobian(lambda x: F.linear(x, tensor(weights)), origin)
    return sigma**2 * slopes @ slopes.T


def error_and_bound(covariance: HostArray) -> tuple[float, float]:
    """Both sides of Proposition 1: the distance of a covariance from its diagonal, and the bound by
    coherence."""
    lengths = np.sqrt(np.diagonal(covariance))
    off = covariance - np.diag(np.diagonal(covariance))
    products = np.outer(lengths, lengths)
    coherence = np.abs(off / products).max()
    bound = coherence * np.linalg.norm(products * (1.0 - np.eye(len(lengths))))
    return float(np.linalg.norm(off)), float(bound)


@normprop(
    "C05",
    "3.2, Proposition 1",
    "The covariance is at most the canonical bound away from a diagonal one.",
    expected="holds",
)
def bound_holds(mc: Sampler) -> Findings:
    """Inputs of covariance sigma^2 I and weights W make pre-activations of covariance sigma^2 W
    W^T. Off the diagonal, an entry is sigma^2 |W_i| |W_j| times the cosine of the rows W_i and W_j.
    The bound has the coherence, the largest cosine, in the place of each. Two rows have only one
    cosine, so that both sides are equal."""

    def draw(random: Generator) -> dict[str, float]:
        units, inputs = random.integers(2, 40, size=2)
        weights = random.standard_normal((units, inputs)) * random.lognormal(size=(units, 1))
        error, bound = error_and_bound(covariance_of(weights, random.lognormal()))
        return {"violated": float(error / bound > 1.0 + 1e-12)}

    found = mc.tally("bound", each(draw), samples=400, cost=1000, block=8).mean("violated")
    # counted, as a mean of zeros has no error bar, and a single violation refutes the claim
    violations = round(found.mean * found.n)
    what = f"of {found.n} random matrices, those that violate it"
    yield claimed(what, 0.0, exact=0.0, measured=violations)
    error, bound = error_and_bound(covariance_of(np.array([[1.0, 0.0], [3.0, 4.0]])))
    yield claimed(
        "largest ratio of both sides, two rows", at_most(1.0), exact=1.0, measured=error / bound
    )
    return f"{violations or 'no'} violation by {found.n} random matrices"


@normprop(
    "C06",
    "3.2, Proposition 1",
    "The closest diagonal has the entries sigma^2 |W_i|^2.",
    expected="holds",
)
def best_diagonal(mc: Sampler) -> Findings:
    """The squared Frobenius distance to a diagonal matrix with entries alpha_i is a sum over all
    entries, and only the i-th on the diagonal depends on alpha_i: a parabola. So one Newton step,
    by the engine's gradient, finds its minimum."""
    random, sigma = np.random.default_rng(mc.seed), 1.5
    weights = random.standard_normal((6, 9))
    covariance = tensor(covariance_of(weights, sigma))
    alpha = tensor(np.zeros(6), requires_grad=True)
    difference = covariance - alpha.reshape(6, 1) * tensor(np.eye(6))
    (slope,) = grad((difference**2).sum(), alpha)
    best = -slope.numpy() / 2.0
    ratios = best / (sigma**2 * (weights**2).sum(axis=1))
    worst = max(ratios, key=lambda ratio: abs(ratio - 1.0))
    yield claimed("alpha / (sigma^2 |W|^2)", 1.0, exact=1.0, measured=worst)
    return "one Newton step from 0 lands on them"


def slack(weights: HostArray) -> float:
    """How many times the bound is larger than the error."""
    error, bound = error_and_bound(weights @ weights.T)
    return bound / error


@normprop("C07", "3.2", "The canonical error bound can be made tight.", expected="holds")
def bound_is_tight(mc: Sampler) -> Findings:
    """Both sides are equal exactly if every two rows have the same absolute cosine: two rows,
    orthogonal rows, or a simplex. For random rows the bound is far off, as it has the largest
    cosine where the error has the root mean square of all. Of N = m (m - 1) cosines, which are
    nearly normal, the largest is about b = sqrt(2 log N) root mean squares; for large N, the next
    terms are -(log log N + log 4 pi)/(2 b) and 0.577/b."""
    random, m = np.random.default_rng(mc.seed), 256
    corners = np.eye(8) - 1.0 / 8  # rows from the center of a simplex to its corners
    pair = random.standard_normal((2, 7))
    yield claimed("bound / error, two rows", 1.0, exact=1.0, measured=slack(pair))
    yield claimed("bound / error, simplex", 1.0, exact=1.0, measured=slack(corners))

    def draw(random: Generator) -> dict[str, float]:
        return {"slack": slack(random.standard_normal((m, m)))}

    found = mc.tally("slack", each(draw), samples=100, cost=50_000, block=1).mean("slack")
    log_n = math.log(m * (m - 1))
    b = math.sqrt(2.0 * log_n)
    limit = b - (math.log(log_n) + math.log(4.0 * math.pi) - 2.0 * 0.5772) / (2.0 * b)
    yield beside(
        f"bound / error, {m} random rows",
        exact=limit,
        measured=found,
        tolerance=0.02 * limit,  # of order 1/log N
    )
    return f"for equiangular rows; a random {m} x {m} layer is {found.mean:.1f} times below it"


@normprop(
    "C08",
    "3.2",
    "The covariance of incoherent filters is approximately canonical.",
    expected="does not hold as stated",
)
def approximately_canonical(mc: Sampler) -> Findings:
    """Two random rows of n inputs have a cosine of mean square 1/n, which is small. But m units
    have m (m - 1) pairs, and only m entries on the diagonal. So what is off the diagonal, relative
    to the whole covariance in Frobenius norm, is sqrt((m - 1)/(n + m - 1)): 0.71 for a square
    layer, and small only for m << n."""
    n = 256

    def draw(random: Generator, m: int) -> dict[str, float]:
        layer = random_layer(random, m, n, activation="identity", gamma=1.0)
        slopes = whole_jacobian(layer, gaussian(random, n))
        covariance = slopes @ slopes.T
        return {"off the diagonal": float((covariance**2).sum()) / m - 1.0}

    def relative_error(tally: Tally) -> Estimate:
        return tally.function(
            lambda mean: math.sqrt(mean["off the diagonal"] / (1.0 + mean["off the diagonal"]))
        )

    exact, found = {}, {}
    for m, samples in ((256, 12), (8, 1000)):
        tally = mc.tally(
            f"canonical {m}",
            each(partial(draw, m=m)),
            samples,
            cost=200 * m,
            block=1,
            watch=relative_error,
        )
        exact[m], found[m] = math.sqrt((m - 1) / (n + m - 1)), relative_error(tally)
    yield claimed("relative error, 256 x 256", 0.0, exact=exact[256], measured=found[256])
    yield beside("relative error, 8 x 256", exact=exact[8], measured=found[8])
    return f"many small cosines add up; for m << n it is true: {exact[8]:.2f} at 8 x 256"


@normprop(
    "C09",
    "Appendix A",
    "Line 4 of the proof: the off-diagonal part is at most sum mu^2 |W_i|^2 |W_j|^2.",
    expected="does not hold as stated",
)
def proof_line(mc: Sampler) -> Findings:
    """W has the rows W_i, mu is the largest absolute cosine of two of them, and sigma^2 the
    variance of an input. The left side is that of sigma^2 W W^T, squared, so the sum on the right
    needs the factor sigma^4, which is not there. With two rows, the ratio of both sides is exactly
    sigma^4."""
    variance, weights = 2.0, np.random.default_rng(mc.seed).standard_normal((2, 5))
    left, right = error_and_bound(covariance_of(weights, math.sqrt(variance)))
    printed = (right / variance) ** 2
    yield claimed(
        "left / right side, sigma^2 = 2",
        at_most(1.0),
        exact=variance**2,
        measured=left**2 / printed,
    )
    yield beside("left / right side with sigma^4", exact=1.0, measured=left**2 / right**2)
    return "sigma^4 is missing there, and back in the last line: a slip without consequence"


@normprop(
    "C10",
    "3.4",
    "The covariance is sigma W~ W~^T, and the indicator of active units is in R^n.",
    expected="does not hold as stated",
)
def slips(mc: Sampler) -> Findings:
    """For inputs of covariance sigma^2 I and unit rows W~, the covariance is sigma^2 W~ W~^T, not
    sigma W~ W~^T. The indicator has an entry for each of the m units, so it is in R^m, not in R^n.
    """
    sigma, units, inputs = 2.0, 3, 5
    layer = layer_with(np.eye(units, inputs), activation="identity", gamma=1.0)

    def draw(random: Generator, count: int) -> Tensor:
        return layer(sigma * gaussian(random, count, inputs))[:, 0]

    found = mc.tally("sigma", draw, samples=1_000_000, watch=Tally.variance)
    yield claimed("Var u, sigma = 2", sigma, exact=sigma**2, measured=found.variance())
    entries = jacobian(F.relu, layer(tensor(np.ones(inputs, np.float32)))).shape[0]
    yield claimed(
        f"entries of the indicator, {units} units of {inputs} inputs",
        inputs,
        exact=units,
        measured=entries,
    )
    return "sigma^2, and R^m; no harm at sigma = 1, the case that the paper goes on with"


def patch_covariance(size: int, channels: int, neighbors: float, across: float) -> HostArray:
    """Pixels of a patch: correlation neighbors^(dx + dy) in a channel, times `across` between
    channels."""
    line = neighbors ** np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
    return np.kron(np.where(np.eye(channels) > 0, 1.0, across), np.kron(line, line))


@normprop(
    "C11",
    "3.2",
    "With each input coordinate normalised, each pre-activation w.x/|w| has variance 1.",
    expected="in expectation only",
)
def first_layer(mc: Sampler) -> Findings:
    """Var u = w^T C w / |w|^2, with C the correlation matrix of the n inputs, lies between the
    smallest and the largest eigenvalue of C. Over random directions of w the mean is tr C/n = 1,
    and the variance 2 (tr C^2 - n)/(n (n + 2)), which is 0 only if C = I. A blur filter, which adds
    up all pixels, has the sum of all entries of C, over n."""
    size, channels, neighbors = 5, 3, 0.9
    covariance = patch_covariance(size, channels, neighbors, neighbors)
    n = len(covariance)
    scatter = math.sqrt(2.0 * (np.sum(covariance**2) - n) / (n * (n + 2.0)))

    def variances(layer: NormPropLinear) -> HostArray:
        """Var u of each unit."""
        slopes = whole_jacobian(layer, tensor(np.zeros(n, np.float32)))
        return ((slopes @ covariance) * slopes).sum(axis=1)

    def draw(random: Generator, count: int) -> HostArray:
        return variances(random_layer(random, count, n, activation="identity", gamma=1.0))

    found = mc.tally("filters", draw, samples=100_000, cost=2, block=250)
    yield claimed(
        "Var u, mean over filters", 1.0, exact=1.0, measured=found.mean(), scatter=scatter
    )
    yield beside("Var u, standard deviation over filters", exact=scatter, measured=found.std())
    # the sum over pairs of pixels along one axis
    line = size + 2.0 * sum((size - i) * neighbors**i for i in range(1, size))
    exact = (line / size) ** 2 * (1.0 + (channels - 1.0) * neighbors)
    blur = layer_with(np.ones((1, n)), activation="identity", gamma=1.0)
    yield beside("Var u of a blur filter", exact=exact, measured=float(variances(blur)[0]))
    return (
        f"for pixels of correlation 0.9 a blur filter has {exact:.0f}; only random filters "
        "average to 1"
    )


@normprop(
    "C39",
    "5.2",
    "Preserved statistics of hidden units show that the canonical error bound is small.",
    expected="does not hold as stated",
)
def non_sequitur(mc: Sampler) -> Findings:
    """In a layer whose rows are all the same, each unit has mean 0 and variance 1, as preserved
    statistics ask for. But the coherence of the rows is 1, the worst."""
    layer = layer_with(np.ones((4, 6)), gamma=1.0)

    def draw(random: Generator, count: int) -> Tensor:
        return layer(gaussian(random, count, 6))[:, 0]

    out = layer(gaussian(np.random.default_rng(mc.seed), 1000, 6)).numpy()
    coherence = float(np.corrcoef(out.T)[0, 1])
    found = mc.tally("identical", draw, samples=2_000_000)
    yield claimed("coherence of units with mean 0, variance 1", 0.0, exact=1.0, measured=coherence)
    yield claimed("Var o of such a unit", 1.0, exact=1.0, measured=found.variance())
    yield claimed("E o of such a unit", 0.0, exact=0.0, measured=found.mean())
    return "identical units have the worst coherence and keep mean 0 and variance 1 just as well"
