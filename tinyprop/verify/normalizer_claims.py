"""What other papers say of BatchNorm (N01 to N08), LayerNorm and RMSNorm (N13 to N15), tested
before training."""

import math
from functools import partial

import numpy as np

from .. import Tensor, grad, jacobian, moments, tensor
from .. import functional as F
from ..engine.arrays import Array
from ..functional.activation import activations
from ..nn import Activation, BatchNorm, LayerNorm, Module, ReLU, RMSNorm, Sequential
from ..report.estimate import Estimate
from ..theory.gains import batch_norm_gain, norm_gain
from . import closed_forms
from .case import Case, all_ones, computed, is_not_zero, is_zero, shown
from .closed_forms import C2, CHI, JACOBIAN_FACTOR, arc_cosine
from .jacobian_claims import nonzero
from .ledger import Findings, claim
from .monte_carlo import Sampler, each
from .networks import batch, dense, gaussian, largest_difference, network_tally, orthogonal_samples
from .paper import JACOBIAN_FACTOR as PRINTED_FACTOR

batchnorm, layernorm = partial(claim, family="batchnorm"), partial(claim, family="layernorm")


@batchnorm(
    "N01",
    "Ioffe and Szegedy (2015), 3.3",
    "BatchNorm does not see the scale of weights: BN((aW)u) = BN(Wu).",
    expected="holds",
)
def scale_of_weights(mc: Sampler) -> Findings:
    """W are the weights of a layer, u its input and a > 0. BN(x) = (x - m)/sqrt(v + eps) with the
    mean m and variance v of x over the mini-batch: a multiplies x, m and sqrt(v), and cancels, if
    eps = 0. With eps, BN((aW)u) is BN(Wu) times sqrt((v + eps)/(v + eps/a^2)). A negative a turns
    the sign."""
    random, a, eps = np.random.default_rng(mc.seed), 3.0, 0.1
    u = batch(random, 16, 6) @ batch(random, 6, 5)
    exact, softened = (BatchNorm(5, eps=e).to(dtype="float64") for e in (0.0, eps))
    yield is_zero("largest change of the output, a = 3", largest_difference(exact(a * u), exact(u)))
    yield is_zero("the same, a = -1, sign turned", largest_difference(exact(-u), -exact(u)))
    v = float(u.numpy()[:, 0].var())
    ratio = (softened(a * u) / softened(u)).numpy()[0, 0]
    yield shown(
        "ratio of both for one unit, eps = 0.1", math.sqrt((v + eps) / (v + eps / a**2)), ratio
    )
    return "the scale cancels; eps lets a little of it through, and a sign is seen"


@batchnorm(
    "N02",
    "Ioffe and Szegedy (2015), 3.3",
    "Larger weights get smaller gradients: d/d(aW) = (1/a) d/dW.",
    expected="holds",
)
def smaller_gradients(mc: Sampler) -> Findings:
    """By N01 the loss, as a function of the weights W, is the same at aW. Differentiate by W: its
    gradient at aW is 1/a of that at W. Differentiate by a at a = 1: each row w of W is orthogonal
    to its gradient. The gradient by the layer's input u does not change, as W u is multiplied by a,
    and its gradient by 1/a."""
    random, a = np.random.default_rng(mc.seed), 3.0
    x, first, weights, norm = (
        batch(random, 16, 6),
        batch(random, 5, 6),
        batch(random, 16, 5),
        BatchNorm(5, eps=0.0),
    )

    def gradients(scale: float) -> list[Tensor]:
        w, u = tensor(scale * first.numpy(), requires_grad=True), Tensor(x.data, requires_grad=True)
        return list(grad((norm.to(dtype="float64")(F.linear(u, w)) * weights).sum(), [w, u]))

    (of_w, of_u), (of_aw, of_same_u) = gradients(1.0), gradients(a)
    ratio = float(np.linalg.norm(of_aw.numpy()) / np.linalg.norm(of_w.numpy()))
    yield Case("size of the gradient at 3 W over that at W", 1.0 / a, 1.0 / a, computed(ratio))
    yield is_zero("largest change of 3 times it", largest_difference(a * of_aw, of_w))
    yield is_zero("largest w . gradient of w", abs((first * of_w).sum(axis=1).numpy()).max())
    yield is_zero("largest change of the gradient of u", largest_difference(of_same_u, of_u))
    return "so weights can only grow under plain gradient descent, and slow themselves down"


