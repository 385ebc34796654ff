"""What other papers say of BatchNorm (N01 to N08), LayerNorm and RMSNorm (N13 to N15), tested
before training.

To read a claim: its docstring derives the exact number, `draw` makes samples, and `mc.tally` keeps
their means, with error bars. `claimed` is a number that the claim states: it is compared with the
exact and the measured one, and judged; `beside` is only shown. `samples`, `cost` and `block` say
how much is drawn. `probe` sends a batch through a network, and a random gradient back: "gain" is
the mean-square gain of the gradient, "square" the mean square of the outputs. A `Stack` describes
random layers. A formula for infinitely wide layers is measured at two widths, and `limit_of` or
`infinite_width` extrapolates."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.random import Generator

from .. import Tensor, grad, moments, no_grad, tensor
from .. import functional as F
from ..engine.arrays import HostArray
from ..functional.activation import activations
from ..nn import Activation, BatchNorm, LayerNorm, Module, ReLU, RMSNorm, Sequential
from ..report.estimate import Estimate
from ..theory.gains import batch_norm_gain, norm_gain
from ..theory.stacks import Stack
from ..theory.wide import Wide
from . import closed_forms
from .case import as_derived, at_least, beside, claimed, other_than
from .closed_forms import C2, CHI, JACOBIAN_FACTOR, arc_cosine
from .jacobian_claims import edge_of_spectrum, nonzero
from .ledger import Findings, claim
from .limits import infinite_width, limit_of
from .monte_carlo import Sampler, each
from .networks import (
    EXACT_BATCH_NORM,
    batch,
    dense,
    gaussian,
    largest_difference,
    orthogonal_samples,
    probe,
    random_layers,
    random_network,
    singular_values,
)

batchnorm = partial(claim, family="batchnorm")
layernorm = partial(claim, family="layernorm")


@batchnorm(
    "N01",
    "Ioffe and Szegedy (2015), 3.3",
    "BatchNorm does not see the scale of weights: BN((aW)u) = BN(Wu).",
    expected="holds",
)
def scale_of_weights(mc: Sampler) -> Findings:
    """W are the weights of a layer, u its input, and a > 0. With the mean m and the variance v of x
    over the mini-batch, BN(x) = (x - m)/sqrt(v + eps). If eps = 0, a multiplies x, m and sqrt(v),
    and cancels. With eps, BN((aW)u) is BN(Wu) times sqrt((v + eps)/(v + eps/a^2)). A negative a
    flips the sign."""
    random, a, eps = np.random.default_rng(mc.seed), 3.0, 0.1
    u = batch(random, 16, 6) @ batch(random, 6, 5)
    bn = BatchNorm(5, eps=0.0).to(dtype="float64")
    scaled = largest_difference(bn(a * u), bn(u))
    yield claimed("largest change of the output, a = 3", 0.0, exact=0.0, measured=scaled)
    turned = largest_difference(bn(-u), -bn(u))
    yield claimed("the same, a = -1, sign turned", 0.0, exact=0.0, measured=turned)
    softened = BatchNorm(5, eps=eps).to(dtype="float64")
    v = float(u.numpy()[:, 0].var())
    yield beside(
        "ratio of both for one unit, eps = 0.1",
        exact=math.sqrt((v + eps) / (v + eps / a**2)),
        measured=(softened(a * u) / softened(u)).numpy()[0, 0],
    )
    return "the scale cancels; eps lets a little of it through, and a sign is seen"


@batchnorm(
    "N02",
    "Ioffe and Szegedy (2015), 3.3",
    "Larger weights get smaller gradients: d/d(aW) = (1/a) d/dW.",
    expected="holds",
)
def smaller_gradients(mc: Sampler) -> Findings:
    """By N01 the loss, as a function of the weights W, is the same at aW. So its gradient with
    respect to W is, at aW, 1/a of what it is at W; and the derivative along a is 0 at a = 1, so
    each row w of W is orthogonal to its gradient. The gradient with respect to the layer's input u
    stays the same, as W is multiplied by a, and the gradient after it by 1/a."""
    random, a = np.random.default_rng(mc.seed), 3.0
    x, weights, terms = batch(random, 16, 6), batch(random, 5, 6), batch(random, 16, 5)
    bn = BatchNorm(5, eps=0.0).to(dtype="float64")

    def gradients(scale: float) -> tuple[Tensor, Tensor]:
        """With respect to the weights, and to the input."""
        w = tensor(scale * weights.numpy(), requires_grad=True)
        u = Tensor(x.data, requires_grad=True)
        of_w, of_u = grad((bn(F.linear(u, w)) * terms).sum(), [w, u])
        return of_w, of_u

    (of_w, of_u), (of_aw, of_same_u) = gradients(1.0), gradients(a)
    ratio = float(np.linalg.norm(of_aw.numpy()) / np.linalg.norm(of_w.numpy()))
    yield claimed(
        "size of the gradient at 3 W over that at W", 1.0 / a, exact=1.0 / a, measured=ratio
    )
    difference = largest_difference(a * of_aw, of_w)
    yield claimed("largest change of 3 times it", 0.0, exact=0.0, measured=difference)
    along = abs((weights * of_w).sum(axis=1).numpy()).max()
    yield claimed("largest w . gradient of w", 0.0, exact=0.0, measured=along)
    difference = largest_difference(of_same_u, of_u)
    yield claimed("largest change of the gradient of u", 0.0, exact=0.0, measured=difference)
    return "so weights can only grow under plain gradient descent, and slow themselves down"


@batchnorm(
    "N03",
    "Ioffe and Szegedy (2015), 3.3",
    "BatchNorm may bring singular values of Jacobians close to 1.",
    expected="does not hold as stated",
)
def conjecture(mc: Sampler) -> Findings:
    """It is a conjecture, on the map y -> BN(W ReLU(y)) between normalised inputs of consecutive
    layers. If y is N(0, 1) and the batch is large, BN divides by c1 |w|, with c1 the standard
    deviation of ReLU(Z), Z ~ N(0, 1), and w a row of W. So the Jacobian of one sample is that of a
    NormProp layer: half of its columns are 0, and the other singular values fill (1/c1) [1 -
    sqrt(1/2), 1 + sqrt(1/2)]. With the zeros, their root mean square is sqrt(pi/(pi - 1)) = 1.2112.
    """

    def own_jacobian(y: Tensor, others: Tensor, weight: Tensor) -> HostArray:
        """The Jacobian of one sample, transposed. BatchNorm treats each unit by itself, so each
        gets a copy of the sample to itself: one backward pass differentiates all units."""
        copies = Tensor(y.data.repeat(len(weight), axis=0), requires_grad=True)  # (units, inputs)
        own = (F.relu(copies) * weight).sum(axis=1)
        with no_grad():
            rest = F.linear(F.relu(others), weight)
        out = BatchNorm(len(weight))(F.concatenate([own.reshape(1, -1), rest]))
        (found,) = grad(out[0].sum(), copies)
        return found.numpy().T

    def draw(random: Generator, width: int) -> dict[str, float]:
        """Averaged over a sample and its opposite, in the same batch of others."""
        weight = dense(random, width).weight
        others = gaussian(random, 8 * width - 1, width)
        y = gaussian(random, 1, width)
        found = []
        for sample in (y, -y):
            values = singular_values(own_jacobian(sample, others, weight))
            some = nonzero(values)
            found.append([(values**2).mean(), 1.0 - len(some) / width, some[0], some[-1]])
        names = ("square", "zero", "largest", "smallest")
        return dict(zip(names, np.mean(found, axis=0), strict=True))

    tallies = {}
    for width, layers in ((64, 600), (256, 160)):
        drawn = each(partial(draw, width=width))
        tallies[width] = mc.tally(f"batch norm spectrum {width}", drawn, layers, 10**5, 1)
    low, high = closed_forms.spectrum_edges(1, 1)
    yield claimed(
        "root mean square of singular values",
        1.0,
        exact=JACOBIAN_FACTOR,
        measured=limit_of(tallies, "square", power=0.5),
    )
    yield claimed(
        "fraction of them that is 0",
        0.0,
        exact=0.5,
        measured=limit_of(tallies, "zero"),
    )
    for what, exact in (("largest", high), ("smallest", low)):
        limit = edge_of_spectrum(tallies, what)
        what = "smallest but 0" if what == "smallest" else what
        yield claimed(what, 1.0, exact=exact, measured=limit)
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
    mean square 1 in the B - 1 dimensions in which they sum to 0. So E ReLU(y) = sqrt(B - 1)
    Gamma((B - 1)/2)/(2 sqrt(pi) Gamma(B/2)), Gamma the gamma function: that of all data, 1/sqrt(2
    pi), only as B grows."""
    exact = {size: closed_forms.sphere_relu_mean(size - 1) for size in (32, 8, 4)}

    def draw(random: Generator, count: int, size: int) -> Tensor:
        """Of `count` units, each over a batch of this size."""
        normalized = BatchNorm(count, eps=0.0)(gaussian(random, size, count))
        return F.relu(normalized).mean(axis=0)

    for size, mean in exact.items():
        drawn = partial(draw, size=size)
        found = mc.tally(f"batch of {size}", drawn, samples=60_000, block=1 << 12).mean()
        yield claimed(f"E ReLU(BN), batch of {size}", C2, exact=mean, measured=found)
    off = [mean / C2 - 1.0 for mean in exact.values()]
    return f"{off[0]:.1%} off with 32 samples, {off[1]:.1%} with 8, {off[2]:.1%} with 4"


