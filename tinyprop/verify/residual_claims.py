"""What other papers say of residual networks (N24 to N27, N30), and of DyT and Derf in them (N28,
N29).

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
from typing import Any

import numpy as np
from numpy.random import Generator

from .. import Tensor, grad, moments
from ..nn import (
    Derf,
    DyT,
    Identity,
    LayerNorm,
    Linear,
    Module,
    Normalizer,
    ReLU,
    Residual,
    Sequential,
    init,
)
from ..nn.normalizers import AnyNormalizer
from ..report.estimate import Estimate
from ..theory import Design
from ..theory.gains import batch_norm_residual_gain, residual_gain, tanh_residual
from ..theory.stacks import Stack
from .case import as_derived, beside, claimed, other_than
from .closed_forms import CHI, arc_cosine
from .ledger import Findings, claim
from .limits import Limit, infinite_width, limit_of
from .monte_carlo import Sampler, Tally, each
from .networks import EXACT_BATCH_NORM, gaussian, orthogonal_samples, probe, random_network

residual = partial(claim, family="residual")
dyt = partial(claim, family="dyt")


def chains(
    mc: Sampler,
    number: dict[int, int],
    norm: AnyNormalizer,
    depth: int,
    activation: str = "relu",
    samples: int | None = 16,
    then: Callable[[int], Module] | None = None,
    name: str = "residual",
    **settings: Any,
) -> dict[int, Tally]:
    """What `probe` finds in chains of residual blocks of several widths, for orthogonal samples of
    mean square 1 (None: as many as there are units). `then` makes a layer after each block. Chains
    of another name are other chains."""

    def draw(random: Generator, stack: Stack) -> dict[str, float]:
        _, *blocks = random_network(random, stack)
        if then is not None:
            blocks = [Sequential(block, then(stack.width)) for block in blocks]
        x = orthogonal_samples(random, stack.batch, stack.width)
        return probe(random, Sequential(*blocks), x)

    tallies = {}
    for width, count in number.items():
        batch = samples or width
        stack = Stack(norm, activation, depth, width, batch, residual=True, **settings)
        full_name = f"{name} {stack.label} {activation} {depth} {stack.alpha} {width}"
        full_name += "" if then is None else " then"
        drawn = each(partial(draw, stack=stack))
        tallies[width] = mc.tally(full_name, drawn, count, cost=10**5, block=1)
    return tallies


def two_layers(name: str, norm: Callable[[int], Module] = lambda width: Identity()) -> Normalizer:
    """With ReLU, this makes branches of two linear layers after a normaliser: W2 ReLU(W1 N(h)),
    which keep the mean square of N(h)."""

    def before(width: int) -> Module:
        return Sequential(norm(width), Linear(width, width, bias=False))

    return Normalizer(name, before=before, bias=False)


NF_NETS = ((1.0, 10), (0.2, 12))  # alpha, and the number of blocks


def nf_nets(mc: Sampler, name: str, alpha: float, depth: int) -> dict[int, Tally]:
    """Blocks h + alpha WS(ReLU(h / beta)), beta^2 the variance of h that the blocks before
    leave."""
    number = {32: 250, 128: 200}
    return chains(mc, number, "ws", depth, samples=None, name=name, init="glorot", alpha=alpha)


@residual(
    "N24",
    "Brock et al. (2021, ICLR)",
    "In an NF-net, the variance after l blocks is 1 + l alpha^2.",
    expected="in expectation only",
)
def nf_variance(mc: Sampler) -> Findings:
    """A block adds alpha f(h/beta) to h, with beta^2 the variance of h. The branch f is ReLU and a
    linear layer of standardised weights (N23), so its output has variance 1. It is uncorrelated
    with h, as the signs of weights are random: each block adds alpha^2. A single network, of finite
    width, scatters about that."""
    for alpha, depth in NF_NETS:
        tallies = nf_nets(mc, "variance", alpha, depth)
        exact = 1.0 + depth * alpha**2
        mean, of_squares = (
            tallies[128].mean(name).mean for name in ("square", "square of squares")
        )
        yield claimed(
            f"mean square after {depth} blocks, alpha = {alpha:g}",
            exact,
            exact=exact,
            measured=limit_of(tallies, "square"),
            scatter=math.sqrt(of_squares / mean**2 - 1.0),
        )
    return "on average; networks of 128 units scatter about it"


def batch_norm_nets(mc: Sampler, name: str, depth: int, samples: int) -> dict[int, Tally]:
    """Blocks h + W ReLU(BatchNorm(h)), W He's weights."""
    return chains(mc, {48: 300, 192: 120}, EXACT_BATCH_NORM, depth, samples=samples, name=name)