@batchnorm(
    "N03",
    "Ioffe and Szegedy (2015), 3.3",
    "BatchNorm may bring singular values of Jacobians close to 1.",
    expected="does not hold as stated",
)
def conjecture(mc: Sampler) -> Findings:
    """A conjecture, for the map y -> BN(W ReLU(y)) between normalised inputs of consecutive layers.
    If y is N(0, 1) and the batch large, BN divides by c1 |w|, with c1 the standard deviation of
    ReLU(Z), Z ~ N(0, 1), and w a row of W: the Jacobian of one sample is that of a NormProp layer.
    Half of its columns are 0, and the other singular values fill (1/c1) [1 - sqrt(1/2), 1 +
    sqrt(1/2)]; their root mean square with the zeros is sqrt(pi/(pi - 1)) = 1.2112."""
    width, samples = 96, 256
    low, high = closed_forms.spectrum_edges(1, 1)

    def draw(random: np.random.Generator) -> list[float]:
        layer, rest = (
            Sequential(ReLU(), dense(random, width), BatchNorm(width)),
            gaussian(random, samples - 1, width),
        )
        own = jacobian(
            lambda y: layer(F.concatenate([y.reshape(1, width), rest]))[0], gaussian(random, width)
        )
        values = np.linalg.svd(own.numpy().astype(np.float64), compute_uv=False)
        some = nonzero(values)
        return [(values**2).mean(), 1.0 - len(some) / width, some[0], some[-1]]

    tally = mc.tally("batch norm spectrum", each(draw), samples=32, cost=10**5, block=1)
    yield Case(
        "root mean square of singular values",
        1.0,
        JACOBIAN_FACTOR,
        tally.power(0.5),
        finite_size=0.02,
    )
    yield Case("fraction of them that is 0", 0.0, 0.5, tally.mean(1), finite_size=0.02)
    yield Case("largest", 1.0, high, tally.mean(2), finite_size=0.06)
    yield Case("smallest but 0", 1.0, low, tally.mean(3), finite_size=0.2)
    return (
        f"half are 0, the others {low:.2f} to {high:.2f}, and their root mean square is "
        f"{JACOBIAN_FACTOR:.2f}"
    )


@batchnorm(
    "N04",
    "Ioffe and Szegedy (2015), 3",
    "The statistics of a mini-batch stand for those of all data.",
    expected="approximate",
)
def small_batches(mc: Sampler) -> Findings:
    """Normalised over a batch of B, the values y of a Gaussian unit are uniform on the sphere of
    mean square 1 in the B
    - 1 dimensions in which they sum to 0. So E ReLU(y) = sqrt(B - 1) Gamma((B - 1)/2)/(2 sqrt(pi)
    Gamma(B/2)), Gamma the gamma function: that of all data, 1/sqrt(2 pi), only as B grows."""
    exact = {size: closed_forms.sphere_relu_mean(size - 1) for size in (32, 8, 4)}

    def draw(random: np.random.Generator, count: int, size: int) -> Array:
        return F.relu(BatchNorm(count, eps=0.0)(gaussian(random, size, count))).mean(axis=0).data

    for size, mean in exact.items():
        tally = mc.tally(
            f"batch of {size}", partial(draw, size=size), samples=60_000, block=1 << 12
        )
        yield Case(f"E ReLU(BN), batch of {size}", C2, mean, tally.mean())
    off = [mean / C2 - 1.0 for mean in exact.values()]
    return f"{off[0]:.1%} off with 32 samples, {off[1]:.1%} with 8, {off[2]:.1%} with 4"


def batch_gain(
    mc: Sampler, activation: str, size: int, samples: int, power: float = 1.0
) -> Estimate:
    """The gain of a centred gradient, in the mean square to a power, in a layer s(BN(Wx)) of width
    n at orthogonal samples: over the variance of the outputs in the batch, and over 1 - 2/n."""
    width = max(32, size)

    def build(random: np.random.Generator) -> tuple[Module, Tensor]:
        layer = Sequential(dense(random, width), BatchNorm(width, eps=0.0), Activation(activation))
        return layer, orthogonal_samples(random, size, width)

    tally = network_tally(
        mc, f"batch gain {activation} {size}", build, samples, cost=100, block=10, centered=True
    )
    return tally.function(lambda means: float(means[0] / (1.0 - 2.0 / width) / means[3]) ** power)