def batch_gain(
    mc: Sampler, activation: str, size: int, layers: int, power: float = 1.0
) -> Estimate:
    """The mean-square gain, to a power, of a gradient that is centred over the batch, in a layer
    s(BN(Wx)) of width n at orthogonal samples: over the variance of the outputs in the batch, and
    over 1 - 2/n."""
    width = max(32, size)

    def draw(random: Generator) -> dict[str, float]:
        layer = Sequential(dense(random, width), BatchNorm(width, eps=0.0), Activation(activation))
        return probe(random, layer, orthogonal_samples(random, size, width), centered=True)

    def gain(mean: dict[str, float]) -> float:
        return (mean["gain"] / (1.0 - 2.0 / width) / mean["variance"]) ** power

    name = f"batch gain {activation} {size}"
    return mc.tally(name, each(draw), layers, cost=100, block=10).function(gain)


@batchnorm(
    "N05",
    "Yang et al. (2019)",
    "BatchNorm in a linear network multiplies gradients by (B - 2)/(B - 3).",
    expected="holds",
)
def linear_batch_norm(mc: Sampler) -> Findings:
    """In mean square, for batches of B. The gradient with respect to u = W x loses its mean over
    the batch and its part along u, so that B - 2 of the B - 1 centred directions remain. Then it is
    divided by the standard deviation of u over the batch: for v ~ chi^2/B of B - 1 degrees of
    freedom, 1/v has the mean B/(B - 3). As random weights W make samples orthogonal (N08), they are
    drawn so; then this is exact at any width n, up to a factor 1 - 2/n, by which the measurement is
    divided."""
    for size, layers in ((8, 2400), (64, 240)):
        yield claimed(
            f"mean-square gain, B = {size}",
            (size - 2.0) / (size - 3.0),
            exact=batch_norm_gain(size, "identity"),
            measured=batch_gain(mc, "identity", size, layers),
        )
    return "6/5 for a batch of 8, 62/61 for 64: infinite for 3 or fewer"


