"""What goes beyond the paper: exact NormProp, the theorem that limits it, and the closed forms around it."""

import math

import numpy as np

from .. import grad, moments, tensor
from ..engine.arrays import Array
from ..estimate import Estimate
from ..nn import MaxPool2d, NormPropLinear
from ..nn.layers import ACTIVATIONS
from ..theory import Design
from . import closed_forms
from .claim import Case, Findings, all_ones, claim, is_zero, shown
from .closed_forms import C1, C2, CHI, JACOBIAN_FACTOR, max_pool, normal_grid, product_moments
from .depth_claims import depth_tally
from .jacobian_claims import product_tally
from .moment_claims import SETTINGS
from .monte_carlo import Sampler, Tally
from .networks import difference_ratio, first_unit, gaussian, jacobian_rows, layer_with
from .pooling_claims import WINDOW, pooled_tally


def exact_unit(activation: str, gamma: float, beta: float) -> NormPropLinear:
    return layer_with([[1.0]], beta, activation=activation, gamma=gamma, mode="exact")


def gain(mc: Sampler, name: str, layer: NormPropLinear) -> Estimate:
    """The mean square of the slope of a layer of one unit and one input, by the engine's backward pass."""

    def draw(random: np.random.Generator, count: int) -> Array:
        (slopes,) = jacobian_rows(layer, gaussian(random, count, 1), [0])
        return slopes.data[:, 0] ** 2

    return mc.tally(name, draw, samples=200_000).mean()


@claim("G1", "beyond 4.6", "With c1 and c2 of N(beta, gamma^2), the output is normalised for every gamma and beta.")
def exact_normprop(mc: Sampler) -> Findings:
    """gamma u + beta is N(beta, gamma^2) if u is N(0, 1): take the mean c2 and the standard deviation c1 of the
    activation for that, and let the gradient pass through them. For ReLU the output o depends on beta/gamma only: gamma
    do/dgamma + beta do/dbeta = 0.
    """
    for activation, gamma, beta in (("relu", 0.7, 0.5), ("relu", 1.5, -0.5), ("tanh", 2.0, 1.0), ("gelu", 0.5, -1.0)):
        name, layer = f"{activation}, gamma {gamma:g}, beta {beta:g}", exact_unit(activation, gamma, beta)
        tally = mc.tally(f"exact {name}", first_unit(layer), samples=400_000, watch=Tally.variance)
        z, weights = normal_grid((-beta / gamma,))
        out = layer.to(dtype="float64")(tensor(z[:, None])).numpy()[:, 0]
        yield Case(f"Var o, {name}", 1.0, float(weights @ out**2), tally.variance())
        yield Case(f"E o, {name}", 0.0, float(weights @ out), tally.mean())
    unit = exact_unit("relu", 0.7, 0.5).to(dtype="float64")
    slopes = grad(unit(tensor(np.array([[0.3], [1.2]]))).sum(), [unit.gamma, unit.beta])
    redundant = sum(float((p * slope).item()) for p, slope in zip((unit.gamma, unit.beta), slopes, strict=True))
    yield is_zero("gamma do/dgamma + beta do/dbeta, ReLU", redundant)
    moved, slopes = zip(*(_at_settings(name, np.random.default_rng(mc.seed)) for name in ACTIVATIONS), strict=True)
    for i, what in enumerate(("c2", "c1", "E s'^2")):
        yield all_ones(f"{what} / quadrature, all activations", [x for found in moved for x in found[i]])
    yield all_ones("slope of a layer / difference quotient", slopes, tolerance=1e-5)
    least = exact_unit("relu", 2.0, -20.0).constants()[0].item() / (2.0 * C1)
    yield shown("c1 of a unit that is never on / its c1 at beta = 0: the floor", 0.1, least)
    return "mean 0 and variance 1 at any gamma and beta; for ReLU only beta/gamma matters"


def params(activation: str) -> dict[str, float]:
    return {"a": 0.25} if activation == "prelu" else {}