BATCHES = ((8, 1200), (64, 200))  # and how many layers of each are drawn


@batchnorm(
    "N05",
    "Yang et al. (2019)",
    "BatchNorm in a linear network multiplies gradients by (B - 2)/(B - 3).",
    expected="holds",
)
def linear_batch_norm(mc: Sampler) -> Findings:
    """In mean square, for batches of B. The gradient by u = W x loses its mean over the batch and
    its part along u, so B - 2 of the B - 1 centred directions remain, and is divided by the
    standard deviation of u over the batch: 1/v for v ~ chi^2/B of B - 1 degrees of freedom has the
    mean B/(B - 3). Random weights W make samples orthogonal (N08). Then this is exact at any width
    n, up to a factor 1 - 2/n, which the measurement is divided by."""
    for size, samples in BATCHES:
        exact, estimate = (
            batch_norm_gain(size, "identity"),
            batch_gain(mc, "identity", size, samples),
        )
        yield Case(f"mean-square gain, B = {size}", (size - 2.0) / (size - 3.0), exact, estimate)
    return "6/5 for a batch of 8, 62/61 for 64: infinite for 3 or fewer"


@batchnorm(
    "N06",
    "Yang et al. (2019)",
    "BatchNorm and ReLU multiply gradients by 1.21 for large batches B.",
    expected="holds",
)
def relu_batch_norm(mc: Sampler) -> Findings:
    """The values y of a unit in a batch of B are uniform on a sphere (N04). With D = diag ReLU'(y),
    G the projection on what is centred over the batch and P on what is also orthogonal to y, the
    mean-square gain of the gradient is B/((B
    - 3)(B - 1)) E tr(D G D P) over the variance of ReLU(y) in the batch. As B grows, it falls to
    pi/(pi - 1) = 1.467, and its root to 1.21: NormProp's number (C12), as the batch's statistics
    become those of all data."""
    limit = math.sqrt(batch_norm_gain(10**6))
    yield Case("gain in size, B = 10^6", PRINTED_FACTOR, limit, rounding=0.005)
    for size, samples in BATCHES:
        estimate = batch_gain(mc, "relu", size, samples, power=0.5)
        yield shown(f"gain in size, B = {size}", math.sqrt(batch_norm_gain(size)), estimate)
    width, size, depth = 192, 32, 5

    def build(random: np.random.Generator) -> tuple[Module, Tensor]:
        layers = [(ReLU(), dense(random, width), BatchNorm(width, eps=0.0)) for _ in range(depth)]
        return Sequential(*sum(layers, ())), BatchNorm(width, eps=0.0)(
            gaussian(random, size, width)
        ).detach()

    deep = network_tally(mc, "deep batch norm", build, samples=24, centered=True).power(0.5 / depth)
    what, exact = (
        f"gain in size a layer, {depth} layers, B = {size}",
        math.sqrt(batch_norm_gain(size)),
    )
    yield shown(what, exact, deep, finite_size=0.02)
    return (
        f"in the limit; {math.sqrt(batch_norm_gain(8)):.3f} for a batch of 8. After 50 layers it "
        f"is {limit**50:,.0f}"
    )


@batchnorm(
    "N07",
    "Yang et al. (2019), abstract",
    "No activation keeps BatchNorm from exploding gradients.",
    expected="holds",
)
def no_activation_helps(mc: Sampler) -> Findings:
    """For large batches the mean-square gain of a layer is chi = E s'(Z)^2/Var s(Z), with s the
    activation and Z ~ N(0, 1): BatchNorm removes mean and variance of s, whatever they are. chi is
    the mean degree of s in Hermite polynomials (G3): at least 1, and 1 for a line only. Small
    batches add to it, by the integral of N06 for this s."""
    chi = {name: float(moments.gaussian(name).jacobian_factor ** 2) for name in activations}
    yield Case(
        "least gain of all activations, large batches", 1.0, min(chi.values()), relation="at least"
    )
    size, names = 16, ("tanh", "erf", "gelu", "relu")
    for name in names:
        estimate = batch_gain(mc, name, size, samples=400)
        yield Case(
            f"gain of {name}, B = {size}",
            1.0,
            batch_norm_gain(size, name),
            estimate,
            relation="at least",
        )
    ratios = [batch_norm_gain(10**6, name) / chi[name] for name in names]
    yield all_ones("gain at B = 10^6 over chi, these four", ratios, tolerance=1e-5)
    return (
        f"{chi['tanh']:.3f} for tanh, {chi['gelu']:.3f} for GELU, {chi['relu']:.3f} for ReLU; 1 "
        "for a line only"
    )


