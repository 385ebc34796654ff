"""Claims on convolutional networks: pooling, padding, and the paper's architecture."""

import math
from functools import partial

import numpy as np

from .. import functional as F
from .. import grad, manual_seed, no_grad, plain, tensor
from ..engine.arrays import Array, HostArray, to_numpy
from ..nn import NIN, AvgPool2d, MaxPool2d, Module, NormPropConv2d, build
from .case import Case, all_ones, computed, is_zero, shown
from .closed_forms import C1, C2, avg_pool_std, max_pool
from .ledger import Findings, claim
from .monte_carlo import Sampler, Tally, Watch
from .networks import difference_ratio, gaussian, whole_jacobian

normprop = partial(claim, family="normprop")

WINDOW = 9
CORRELATIONS = (0.9, 0.5, 0.99)


def pooled_tally(mc: Sampler, pool: Module, rho: float, watch: Watch = Tally.mean) -> Tally:
    """The first window of a pool over 3 x 3 normalised units whose pre-activations have correlation
    rho."""
    layer = NormPropConv2d(1, 1, 1, gamma=1.0)
    layer.weight.data[...] = 1.0

    def draw(random: np.random.Generator, count: int) -> Array:
        own, common = gaussian(random, count, 1, 3, 3), gaussian(random, count, 1, 1, 1)
        with no_grad():
            pooled = pool(layer(own * math.sqrt(1.0 - rho) + common * math.sqrt(rho))).data
            return pooled[:, 0, 0, 0]  # of a padded pool, the window at a corner

    return mc.tally(
        f"{pool!r} {rho}", draw, samples=60_000, cost=WINDOW + 1, block=4096, watch=watch
    )


@normprop(
    "C23",
    "3.2",
    (
        "Max-pooling does not affect the statistics significantly, as the pooled units are "
        "correlated."
    ),
    expected="does not hold as stated",
)
def max_pooling(mc: Sampler) -> Findings:
    """If the pre-activations of k units have correlation rho, the largest of the units is
    ReLU(sqrt(rho) Z + sqrt(1 - rho) M), with Z normal and M the largest of k independent normals:
    an integral over M. For k = 9 and small 1 - rho the mean shifts by 1.27 sqrt(1 - rho), 0.13
    standard deviations even at 0.99. At a corner of a padded map k is 4."""
    for rho in CORRELATIONS:
        tally, (mean, std) = pooled_tally(mc, MaxPool2d(3), rho), max_pool(WINDOW, rho)
        yield Case(f"mean after max-pooling, rho = {rho:g}", 0.0, mean, tally.mean())
        yield Case(f"std after max-pooling, rho = {rho:g}", 1.0, std, tally.std())
    corner, (mean, std) = pooled_tally(mc, MaxPool2d(3, 2, 1), 0.5), max_pool(4, 0.5)
    yield shown("mean at a padded corner, rho = 0.5", mean, corner.mean())
    yield shown("std at a padded corner, rho = 0.5", std, corner.std())
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
    for rho in sorted(CORRELATIONS):
        tally = pooled_tally(mc, AvgPool2d(3), rho, Tally.std)
        yield Case(
            f"std after average-pooling, rho = {rho:g}", 1.0, avg_pool_std(WINDOW, rho), tally.std()
        )
        yield Case(f"mean after average-pooling, rho = {rho:g}", 0.0, 0.0, tally.mean())
    corner = pooled_tally(mc, AvgPool2d(3, 2, 1), 0.5, Tally.std).std()
    yield shown("std at a padded corner, rho = 0.5", avg_pool_std(4, 0.5) * 4 / WINDOW, corner)
    half, most = (avg_pool_std(WINDOW, rho) for rho in (0.5, 0.9))
    return f"the mean stays, the deviation falls to {half:.2f} at rho = 0.5, {most:.2f} at 0.9"


@normprop(
    "C25",
    "3.2",
    "If the pooled units were independent, mean and standard deviation would be different.",
    expected="holds",
)
def independent_units(mc: Sampler) -> Findings:
    """The max of 9 independent units is ReLU of the largest of 9 normals."""
    tally, (mean, std) = pooled_tally(mc, MaxPool2d(3), 0.0), max_pool(WINDOW, 0.0)
    raw = tally.function(lambda means: C1 * means[0] + C2)
    yield Case("E max of 9 rectified", C2, C1 * mean + C2, raw, "differs from")
    yield Case("std of the max, in c1", 1.0, std, tally.std(), judged=False)
    return (
        f"the max of 9 has mean {C1 * mean + C2:.3f} and deviation {C1 * std:.3f} instead of "
        f"{C2:.3f} and {C1:.3f}"
    )