@batchnorm(
    "N06",
    "Yang et al. (2019)",
    "BatchNorm and ReLU multiply gradients by 1.21 for large batches B.",
    expected="holds",
)
def relu_batch_norm(mc: Sampler) -> Findings:
    """The values y of a unit in a batch of B are uniform on a sphere (N04). Let D = diag ReLU'(y),
    G the projection on what is centred over the batch, and P the projection on what is also
    orthogonal to y. The mean-square gain of the gradient is B/((B - 3)(B - 1)) E tr(D G D P), over
    the variance of ReLU(y) in the batch. As B grows, it falls to pi/(pi - 1) = 1.467, and its root
    to 1.21, NormProp's number (C12): the statistics of the batch become those of all data."""
    limit = math.sqrt(batch_norm_gain(10**6))
    yield claimed("gain in size, B = 10^6", "1.21", exact=limit)
    for size, layers in ((8, 1200), (64, 200)):
        yield beside(
            f"gain in size, B = {size}",
            exact=math.sqrt(batch_norm_gain(size)),
            measured=batch_gain(mc, "relu", size, layers, power=0.5),
        )
    size, depth = 32, 5

    def draw(random: Generator, width: int) -> dict[str, float]:
        stack = Stack(EXACT_BATCH_NORM, "relu", depth + 1, width, size, residual=False)
        first, *others = random_network(random, stack)
        x = first(gaussian(random, size, width)).detach()
        return probe(random, Sequential(*others), x, centered=True)

    tallies = {}
    for width, networks in ((64, 80), (256, 40)):
        drawn = each(partial(draw, width=width))
        name = f"deep batch norm {width}"
        tallies[width] = mc.tally(name, drawn, networks, cost=10**5, block=1)
    yield beside(
        f"gain in size a layer, {depth} layers, B = {size}",
        exact=math.sqrt(batch_norm_gain(size)),
        measured=limit_of(tallies, "gain", power=0.5 / depth),
    )
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
    activation and Z ~ N(0, 1): BatchNorm removes the mean and the variance of s, whatever they are.
    chi is the mean degree of s in Hermite polynomials (G3): at least 1, and 1 only for a line.
    Small batches add to it, by the integral of N06 for this s."""
    chi = {name: float(moments.gaussian(name).jacobian_factor ** 2) for name in activations}
    least = min(chi.values())
    yield claimed("least gain of all activations, large batches", at_least(1.0), exact=least)
    size, names = 16, ("tanh", "erf", "gelu", "relu")
    for name in names:
        yield claimed(
            f"gain of {name}, B = {size}",
            at_least(1.0),
            exact=batch_norm_gain(size, name),
            measured=batch_gain(mc, name, size, layers=600),
        )
    ratios = [batch_norm_gain(10**6, name) / chi[name] for name in names]
    farthest = max(ratios, key=lambda ratio: abs(ratio - 1.0))
    what = "gain at B = 10^6 over chi, these four, farthest from 1"
    yield beside(what, exact=1.0, measured=farthest, tolerance=1e-5)
    return (
        f"{chi['tanh']:.3f} for tanh, {chi['gelu']:.3f} for GELU, {chi['relu']:.3f} for ReLU; 1 "
        "for a line only"
    )


def mean_cosine(h: HostArray) -> float:
    """Of all pairs of samples (samples, units), each pair weighted by its lengths."""
    samples = len(h)
    total = (h * h).sum()
    pairs = (h.sum(axis=0) ** 2).sum() - total
    return float(pairs / ((samples - 1) * total))


@batchnorm(
    "N08",
    "Daneshmand et al. (2020); Yang et al. (2019)",
    "BatchNorm drives the samples of a batch apart.",
    expected="holds",
)
def orthogonal(mc: Sampler) -> Findings:
    """However alike the samples start, with depth the pre-activations of any two samples in a batch
    of B get the correlation -1/(B - 1), which is that of independent samples minus their mean.
    After ReLU their cosine is 2 k(-1/(B - 1)), with k the arc-cosine kernel of degree 1. Without
    BatchNorm, He's weights drive the cosine to 1 instead."""
    size, depth, alike = 8, 30, 0.9

    def draw(random: Generator, width: int) -> dict[str, float]:
        common, own = gaussian(random, 1, width), gaussian(random, size, width)
        x = math.sqrt(alike) * common + math.sqrt(1.0 - alike) * own
        shape = ("relu", depth, width, size)
        normalized = random_layers(random, Stack(EXACT_BATCH_NORM, *shape, residual=False))
        plain = random_layers(random, Stack("none", *shape, residual=False, init="he"))
        outputs = {"inputs": x, "with": normalized(x), "without": plain(x)}
        return {name: mean_cosine(out.numpy().astype(float)) for name, out in outputs.items()}

    tallies = {}
    for width, networks in ((64, 100), (256, 40)):
        drawn = each(partial(draw, width=width))
        tallies[width] = mc.tally(f"apart {width}", drawn, networks, cost=10**5, block=1)
    plain = Wide.at([alike])
    for _ in range(depth):
        plain = plain.apply("relu").weighted(2.0)
    without = float(plain.cosines[0])
    exact = {"with": 2.0 * arc_cosine(-1.0 / (size - 1)), "inputs": alike, "without": without}
    limits = {name: limit_of(tallies, name) for name in exact}
    what = f"mean cosine, layer {depth}, B = {size}"
    yield claimed(what, as_derived, exact=exact["with"], measured=limits["with"])
    yield beside("the same of the inputs", exact=alike, measured=limits["inputs"])
    yield beside(
        "the same without BatchNorm, He's weights",
        exact=exact["without"],
        measured=limits["without"],
    )
    return (
        f"from {alike:g} to {exact['with']:.3f}, as of independent samples; 1/pi for large batches"
    )