@batchnorm(
    "N08",
    "Daneshmand et al. (2020); Yang et al. (2019)",
    "BatchNorm drives the samples of a batch apart.",
    expected="holds",
)
def orthogonal(mc: Sampler) -> Findings:
    """However alike the samples start, with depth the pre-activations of any two samples in a batch
    of B get the correlation -1/(B - 1), which is that of independent samples minus their mean.
    After ReLU their cosine is 2 k(-1/(B
    - 1)), with k the arc-cosine kernel of degree 1. Without BatchNorm, He's weights drive the
    cosine to 1 instead."""
    width, size, depth, alike = 128, 8, 30, 0.9
    exact = 2.0 * arc_cosine(-1.0 / (size - 1))

    def network(random: np.random.Generator, *norm: Module) -> Module:
        return Sequential(
            *sum(((dense(random, width, 2.0), *norm, ReLU()) for _ in range(depth)), ())
        )

    def mean_cosine(x: Tensor) -> float:
        h = x.numpy().astype(np.float64)
        total = (h * h).sum()
        return float(((h.sum(axis=0) ** 2).sum() - total) / ((size - 1) * total))

    def draw(random: np.random.Generator) -> list[float]:
        x = math.sqrt(alike) * gaussian(random, 1, width) + math.sqrt(1.0 - alike) * gaussian(
            random, size, width
        )
        with_norm, without = network(random, BatchNorm(width, eps=0.0)), network(random)
        return [mean_cosine(out) for out in (x, with_norm(x), without(x))]

    tally = mc.tally("apart", each(draw), samples=24, cost=10**5, block=1)
    what = f"mean cosine, layer {depth}, B = {size}"
    yield Case(what, exact, exact, tally.mean(1), finite_size=0.03, rounding=0.03 * exact)
    yield shown("the same of the inputs", alike, tally.mean(0), 0.02)
    without = alike
    for _ in range(depth):
        without = 2.0 * arc_cosine(without)
    yield shown("the same without BatchNorm, He's weights", without, tally.mean(2), 0.04)
    return f"from {alike:g} to {exact:.3f}, as of independent samples; 1/pi for large batches"


def pair(random: np.random.Generator, width: int, cosine: float) -> Tensor:
    """Two samples of exactly this cosine, and mean square 1."""
    x = orthogonal_samples(random, 2, width).numpy()
    return tensor(np.stack([x[0], cosine * x[0] + math.sqrt(1.0 - cosine**2) * x[1]]))


@layernorm(
    "N13",
    "Ba et al. (2016), Table 1",
    "LayerNorm sees neither scale nor shift of all weights, nor a sample's scale.",
    expected="holds",
)
def layer_invariances(mc: Sampler) -> Findings:
    """LN(u) = (u - m)/sqrt(v) with m and v the mean and variance over the units of one sample; u =
    W x. W times a number, one vector added to all rows of W, and x times a number multiply u, or
    add the same to all units: nothing is left of it. One row times a number, or a constant added to
    all inputs x, changes u unit by unit, and is seen."""
    random = np.random.default_rng(mc.seed)
    x, w, norm = batch(random, 9, 6), batch(random, 8, 6), LayerNorm(8, eps=0.0).to(dtype="float64")
    before, one_row = norm(F.linear(x, w)), tensor(np.where(np.arange(8)[:, None] == 0, 3.0, 1.0))
    unseen = {
        "all weights times 3": (x, 3.0 * w),
        "a vector added to all rows": (x, w + batch(random, 1, 6)),
    }
    for what, changed in (unseen | {"a sample times 3": (3.0 * x, w)}).items():
        yield is_zero(
            f"{what}: largest change", largest_difference(norm(F.linear(*changed)), before)
        )
    for what, changed in {
        "one row times 3": (x, one_row * w),
        "1 added to all inputs": (x + 1.0, w),
    }.items():
        yield is_not_zero(
            f"{what}: largest change", largest_difference(norm(F.linear(*changed)), before)
        )
    u, found = F.linear(x, w).numpy()[0], before.numpy()[0, 0]
    yield shown(
        "the first number of LN(u), and by its formula", (u[0] - u.mean()) / u.std(), float(found)
    )
    return "as the table has it: three changes leave no trace, two do"