def _at_settings(activation: str, random: np.random.Generator) -> tuple[list[list[float]], float]:
    """c2, c1 and E s'^2 at some means and standard deviations over their quadrature, and the slope of an exact layer
    along all its parameters and its input over the difference quotient."""
    layer = exact_unit(activation, 1.0, 0.3).to(dtype="float64")
    ratios: list[list[float]] = [[], [], []]
    for mean, std in SETTINGS:
        z, weights = normal_grid(tuple((kink - mean) / std for kink in (-1.0, 0.0, 1.0)))
        u = tensor(mean + std * z, requires_grad=True)
        s = layer.activate(u)
        (slope,) = grad(s.sum(), u)
        center = float(weights @ s.numpy())
        direct = center, math.sqrt(weights @ (s.numpy() - center) ** 2), weights @ slope.numpy() ** 2
        found = moments.gaussian(activation, mean, std, **params(activation))
        for i, (a, b) in enumerate(zip((found.mean, found.std, found.slope2), direct, strict=True)):
            ratios[i].append(1.0 + (a - b) / (abs(b) + (i == 0)))  # a mean may be 0
    x = tensor(random.standard_normal((40, 1)), requires_grad=True)
    return ratios, difference_ratio(lambda: layer(x), [x, *layer.parameters()], random)


@claim("G2", "beyond 4.3", "Exact NormProp with beta = gamma keeps the scale forwards and nearly keeps it backwards.")
def positive_beta(mc: Sampler) -> Findings:
    """At t = beta/gamma, the mean-square gain of ReLU is Phi(t)/Var ReLU(Z + t), with Z ~ N(0, 1) and Phi and phi its
    distribution function and density: 1.467 at 0, 1.120 at 1, 1.018 at 2, as the kink matters less. Over 50 layers
    1.120 still multiplies to 290 in mean square, a factor of 17 in size; 1.467 to 2e8. Errors of the variance shrink by
    (Phi - c2 phi)/Var = 0.77 with each layer at t = 1, with c2 the mean of ReLU(Z + t), so a deep network stays put.
    """
    width, depth, t, layers = 128, 20, 1.0, 5
    density, cdf = math.exp(-0.5 * t * t) / math.sqrt(2.0 * math.pi), closed_forms.normal_cdf(t)
    mean = t * cdf + density
    variance = (t * t + 1.0) * cdf + t * density - mean * mean
    one, slope = cdf / variance, (cdf - mean * density) / variance
    point = Design("", "relu", 1, centering=1.0, gamma=1.0, beta=t, params={})
    backwards = gain(mc, "gain at t = 1", exact_unit("relu", 1.0, t))
    deep = depth_tally(mc, width, depth, samples=10, gamma=1.0, beta=t, mode="exact")
    product = product_tally(mc, 48, layers, 1.0, samples=100, mode="exact")
    yield Case("gain of a layer, beta = gamma", one, point.chi, backwards)
    yield shown(f"gain of {layers} layers", one**layers, product.mean(), finite_size=0.1)
    yield Case(f"E u^2, layer {depth}", 1.0, 1.0, deep.mean(depth - 1), finite_size=0.1, rounding=0.1)
    yield shown("factor of an error of the variance", slope, point.variance_slope)
    after = [math.sqrt(layer**50) for layer in (one, CHI)]
    return f"gain {one:.2f} instead of {CHI:.2f}: after 50 layers {after[0]:.0f} times the size, not {after[1]:,.0f}"


@claim("G3", "beyond 3.4", "No free lunch: a normalised nonlinear output has a mean-square gain above 1.")
def no_free_lunch(mc: Sampler) -> Findings:
    """Expand the output o in normalised Hermite polynomials of degree k with coefficients a_k: Var o is the sum of
    a_k^2 over k >= 1, and E o'^2 the sum of k a_k^2. So the gain E o'^2/Var o is the mean Hermite degree, at least 1,
    and 1 only for a line (Gaussian Poincare inequality; jumps excluded). No gamma, beta, c1, c2 normalises forwards and
    keeps the mean square backwards.
    """
    for name, function in {"tanh": np.tanh, "sin": np.sin}.items():
        estimate = gain(mc, f"gain of {name}", layer_with([[1.0]], activation=name, gamma=1.0))
        degree, exact = closed_forms.hermite_degree(function), moments.gaussian(name).jacobian_factor ** 2
        yield Case(f"gain of {name}, and its mean Hermite degree", degree, exact, estimate)
    random = np.random.default_rng(mc.seed)
    gamma, beta = np.exp(random.normal(size=50)), random.normal(size=50)
    gains = [moments.gaussian(name, beta, gamma, **params(name)).jacobian_factor ** 2 for name in ACTIVATIONS]
    yield Case("least gain of all activations", 1.0, float(np.min(gains)), relation="at least")
    yield Case("gain of sin, and coth 1", 1.0 / math.tanh(1.0), moments.gaussian("sin").jacobian_factor ** 2)
    return f"{moments.gaussian('tanh').jacobian_factor ** 2:.3f} for tanh, {CHI:.3f} for ReLU, 1 only for a line"