@layernorm(
    "N13",
    "Ba et al. (2016), Table 1",
    "LayerNorm sees neither scale nor shift of all weights, nor a sample's scale.",
    expected="holds",
)
def layer_invariances(mc: Sampler) -> Findings:
    """LN(u) = (u - m)/sqrt(v), with m and v the mean and the variance over the units of one sample,
    u = W x. A number times W, a number times x, or one vector added to all rows of W: each
    multiplies u, or adds the same to all units, which m and v remove. A number times one row, or a
    number added to all inputs, changes units differently, and is seen."""
    random = np.random.default_rng(mc.seed)
    x, w = batch(random, 9, 6), batch(random, 8, 6)
    layer_norm = LayerNorm(8, eps=0.0).to(dtype="float64")
    before = layer_norm(F.linear(x, w))

    def change(x: Tensor, w: Tensor) -> float:
        return largest_difference(layer_norm(F.linear(x, w)), before)

    unseen = {
        "all weights times 3": change(x, 3.0 * w),
        "a vector added to all rows": change(x, w + batch(random, 1, 6)),
        "a sample times 3": change(3.0 * x, w),
    }
    for what, found in unseen.items():
        yield claimed(f"{what}: largest change", 0.0, exact=0.0, measured=found)
    one_row = tensor(np.array([[3.0]] + [[1.0]] * 7))
    seen = {
        "one row times 3": change(x, one_row * w),
        "1 added to all inputs": change(x + 1.0, w),
    }
    for what, found in seen.items():
        yield claimed(f"{what}: largest change", other_than(0.0), measured=found)
    u = F.linear(x, w).numpy()[0]
    yield beside(
        "the first number of LN(u), and by its formula",
        exact=(u[0] - u.mean()) / u.std(),
        measured=float(before.numpy()[0, 0]),
    )
    return "as the table has it: three changes leave no trace, two do"