@residual(
    "N25",
    "Brock et al. (2021, ICLR)",
    "NF-nets behave as well as ResNets with BatchNorm.",
    expected="holds",
)
def as_well_behaved(mc: Sampler) -> Findings:
    """Both grow like a power of the depth L. In block l of an NF-net, the mean square of the
    gradient is multiplied by 1 + chi alpha^2/v, with chi = pi/(pi - 1) the gain of the branch, and
    v = 1 + l alpha^2 the variance after l blocks: L^chi in all. With BatchNorm before ReLU and He's
    weights in the branch, a block adds 1 - 1/pi = 1/chi to the variance over a large batch, and
    multiplies by 1 + 1/v: L^chi again. Small batches multiply by more, by the integrals of N06."""
    for alpha, depth in NF_NETS:
        yield beside(
            f"gain of an NF-net, {depth} blocks, alpha = {alpha:g}",
            exact=residual_gain(depth, alpha, CHI),
            measured=limit_of(nf_nets(mc, "gain", alpha, depth), "gain"),
        )
    depth, size = 10, 32
    with_batch_norm = batch_norm_residual_gain(depth, size)
    yield beside(
        f"gain of a BatchNorm ResNet, {depth} blocks, B = {size}",
        exact=with_batch_norm,
        measured=limit_of(batch_norm_nets(mc, "gain", depth, size), "gain"),
    )
    far = 10**5
    nf_net = partial(residual_gain, alpha=1.0, g=CHI)
    for name, gain in (("NF-net", nf_net), ("BatchNorm", batch_norm_residual_gain)):
        yield claimed(
            f"exponent of L, {name}",
            as_derived,
            exact=CHI,
            measured=math.log2(gain(2 * far) / gain(far)),
            tolerance=CHI * (CHI + 1.0) / far,  # of order 1/L
        )
    return (
        f"both L^{CHI:.3f}: over {depth} blocks {nf_net(depth):.1f} in an NF-net of alpha = 1, "
        f"{with_batch_norm:.1f} with BatchNorm"
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
    """BatchNorm, ReLU and He's weights give the branch the mean square 1, whatever its input. So E
    h^2 = 1 + l after l blocks, and the branch has 1/(l + 1) of it. But part of that is a mean over
    the batch: two samples in a batch of B share 2 k(-1/(B - 1)) of the branch's mean square, with k
    the arc-cosine kernel of degree 1; for large B, that is 1/pi. So the branch adds V = 1 - 2 k to
    the variance over the batch, and has V/(1 + l V) of it."""
    depth, size = 10, 32
    tallies = batch_norm_nets(mc, "share", depth, size)
    added = 1.0 - 2.0 * arc_cosine(-1.0 / (size - 1))

    def measured(quantity: str, block: int) -> Limit:
        """By what a block adds, on average over the blocks."""

        def of_block(mean: dict[str, float]) -> float:
            return share((mean[quantity] - 1.0) / depth, block)

        return infinite_width({n: tally.function(of_block) for n, tally in tallies.items()})

    for block in (1, depth):
        said, exact = share(1.0, block), share(added, block)
        what = f"share of block {block} in"
        yield claimed(f"{what} E h^2", said, exact=said, measured=measured("square", block))
        yield claimed(
            f"{what} the variance", said, exact=exact, measured=measured("variance", block)
        )
    first, last = share(added, 1), share(added, depth)
    return f"of E h^2; of the variance, {first:.3f} for 1/2, {last:.4f} for 1/{depth + 1}"


@residual(
    "N27",
    "Zhang et al. (2019), 2 and 3",
    "Unnormalised blocks double the variance; Fixup's keep it.",
    expected="in expectation only",
)
def fixup(mc: Sampler) -> Findings:
    """If a branch f keeps the mean square of its input h, a block h + f(h) doubles it, and that of
    the gradient: the branch is uncorrelated with h, as its last weights have random signs. That
    holds for every h, so it is 2^L after L blocks, on average, at any width. Fixup sets the last
    layer of each branch to 0. Then the block is the identity, the gradient passes unchanged, and in
    the branch only the last layer has a gradient that is not 0."""
    width, depth = 32, 6
    tally = chains(mc, {width: 4500}, two_layers("none"), depth=1, samples=32)[width]
    mean, of_squares = (tally.mean(name).mean for name in ("square", "square of squares"))
    scatter = math.sqrt((of_squares / mean**2) ** depth - 1.0)
    for what, quantity in (("mean square", "square"), ("gain of the gradient", "gain")):
        yield claimed(
            f"{what}, {depth} blocks",
            2.0**depth,
            exact=2.0**depth,
            measured=tally.power(depth, quantity),
            scatter=scatter,
        )
    random = np.random.default_rng(mc.seed)
    first, last = Linear(width, width), Linear(width, width)
    block = Residual(Sequential(first, ReLU(), last))
    init.fixup_(Sequential(block, Linear(width, 2)))
    x = gaussian(random, 4, width)
    moved = abs(block(x).numpy() - x.numpy()).max()
    yield claimed("Fixup: largest change of h by a block", 0.0, exact=0.0, measured=moved)
    gain = probe(random, block, x)["gain"]
    yield claimed("Fixup: gain of the gradient", 1.0, exact=1.0, measured=gain)
    loss = (block(x) * gaussian(random, 4, width)).sum()
    of_first, of_last = grad(loss, [first.weight, last.weight])
    yield claimed(
        "Fixup: largest gradient of the first layer",
        0.0,
        exact=0.0,
        measured=abs(of_first.numpy()).max(),
    )
    largest = abs(of_last.numpy()).max()
    yield claimed("Fixup: the same of the last layer", other_than(0.0), measured=largest)
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
    """DyT(x) = tanh(alpha x), with a learnt alpha that starts at 1/2, takes the place of LayerNorm.
    For an input of N(0, v) its mean square is E tanh(sqrt(v) Z/2)^2, Z ~ N(0, 1), which grows with
    v, and tends to 1 only as v tends to infinity. LayerNorm's is 1 for every v. DyT limits large
    values, as LayerNorm does; it does not restore a scale."""
    layer = DyT(1)

    def draw(random: Generator, count: int, std: float) -> Tensor:
        return layer(std * gaussian(random, count, 1))[:, 0] ** 2

    squares = {}
    for variance in (1.0, 0.25, 4.0):
        std = math.sqrt(variance)
        squares[variance] = float(moments.gaussian("tanh", 0.0, 0.5 * std).std ** 2)
        found = mc.tally(f"dyt {variance}", partial(draw, std=std), samples=1_000_000).mean()
        what = f"mean square for an input of variance {variance:g}"
        yield claimed(what, 1.0, exact=squares[variance], measured=found)
    normalized = LayerNorm(64)(4.0 * gaussian(np.random.default_rng(mc.seed), 8, 64)).numpy()
    square = float((normalized**2).mean())
    what = "the same of LayerNorm, variance 16"
    yield beside(what, exact=1.0, measured=square, tolerance=1e-4)  # for its eps
    return (
        f"{squares[0.25]:.3f}, {squares[1.0]:.3f} and {squares[4.0]:.3f} at variance 1/4, 1 and "
        "4, before training"
    )


def derf_gain(depth: int, a: float) -> float:
    """The gain p of N29 for Derf, in closed form: theory's own recursion is judged against it, and
    is too slow for tens of thousands of blocks."""
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
    """Blocks are h + W2 ReLU(W1 N(h)), whose weights keep the mean square of N(h); the paper, arXiv
    2604.11890, has attention as well. v = E h^2, and p is the mean square of the gradient. With N =
    LayerNorm, a block adds 1 to v and multiplies p by 1 + 1/v: v = p = L + 1 after L blocks. With N
    = erf(a h) (Derf), it adds (2/pi) asin(2 a^2 v/(1 + 2 a^2 v)) to v, which is about 1 - m/sqrt(v)
    with m = 2/(pi a), and multiplies p by 1 + (4 a^2/pi)/sqrt(1 + 4 a^2 v), about 1 + k/sqrt(v)
    with k = 2 a/pi. So v grows like L - 2 m sqrt(L), and ln p like 2 k sqrt(L) + d ln L with d = k
    m - k^2/2. N = tanh(a h) (DyT) has k = 4 a/(3 sqrt(2 pi)) and m = 2/(a sqrt(2 pi)). a starts at
    1/2."""
    depth, a = 12, 0.5
    exact = {
        LayerNorm: (depth + 1.0, depth + 1.0),
        Derf: tanh_residual(depth, a, "erf"),
        DyT: tanh_residual(depth, a),
    }
    for norm, (square, gain) in exact.items():
        name = norm.__name__
        tallies = chains(mc, {32: 200, 128: 150}, two_layers(name, norm), depth)
        what = f"{depth} blocks, {name}"
        found = limit_of(tallies, "gain")
        yield beside(f"gain of the gradient, {what}", exact=gain, measured=found)
        found = limit_of(tallies, "square")
        yield beside(f"mean square, {what}", exact=square, measured=found)

    def growth(gain: Callable[[int], float], far: int, d: float) -> float:
        """Of ln p - d ln L with sqrt(L), between a quarter of the way and the end."""
        rise = math.log(gain(far)) - math.log(gain(far // 4)) - d * math.log(4.0)
        return rise / (0.5 * math.sqrt(far))

    def growth_of_deep(gain: Callable[[int], float], far: int, d: float) -> Limit:
        """The next term of ln p is of order ln L/sqrt(L), so that the growth is off by a multiple
        of ln L/L. From L = 64 on, that falls to less than a third over a factor of 4: what is left
        is less than half of what it has fallen by."""
        before, after = growth(gain, far // 4, d), growth(gain, far, d)
        return Limit(Estimate(after, 0.0, 1), abs(after - before) / 2.0)

    what = "growth of ln p - d ln L with sqrt(L)"
    k, m = 2.0 * a / math.pi, 2.0 / (math.pi * a)
    found = growth_of_deep(lambda depth: derf_gain(depth, a), 40_000, k * m - k * k / 2.0)
    yield claimed(f"{what}, Derf", as_derived, exact=2.0 * k, measured=found)
    root = math.sqrt(2.0 * math.pi)
    k, m = 4.0 * a / (3.0 * root), 2.0 / (a * root)
    found = growth_of_deep(lambda depth: tanh_residual(depth, a)[1], 1600, k * m - k * k / 2.0)
    yield claimed(f"{what}, DyT", as_derived, exact=2.0 * k, measured=found)
    derf = tanh_residual(100, a, "erf")[1]
    closed = derf_gain(100, a)
    yield claimed("gain of the gradient, 100 blocks, Derf", as_derived, exact=closed, measured=derf)
    layer_norm = residual_gain(100, 1.0, 1.0)
    return f"after 100 blocks {layer_norm:.0f} with LayerNorm, {derf:.0f} with Derf"


@residual(
    "N30",
    "Xiong et al. (2020)",
    "Gradients change exponentially with depth in Post-LN, as a power in Pre-LN.",
    expected="does not hold as stated",
)
def post_or_pre(mc: Sampler) -> Findings:
    """f is an activation s and a linear layer that gives it mean square 1; its mean-square gain is
    g = E s'(Z)^2/E s(Z)^2, Z ~ N(0, 1). LN is LayerNorm. Post-LN is LN(h + f(h)): the sum has the
    mean square 2, so a block multiplies the mean square of the gradient by (1 + g)/2. That is
    exponential in the depth L, unless g = 1, as for ReLU. Pre-LN is h + f(LN(h)), in which E h^2 =
    1 + l after l blocks: a block multiplies by 1 + g/(1 + l), which makes L^g in all, against a
    signal of L + 1."""
    depth, gains = 8, {}
    for name in ("tanh", "relu"):
        start = Design("", name, 1, centering=0.0, gamma=1.0, beta=0.0, params={})
        gains[name] = (1.0 + start.gain) / 2.0
        number = {48: 150, 192: 80}
        found = chains(mc, number, "none", depth, name, then=LayerNorm, init="he")
        yield claimed(
            f"gain a block, Post-LN, {name}",
            other_than(1.0),
            exact=gains[name],
            measured=limit_of(found, "gain", power=1.0 / depth),
        )
        found = chains(mc, number, "layer", depth, name)
        yield beside(
            f"gain of {depth} blocks, Pre-LN, {name}",
            exact=residual_gain(depth, 1.0, start.gain),
            measured=limit_of(found, "gain"),
        )
    return (
        f"true of tanh, {gains['tanh']:.3f} a block; with ReLU and He's weights, both keep "
        "gradients at the start"
    )
