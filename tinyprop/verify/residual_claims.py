"""What other papers say of residual networks (N24 to N27, N30), and of DyT and Derf in them (N28,
N29)."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from .. import Tensor, grad, moments
from ..nn import (
    Activation,
    BatchNorm,
    Derf,
    DyT,
    LayerNorm,
    Linear,
    Module,
    ReLU,
    Residual,
    ScaledWS,
    Sequential,
    init,
)
from ..nn.signals import signals
from ..nn.spec import build
from ..report.estimate import Estimate
from ..theory import Design
from ..theory.gains import batch_norm_residual_gain, residual_gain, tanh_residual
from .case import Case, computed, is_not_zero, is_zero, shown
from .closed_forms import CHI, arc_cosine
from .ledger import Findings, claim
from .monte_carlo import Sampler, Tally, each
from .networks import dense, first_unit, gaussian, network_tally, orthogonal_samples, probe, seeded

residual, dyt = partial(claim, family="residual"), partial(claim, family="dyt")

# from a generator, and the number of blocks before it
Block = Callable[[np.random.Generator, int], Module]


def residual_tally(
    mc: Sampler,
    name: str,
    block: Block,
    depth: int,
    width: int = 128,
    batch: int = 16,
    samples: int = 64,
) -> Tally:
    """Of a chain of blocks, for orthogonal inputs of mean square 1."""

    def build(random: np.random.Generator) -> tuple[Module, Tensor]:
        seeded(random)
        chain = Sequential(*(block(random, before) for before in range(depth)))
        return chain, orthogonal_samples(random, batch, width)

    return network_tally(mc, f"residual {name} {depth} {width} {batch}", build, samples)


def behind(random: np.random.Generator, width: int, *first: Module) -> Module:
    """A residual block: a normaliser or none, a linear layer, ReLU, and a linear layer that makes
    up for ReLU."""
    return Residual(Sequential(*first, dense(random, width), ReLU(), dense(random, width, 2.0)))


WIDTH, DEPTH, BATCH = 128, 10, 32  # of the networks of N24 to N26
NF_NETS = ((1.0, DEPTH), (0.2, 12))  # alpha, and the number of blocks


def nf_tally(mc: Sampler, alpha: float, depth: int) -> Tally:
    """Of an NF-net: blocks h + alpha WS(ReLU(h / beta)), beta^2 the variance of h that the blocks
    before leave."""

    def block(random: np.random.Generator, before: int) -> Module:
        beta = math.sqrt(1.0 + before * alpha**2)
        return Residual(Sequential(ReLU(), ScaledWS(Linear(WIDTH, WIDTH, bias=False))), alpha, beta)

    return residual_tally(mc, f"nf {alpha}", block, depth, samples=128)


def built_tally(mc: Sampler) -> Tally:
    """Of an NF-net in the shorthand, alpha = 1/2: mean squares behind two blocks, behind one with
    more channels, and where they are scaled for the next convolution."""
    blocks = "R(C(128,1,1,0)-C(128,1,1,0))-R(C(128,1,1,0))-R(C(256,1,2,0))"
    spec = f"C(128,1,1,0)-{blocks}-C(10,1,1,0)-P(2,2,0,avg)"

    def draw(random: np.random.Generator) -> list[float]:
        seeded(random)
        net = build(spec, in_channels=128, norm="ws", alpha=0.5)
        return [s.std**2 + s.mean**2 for s in signals(net, gaussian(random, 64, 128, 4, 4))[1:5]]

    return mc.tally("built", each(draw), samples=24, cost=10**5, block=1)


def batch_norm_tally(mc: Sampler) -> Tally:
    """Of a network of blocks h + W ReLU(BatchNorm(h)), W He's weights."""

    def block(random: np.random.Generator, before: int) -> Module:
        return Residual(Sequential(BatchNorm(WIDTH, eps=0.0), ReLU(), dense(random, WIDTH, 2.0)))

    return residual_tally(mc, "batch norm", block, DEPTH, batch=BATCH)