def layer_gain(
    mc: Sampler, width: int, parts: Callable[[int], list[Module]], mean_square: float, layers: int
) -> Estimate:
    """Of one linear layer and these parts: the mean-square gain of the gradient, over samples in
    all orthogonal directions of this mean square."""

    def draw(random: Generator) -> dict[str, float]:
        x = orthogonal_samples(random, width, width, mean_square)
        return probe(random, Sequential(dense(random, width), *parts(width)), x)

    name = f"layer gain {parts(width)}"
    return mc.tally(name, each(draw), layers, cost=1000, block=5).mean("gain")


@layernorm(
    "N14",
    "after Ba et al. (2016)",
    "LayerNorm keeps gradients of ReLU layers stable, wherever it stands.",
    expected="does not hold as stated",
)
def where_it_stands(mc: Sampler) -> Findings:
    """Before ReLU, u is normalised and half of the units are on: the mean-square gain is (n - 1)(n
    - 2)/(n (n - 3)) for n units and inputs of mean square 1/2, as ReLU leaves them. After ReLU,
    LayerNorm removes the mean that ReLU makes and divides by the standard deviation c1 of the rest,
    so that the gain of wide layers is 1/(2 c1^2) = pi/(pi - 1) = 1.467."""
    width = 32
    yield claimed(
        f"gain, LayerNorm before ReLU, n = {width}",
        "1.00",
        exact=norm_gain(width),
        measured=layer_gain(mc, width, lambda n: [LayerNorm(n, eps=0.0), ReLU()], 0.5, 1000),
    )
    after = {
        n: layer_gain(mc, n, lambda n: [ReLU(), LayerNorm(n, eps=0.0)], 1.0, layers)
        for n, layers in ((32, 1000), (128, 150))
    }
    yield claimed("gain, LayerNorm after ReLU", 1.0, exact=CHI, measured=infinite_width(after))
    return (
        f"{norm_gain(width):.3f} before ReLU, but {CHI:.3f} after it: {CHI**9:.0f} after 9 layers"
    )