def layer_gain(mc: Sampler, parts: list[Module], width: int, mean_square: float) -> Estimate:
    """Of one linear layer and these parts: the gain, over samples in all orthogonal directions of
    this mean square."""

    def build(random: np.random.Generator) -> tuple[Module, Tensor]:
        x = orthogonal_samples(random, width, width, mean_square)
        return Sequential(dense(random, width), *parts), x

    return network_tally(mc, f"layer gain {parts}", build, samples=100, cost=1000, block=5).mean()


@layernorm(
    "N14",
    "after Ba et al. (2016)",
    "LayerNorm keeps gradients of ReLU layers stable, wherever it stands.",
    expected="does not hold as stated",
)
def where_it_stands(mc: Sampler) -> Findings:
    """Before ReLU, u is normalised and half of the units are on: the mean-square gain is (n - 1)(n
    - 2)/(n (n - 3)) for n units and inputs of mean square 1/2, as ReLU leaves them. Behind ReLU,
    LayerNorm removes the mean that ReLU makes and divides by the standard deviation c1 of the rest:
    the gain is 1/(2 c1^2) = pi/(pi - 1) = 1.467."""
    width, wide = 32, 128
    before = layer_gain(mc, [LayerNorm(width, eps=0.0), ReLU()], width, 0.5)
    after = layer_gain(mc, [ReLU(), LayerNorm(wide, eps=0.0)], wide, 1.0)
    yield Case(
        f"gain, LayerNorm before ReLU, n = {width}", 1.0, norm_gain(width), before, rounding=0.005
    )
    yield Case(f"gain, LayerNorm behind ReLU, n = {wide}", 1.0, CHI, after, finite_size=0.03)
    return (
        f"{norm_gain(width):.3f} before ReLU, but {CHI:.3f} behind it: {CHI**9:.0f} after 9 layers"
    )


@layernorm(
    "N15",
    "Zhang and Sennrich (2019)",
    "Re-centring is dispensable: RMSNorm does what LayerNorm does.",
    expected="holds",
)
def without_centering(mc: Sampler) -> Findings:
    """RMSNorm divides the units of a sample by their root mean square, and leaves their mean. With
    random weights that mean is small, of order 1/sqrt(n) for n units: before ReLU, the mean-square
    gain is (n - 1)^2/(n (n - 2)), and 1 for wide layers as LayerNorm's. The cosine of two samples
    goes from rho to 2 k(rho) in both, k the arc-cosine kernel of degree 1. What differs: RMSNorm
    sees it if the same number is added to all units."""
    width, wide, rho = 32, 256, 0.5
    gain = layer_gain(mc, [RMSNorm(width, eps=0.0), ReLU()], width, 0.5)
    yield Case(
        f"gain, RMSNorm before ReLU, n = {width}",
        1.0,
        norm_gain(width, center=False),
        gain,
        rounding=0.005,
    )
    exact = 2.0 * arc_cosine(rho)

    def draw(random: np.random.Generator, norm: Module) -> tuple[float, float]:
        a, b = F.relu(norm(dense(random, wide)(pair(random, wide, rho)))).numpy()
        return float(a @ b), float(a @ a + b @ b) / 2.0

    for name, norm in (("RMSNorm", RMSNorm(wide)), ("LayerNorm", LayerNorm(wide))):
        tally = mc.tally(
            f"cosine {name}", each(partial(draw, norm=norm)), samples=80, cost=5000, block=4
        )
        what, cosine = (
            f"cosine behind ReLU, {name}, before {rho:g}",
            tally.function(lambda means: means[0] / means[1]),
        )
        yield Case(what, exact, exact, cosine, finite_size=0.01, rounding=0.01)
    u, rms = batch(np.random.default_rng(mc.seed), 9, 8), RMSNorm(8).to(dtype="float64")
    yield is_not_zero(
        "1 added to all units: largest change of RMSNorm", largest_difference(rms(u + 1.0), rms(u))
    )
    return f"before training: both keep the gradient, and take a cosine of {rho:g} to {exact:.3f}"