@residual(
    "N24",
    "Brock et al. (2021, ICLR)",
    "In an NF-net, the variance after l blocks is 1 + l alpha^2.",
    expected="in expectation only",
)
def nf_variance(mc: Sampler) -> Findings:
    """A block adds alpha f(h/beta) to h, with beta^2 the variance of h. The branch f is ReLU and a
    linear layer of standardised weights (N23), so its output has variance 1, and is uncorrelated
    with h, as the signs of weights are random: each block adds alpha^2. One network scatters about
    that: its width is finite."""
    for alpha, depth in NF_NETS:
        tally = nf_tally(mc, alpha, depth)
        exact, found = 1.0 + depth * alpha**2, tally.mean(1)
        spread = math.sqrt(tally.means[2] / tally.means[1] ** 2 - 1.0)
        what = f"mean square after {depth} blocks, alpha = {alpha:g}"
        yield Case(
            what, exact, exact, found, finite_size=0.01, rounding=0.01 * exact, scatter=spread
        )
    tally, places = (
        built_tally(mc),
        {"1 block": 1.25, "2 blocks": 1.5, "more channels": 1.25, "a scale": 1.0},
    )
    for i, (place, exact) in enumerate(places.items()):
        yield shown(f"of C and R, behind {place}", exact, tally.mean(i), finite_size=0.01)
    return "on average; networks of 128 units scatter about it"


@residual(
    "N25",
    "Brock et al. (2021, ICLR)",
    "NF-nets behave as well as ResNets with BatchNorm.",
    expected="holds",
)
def as_well_behaved(mc: Sampler) -> Findings:
    """Both grow like a power of the depth L. In an NF-net the gradient's mean square is multiplied
    by 1 + chi alpha^2/v in a block, chi = pi/(pi - 1) the gain of its branch and v = 1 + l alpha^2
    the variance after l blocks: L^chi in all. With BatchNorm before ReLU and He's weights in the
    branch, a block adds 1 - 1/pi = 1/chi to the variance over a large batch, and multiplies by 1 +
    1/v: L^chi again. Small batches multiply by more, by the integrals of N06."""
    for alpha, depth in NF_NETS:
        what, exact = (
            f"gain of an NF-net, {depth} blocks, alpha = {alpha:g}",
            residual_gain(depth, alpha, CHI),
        )
        yield shown(what, exact, nf_tally(mc, alpha, depth).mean(), finite_size=0.03)
    what, exact = (
        f"gain of a BatchNorm ResNet, {DEPTH} blocks, B = {BATCH}",
        batch_norm_residual_gain(DEPTH, BATCH),
    )
    yield shown(what, exact, batch_norm_tally(mc).mean(), finite_size=0.05)
    deep = 10**5
    for name, gain in (
        ("NF-net", lambda n: residual_gain(n, 1.0, CHI)),
        ("BatchNorm", batch_norm_residual_gain),
    ):
        exponent = math.log2(gain(2 * deep) / gain(deep))
        yield Case(f"exponent of L, {name}", CHI, exponent, rounding=1e-4)
    nf = residual_gain(DEPTH, 1.0, CHI)
    return (
        f"both L^{CHI:.3f}: over {DEPTH} blocks {nf:.1f} in an NF-net of alpha = 1, {exact:.1f} "
        "with BatchNorm"
    )


def share(added: float, blocks: int) -> float:
    """Of the last of so many blocks, in what they and the input, 1, have added up to."""
    return added / (1.0 + blocks * added)


@residual(
    "N26",
    "De and Smith (2020)",
    "With BatchNorm, the branch of block l has 1/(l + 1) of the variance.",
    expected="approximate",
)
def share_of_a_branch(mc: Sampler) -> Findings:
    """BatchNorm, ReLU and He's weights give the branch the mean square 1, whatever its input, so E
    h^2 = 1 + l after l blocks, and the branch has 1/(l + 1) of it. But part of that is a mean over
    the batch: in a batch of B, two samples share 2 k(-1/(B - 1)) of the branch's mean square, k the
    arc-cosine kernel of degree 1, 1/pi of it for large B. So the branch adds V = 1 - 2 k to the
    variance over the batch, and has V/(1 + l V) of it."""
    tally = batch_norm_tally(mc)
    added = 1.0 - 2.0 * arc_cosine(-1.0 / (BATCH - 1))

    def measured(i: int, block: int) -> Estimate:
        return tally.function(lambda means: share(float(means[i] - 1.0) / DEPTH, block))

    for block in (1, DEPTH):
        what, paper, exact = f"share of block {block} in", share(1.0, block), share(added, block)
        yield Case(
            f"{what} E h^2", paper, paper, measured(1, block), finite_size=0.01, rounding=0.01
        )
        yield Case(f"{what} the variance", paper, exact, measured(3, block), finite_size=0.01)
    first, last = share(added, 1), share(added, DEPTH)
    return f"of E h^2; of the variance, {first:.3f} for 1/2, {last:.4f} for 1/{DEPTH + 1}"