def pair(random: Generator, width: int, cosine: float) -> Tensor:
    """Two samples of exactly this cosine, and mean square 1."""
    a, b = orthogonal_samples(random, 2, width).numpy()
    return tensor(np.stack([a, cosine * a + math.sqrt(1.0 - cosine**2) * b]))


@layernorm(
    "N15",
    "Zhang and Sennrich (2019)",
    "Re-centring is dispensable: RMSNorm does what LayerNorm does.",
    expected="holds",
)
def without_centering(mc: Sampler) -> Findings:
    """RMSNorm divides the units of a sample by their root mean square, and leaves their mean. With
    random weights that mean is small, of order 1/sqrt(n) for n units. Before ReLU, the mean-square
    gain is (n - 1)^2/(n (n - 2)): 1 for wide layers, as with LayerNorm. Both take the cosine of two
    samples from rho to 2 k(rho), k the arc-cosine kernel of degree 1. They differ if the same
    number is added to all units: RMSNorm sees it."""
    width, rho = 32, 0.5
    yield claimed(
        f"gain, RMSNorm before ReLU, n = {width}",
        "1.00",
        exact=norm_gain(width, center=False),
        measured=layer_gain(mc, width, lambda n: [RMSNorm(n, eps=0.0), ReLU()], 0.5, 1000),
    )
    exact = 2.0 * arc_cosine(rho)

    def draw(random: Generator, norm: Module, width: int) -> dict[str, float]:
        a, b = F.relu(norm(dense(random, width)(pair(random, width, rho)))).numpy()
        return {"product": float(a @ b), "square": float(a @ a + b @ b) / 2.0}

    for name, norm in (("RMSNorm", RMSNorm), ("LayerNorm", LayerNorm)):
        cosines = {}
        for n, layers in ((64, 1000), (256, 600)):
            drawn = each(partial(draw, norm=norm(n), width=n))
            tally = mc.tally(f"cosine {name} {n}", drawn, layers, cost=5000, block=4)
            cosines[n] = tally.function(lambda mean: mean["product"] / mean["square"])
        yield claimed(
            f"cosine after ReLU, {name}, before {rho:g}",
            as_derived,
            exact=exact,
            measured=infinite_width(cosines),
        )
    u, rms = batch(np.random.default_rng(mc.seed), 9, 8), RMSNorm(8).to(dtype="float64")
    yield claimed(
        "1 added to all units: largest change of RMSNorm",
        other_than(0.0),
        measured=largest_difference(rms(u + 1.0), rms(u)),
    )
    return f"before training: both keep the gradient, and take a cosine of {rho:g} to {exact:.3f}"