@normprop(
    "C40", "5", "The nine-layer architecture fits together for images of 32 x 32.", expected="holds"
)
def architecture(mc: Sampler) -> Findings:
    """A window of size k, stride s and padding p turns a map of size L into (L + 2p - k)/s + 1,
    rounded down."""
    random, network = np.random.default_rng(mc.seed), build(NIN, width=0.05)
    x = [gaussian(random, 1, 3, 32, 32)]
    with no_grad():
        for layer in network:
            x.append(layer(x[-1]))
    *maps, classes = (out.shape[-1] for out in x[1:])
    wrong = sum(
        a != b for a, b in zip(maps, [32, 32, 16, 16, 16, 16, 8, 8, 4, 8, 8, 1], strict=True)
    )
    variants = (
        ("normprop", "relu"),
        ("normprop-exact", "prelu"),
        ("normprop-exact", "gelu"),
        ("batch", "relu"),
        ("none", "prelu"),
    )
    slopes = [_slope_ratio(random, norm, activation) for norm, activation in variants]
    yield Case("size of the last map", 1.0, 1.0, computed(maps[-1]))
    yield Case("classes", 10.0, 10.0, computed(classes))
    yield is_zero("maps of another size", wrong)
    yield all_ones("weights / those of its layers", [_weights_ratio(width) for width in (1.0, 0.5)])
    yield shown("bias of a new convolution", 0.0, abs(list(network.parameters())[-1].numpy()).max())
    for size in (5, 7):  # by Winograd tiles, and by Fourier transforms
        what = f"{size} x {size} filters, padding {size // 2}, against a sum"
        yield shown(what, 0.0, _conv_error(random, size), tolerance=1e-5)
    yield all_ones("slope of the loss / difference quotient", slopes, tolerance=1e-4)
    yield shown(
        "gradients in float32 and in float64, difference",
        0.0,
        _kernel_error(random),
        tolerance=0.03,
    )
    return f"sizes {', '.join(map(str, maps))}"


def _weights_ratio(width: float) -> float:
    """The weights of the paper's network of this width, by those of its nine layers, one by one."""
    c = [3, *(width * filters for filters in (192, 160, 96, 192, 192, 192, 192, 192)), 10]
    sizes = (5, 1, 1, 5, 1, 1, 5, 1, 1)
    # the default width is tested, too
    network = build(NIN) if width == 1.0 else build(NIN, width=width)
    found = sum(p.size for p in network.parameters() if p.ndim == 4)
    return found / sum(a * b * k * k for a, b, k in zip(c, c[1:], sizes, strict=False))


SMALL = "C(6,5,1,2)-C(5,1,1,0)-P(3,2,1,max)-C(4,3,2,1)-P(3,2,1,avg)-C(3,1,1,1)-P(3,3,0,avg)"


def _slope_ratio(random: np.random.Generator, norm: str, activation: str) -> float:
    """The slope of a small network's loss, along a random change of all parameters, over the
    difference quotient."""
    network = build(SMALL, norm=norm, activation=activation).to(dtype="float64")
    for parameter in network.parameters():
        parameter.data += 0.1 * tensor(random.standard_normal(parameter.shape)).data
    x, labels = (
        tensor(random.standard_normal((4, 3, 8, 8)), requires_grad=True),
        random.integers(0, 3, 4),
    )
    points = [x, *network.parameters()]
    return difference_ratio(lambda: F.cross_entropy(network(x), labels), points, random)


def _conv_error(random: np.random.Generator, size: int) -> float:
    """The largest difference between a layer of the engine in float32 and the sum that defines a
    convolution."""
    x, w, side = (
        random.standard_normal((4, 16, 9, 9)),
        random.standard_normal((16, 16, size, size)),
        size // 2,
    )
    padded = np.pad(x, ((0, 0), (0, 0), (side, side), (side, side)))
    views = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(2, 3))
    out = F.conv2d(tensor(x.astype(np.float32)), tensor(w.astype(np.float32)), padding=side).numpy()
    error = abs(out - np.einsum("nchwij,ocij->nohw", views, w, optimize=True)).max()
    return float(error) / (4.0 * size)  # of their size


def _kernel_error(random: np.random.Generator) -> float:
    """The relative error of a gradient of the paper's network in float32; rounding moves some units
    across a kink."""
    manual_seed(int(random.integers(2**32)))
    errors = []
    for norm in ("normprop", "batch"):
        network = build(NIN, norm=norm, width=0.1)
        images, labels = gaussian(random, 32, 3, 32, 32), random.integers(0, 10, 32)
        fast = grad(F.cross_entropy(network(images), labels), list(network.parameters()))
        with plain():
            network, images = network.to(dtype="float64"), images.astype("float64")
            slow = grad(F.cross_entropy(network(images), labels), list(network.parameters()))
        a, b = (
            np.concatenate([slope.numpy().ravel() for slope in slopes]) for slopes in (fast, slow)
        )
        errors.append(float(np.linalg.norm(a - b) / np.linalg.norm(b)))
    return max(errors)