@residual(
    "N27",
    "Zhang et al. (2019), 2 and 3",
    "Unnormalised blocks double the variance; Fixup's keep it.",
    expected="in expectation only",
)
def fixup(mc: Sampler) -> Findings:
    """If the branch keeps the mean square of its input h, a block h + f(h) doubles it, and the
    gradient's: the branch is uncorrelated with h, as its last weights have random signs. That holds
    for every h, so it is 2^L after L blocks, at any width, on average. Fixup sets the last layer of
    each branch to 0: the block is the identity, the gradient passes unchanged, and of the branch
    only the last layer has a gradient that is not 0."""
    width, depth = 32, 6
    tally = residual_tally(
        mc, "none", lambda random, before: behind(random, width), 1, width, samples=2000
    )
    scatter = math.sqrt((tally.means[2] / tally.means[1] ** 2) ** depth - 1.0)
    for i, what in ((1, "mean square"), (0, "gain of the gradient")):
        yield Case(
            f"{what}, {depth} blocks",
            2.0**depth,
            2.0**depth,
            tally.power(depth, i),
            scatter=scatter,
        )
    random, ends = np.random.default_rng(mc.seed), (Linear(width, width), Linear(width, width))
    block = Residual(Sequential(ends[0], ReLU(), ends[1]))
    init.fixup_(Sequential(block, Linear(width, 2)))
    x = gaussian(random, 4, width)
    out, gain = probe(random, block, x)
    first, last = grad((block(x) * gaussian(random, 4, width)).sum(), [end.weight for end in ends])
    yield is_zero("Fixup: largest change of h by a block", abs(out - x.numpy()).max())
    yield Case("Fixup: gain of the gradient", 1.0, 1.0, computed(gain))
    yield is_zero("Fixup: largest gradient of the first layer", abs(first.numpy()).max())
    yield is_not_zero("Fixup: the same of the last layer", abs(last.numpy()).max())
    return (
        f"{2**depth} after {depth} blocks, on average, at any width; Fixup starts as the identity"
    )


@dyt(
    "N28",
    "Zhu et al. (2025)",
    "DyT does what LayerNorm does: its output has the same scale for any input.",
    expected="does not hold as stated",
)
def dyt_is_no_normalizer(mc: Sampler) -> Findings:
    """DyT(x) = tanh(alpha x) with a learnt alpha that starts at 1/2, in place of LayerNorm. For an
    input of N(0, v) its mean square is E tanh(sqrt(v) Z/2)^2, Z ~ N(0, 1), which grows with v, and
    tends to 1 only as v does to infinity. LayerNorm's is 1 for every v. It limits large values, as
    LayerNorm does; it does not restore a scale."""
    squares, layer = {}, DyT(1)
    for variance in (1.0, 0.25, 4.0):
        std = math.sqrt(variance)
        squares[variance] = float(moments.gaussian("tanh", 0.0, 0.5 * std).std ** 2)
        found = mc.tally(
            f"dyt {variance}", first_unit(lambda x: layer(x) ** 2, scale=std), samples=200_000
        ).mean()
        yield Case(
            f"mean square for an input of variance {variance:g}", 1.0, squares[variance], found
        )
    norm = LayerNorm(64)(4.0 * gaussian(np.random.default_rng(mc.seed), 8, 64)).numpy()
    yield shown("the same of LayerNorm, variance 16", 1.0, float((norm**2).mean()), tolerance=1e-4)
    return (
        f"{squares[0.25]:.3f}, {squares[1.0]:.3f} and {squares[4.0]:.3f} at variance 1/4, 1 and "
        "4, before training"
    )


def derf_gain(depth: int, a: float) -> float:
    """The gain p of N29 for Derf, in closed form."""
    v = p = 1.0
    for _ in range(depth):
        p *= 1.0 + 4.0 * a * a / math.pi / math.sqrt(1.0 + 4.0 * a * a * v)
        v += 2.0 / math.pi * math.asin(2.0 * a * a * v / (1.0 + 2.0 * a * a * v))
    return p