@claim("G4", "beyond 3.3", "A deep ReLU network of gamma <= 1 settles at sqrt(E u^2) = 1/(1 + tau).")
def phase_diagram(mc: Sampler) -> Findings:
    """With u the pre-activations, q = E u^2 goes to (gamma/c1)^2 (q/2 - sqrt(q)/pi + 1/(2 pi)) in the next layer, with
    c1 the standard deviation of ReLU(Z), Z ~ N(0, 1): a parabola in sqrt(q). Its stable fixed point is sqrt(q) = 1/(1 +
    tau) with tau^2 = (pi - 1)(1/gamma^2 - 1). At gamma = 1/1.2112, the inverse Jacobian factor, tau is 1, and q is 1/4.
    """
    width, depth = 128, 30
    at_end = depth_tally(mc, width, depth, samples=10, gamma=1.0 / JACOBIAN_FACTOR).mean(depth - 1)
    yield Case(f"E u^2, layer {depth} of width {width}", 0.25, 0.25, at_end, finite_size=0.1, judged=False)
    for gamma in (1.0 / JACOBIAN_FACTOR, 0.95, 0.9, 0.7):
        settled = float(closed_forms.depth_recursion(gamma, 400)[:, -1].sum())
        yield Case(f"E u^2, layer 400, gamma = {gamma:.4g}", closed_forms.fixed_point(gamma), settled)
    return "1/4 at the Jacobian factor, and what iterating the recursion gives"


@claim("G5", "beyond 3.2", "Max-pooling of equally correlated units has exact constants.")
def pooling_constants(mc: Sampler) -> Findings:
    """See C23: an integral over the largest of k normals. For k = 2 units X, Y of correlation rho it has a closed form,
    with th = arccos sqrt((1 - rho)/2): E max(0, X, Y) = (2 + sqrt(2 (1 - rho)))/(2 sqrt(2 pi)), and the second moment
    is (pi - th)/pi + sin(2 th)/(2 pi).
    """
    rho = 0.5
    (mean, std), (pair_mean, pair_std) = (max_pool(k, rho) for k in (WINDOW, 2))
    tally, raw = pooled_tally(mc, MaxPool2d(3), rho), C1 * pair_mean + C2
    closed_mean, closed_square = closed_forms.max_pool_of_two(rho)
    yield Case("mean after max-pooling, rho = 0.5", mean, mean, tally.mean())
    yield Case("std after max-pooling, rho = 0.5", std, std, tally.std())
    yield Case("E max(0, X, Y)", closed_mean, raw)
    yield Case("E max(0, X, Y)^2", closed_square, (C1 * pair_std) ** 2 + raw**2)
    return f"subtract {mean:.3f} and divide by {std:.3f} after a 3 x 3 pool at rho = 0.5, and it is normalised again"


@claim("G6", "beyond 3.4", "The first two spectral moments of a deep Jacobian are exact at every width.")
def spectral_moments(mc: Sampler) -> Findings:
    """G = J J^T for the Jacobian J of L layers of width n. Given that a unit is on, its row w is not isotropic, but the
    law of w w^T is unchanged, and G does not see the signs of rows. So E tr(G^2)/n and E (tr G/n)^2, relative to
    chi^(2L) with chi = pi/(pi - 1), follow a linear recursion over layers. One layer gives 2 + (n - 1)/n; wide networks
    tend to 1 + 2L.
    """
    width, depth = 16, 4
    tally = product_tally(mc, width, depth, 1.0, samples=800)
    exact, scale = product_moments(width, depth), CHI ** (-2 * depth)
    found = tally.function(lambda means: means[1] * scale), tally.function(lambda means: means[2] * scale)
    yield Case("E tr(G^2)/n over chi^2L", exact[0], exact[0], found[0])
    yield Case("E (tr G/n)^2 over chi^2L", exact[1], exact[1], found[1])
    yield Case("the first, one layer", 2.0 + (width - 1.0) / width, product_moments(width, 1)[0])
    yield Case("the first, width 10^9", 1.0 + 2.0 * depth, product_moments(10**9, depth)[0], rounding=1e-6)
    return f"{exact[0]:.3f} for {depth} layers of {width}, against {1 + 2 * depth} at infinite width"