@normprop(
    "C41",
    "3.3, 5",
    "In the nine-layer architecture, the input of the last layer is canonical.",
    expected="does not hold as stated",
)
def padded_border(mc: Sampler) -> Findings:
    """This is about a probable misprint: the paper's C(192,5,1,0)-C(192,1,1,2) pads a 1 x 1 filter,
    and may stand for C(192,5,1,2)-C(192,1,1,0). As printed, C(192,1,1,2) pads 4 x 4 to 8 x 8. A 1 x
    1 filter sees only zeros in the 48 new pixels, which become the constant (ReLU(0) - c2)/c1 =
    -0.683, with c1 and c2 the standard deviation and mean of ReLU(Z), Z ~ N(0, 1): the mean over
    the map is 48/64 of that. And where a 5 x 5 filter with padding 2 meets zeros, Var u is the
    fraction of it inside."""
    inside, side = 4, 8
    new = 1.0 - inside**2 / side**2
    layer = NormPropConv2d(16, 4, 1, padding=2, gamma=1.0)
    layer.weight.data = gaussian(np.random.default_rng(mc.seed), *layer.weight.shape).data

    def draw(random: np.random.Generator, count: int) -> HostArray:
        with no_grad():
            out = layer(gaussian(random, count, 16, inside, inside)).numpy()
        return np.array([out.mean(axis=(1, 2, 3)), (out**2).mean(axis=(1, 2, 3))])

    tally = mc.tally("border", draw, samples=4_000, cost=256, block=100)
    first = NormPropConv2d(3, 1, 5, padding=2, activation="identity", gamma=1.0)
    first.weight.data[...] = 1.0
    slopes = whole_jacobian(
        lambda x: first(x.reshape(-1, 3, 16, 16)), gaussian(np.random.default_rng(0), 3 * 16 * 16)
    )
    variances = to_numpy(slopes**2).sum(axis=1)  # of each place, for pixels of variance 1
    # inside the map, along one axis, averaged over places
    of_filter = (12 * 5 + 2 * (4 + 3)) / (16 * 5)
    yield Case("mean over the map", 0.0, -new * C2 / C1, tally.mean(0))
    yield Case("second moment over the map", 1.0, 1.0 - new + new * (C2 / C1) ** 2, tally.mean(1))
    what = "Var u over a map of 16 x 16, 5 x 5 filters"
    yield Case(what, 1.0, of_filter**2, computed(variances.mean()), judged=False)
    yield Case("the same, at a corner", 1.0, (3 / 5) ** 2, computed(variances[0]), judged=False)
    constant = f"{-C2 / C1:.3f}"
    return f"as printed, probably a misprint, {new:.0%} of it is the constant {constant} of padding"


@normprop(
    "G5",
    "beyond 3.2",
    "Max-pooling of equally correlated units has exact constants.",
    expected="holds",
)
def pooling_constants(mc: Sampler) -> Findings:
    """An integral over the largest of k normals (C23). For units X, Y of correlation rho, th
    =arccos sqrt((1 - rho)/2), E max(0, X, Y) = (2 + sqrt(2 - 2 rho))/sqrt(8 pi) and E max(0, X,
    Y)^2 = 1 - th/pi + sin(2 th)/(2 pi)."""
    rho = 0.5
    (mean, std), (pair_mean, pair_std) = (max_pool(k, rho) for k in (WINDOW, 2))
    tally, raw = pooled_tally(mc, MaxPool2d(3), rho), C1 * pair_mean + C2
    th = math.acos(math.sqrt((1.0 - rho) / 2.0))
    closed = (2.0 + math.sqrt(2.0 * (1.0 - rho))) / (2.0 * math.sqrt(2.0 * math.pi))
    yield Case("mean after max-pooling, rho = 0.5", mean, mean, tally.mean())
    yield Case("std after max-pooling, rho = 0.5", std, std, tally.std())
    yield Case("E max(0, X, Y)", closed, raw)
    square = 1.0 - th / math.pi + math.sin(2.0 * th) / (2.0 * math.pi)
    yield Case("E max(0, X, Y)^2", square, (C1 * pair_std) ** 2 + raw**2)
    return (
        f"subtract {mean:.3f} and divide by {std:.3f} after a 3 x 3 pool at rho = 0.5, and it is "
        "normalised again"
    )