@dyt(
    "N29",
    "Alekseev (2026), abstract",
    "Gradients grow as a power of depth L with Pre-LN, as exp(sqrt L) with Derf.",
    expected="holds",
)
def stretched_exponential(mc: Sampler) -> Findings:
    """Blocks h + W2 ReLU(W1 N(h)), which keep the mean square of N(h), without attention (the
    paper, arXiv 2604.11890, has it). v = E h^2, and p is the mean square of the gradient. N =
    LayerNorm adds 1 to v and multiplies p by 1 + 1/v: v = p = L + 1 after L blocks. N = erf(a h)
    (Derf) adds (2/pi) asin(2 a^2 v/(1 + 2 a^2 v)) to v, about 1 - m/sqrt(v) with m = 2/(pi a), and
    multiplies p by 1 + (4 a^2/pi)/sqrt(1 + 4 a^2 v), about 1 + k/sqrt(v) with k = 2 a/pi. So v
    grows like L - 2 m sqrt(L), and ln p like 2 k sqrt(L) + d ln L with d = k m - k^2/2. N = tanh(a
    h) (DyT) has k = 4 a/(3 sqrt(2 pi)) and m = 2/(a sqrt(2 pi)). a starts at 1/2."""
    depth, a = 12, 0.5

    def block(random: np.random.Generator, before: int, norm: Callable[[int], Module]) -> Module:
        return behind(random, WIDTH, norm(WIDTH))

    for norm, (square, gain) in (
        (LayerNorm, (depth + 1.0, depth + 1.0)),
        (Derf, tanh_residual(depth, a, "erf")),
        (DyT, tanh_residual(depth, a)),
    ):
        tally = residual_tally(mc, norm.__name__, partial(block, norm=norm), depth)
        for i, what, exact in ((0, "gain of the gradient", gain), (1, "mean square", square)):
            yield shown(
                f"{what}, {depth} blocks, {norm.__name__}", exact, tally.mean(i), finite_size=0.05
            )
    root = math.sqrt(2.0 * math.pi)
    rates = {
        "Derf": (2.0 * a / math.pi, 2.0 / (math.pi * a)),
        "DyT": (4.0 * a / (3.0 * root), 2.0 / (a * root)),
    }
    for (name, (k, m)), far in zip(rates.items(), (10_000, 800), strict=True):
        short, deep = (
            math.log(derf_gain(n, a) if name == "Derf" else tanh_residual(n, a)[1])
            for n in (far // 4, far)
        )
        slope = (deep - short - (k * m - k * k / 2.0) * math.log(4.0)) / (0.5 * math.sqrt(far))
        yield Case(f"growth of ln p - d ln L with sqrt(L), {name}", 2.0 * k, slope, rounding=0.02)
    derf = tanh_residual(100, a, "erf")[1]
    yield Case("gain of the gradient, 100 blocks, Derf", derf_gain(100, a), derf)
    return (
        f"after 100 blocks {residual_gain(100, 1.0, 1.0):.0f} with LayerNorm, {derf:.0f} with Derf"
    )


@residual(
    "N30",
    "Xiong et al. (2020)",
    "Gradients change exponentially with depth in Post-LN, as a power in Pre-LN.",
    expected="does not hold as stated",
)
def post_or_pre(mc: Sampler) -> Findings:
    """f is an activation s and a linear layer that gives it mean square 1; its mean-square gain is
    g = E s'(Z)^2/E s(Z)^2, Z ~ N(0, 1). Post-LN is LN(h + f(h)), LN LayerNorm: the sum has the mean
    square 2, so a block multiplies the gradient's mean square by (1 + g)/2, which is exponential in
    the depth L, unless g = 1: as for ReLU. Pre-LN is h + f(LN(h)), in which E h^2 = 1 + l after l
    blocks: 1 + g/(1 + l) a block, and L^g in all, against a signal of L + 1."""
    depth, width, gains = 8, 192, {}

    def block(random: np.random.Generator, before: int, post: bool, start: Design) -> Module:
        norm, branch = (
            LayerNorm(width),
            (Activation(start.activation), dense(random, width, start.c1**-2)),
        )
        return (
            Sequential(Residual(Sequential(*branch)), norm)
            if post
            else Residual(Sequential(norm, *branch))
        )

    for name in ("tanh", "relu"):
        start = Design("", name, 1, centering=0.0, gamma=1.0, beta=0.0, params={})
        kinds = (partial(block, post=post, start=start) for post in (True, False))
        post, pre = (
            residual_tally(mc, f"{name} {i}", kind, depth, width) for i, kind in enumerate(kinds)
        )
        gains[name], what = (1.0 + start.gain) / 2.0, f"gain a block, Post-LN, {name}"
        yield Case(
            what,
            1.0,
            gains[name],
            post.power(1.0 / depth),
            relation="differs from",
            finite_size=0.01,
        )
        exact = residual_gain(depth, 1.0, start.gain)
        yield shown(f"gain of {depth} blocks, Pre-LN, {name}", exact, pre.mean(), finite_size=0.04)
    return (
        f"true of tanh, {gains['tanh']:.3f} a block; with ReLU and He's weights, both keep "
        "gradients at the start"
    )
