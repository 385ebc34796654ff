"""The numbers behind the pictures: exact curves, and measurements with half the widths of their 99 % intervals."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from .. import functional as F
from .. import moments
from ..engine.arrays import HostArray
from ..nn import AvgPool2d, MaxPool2d
from .canonical_claims import covariance_of, error_and_bound, noncanonical_part, simplex
from .closed_forms import (
    C1,
    JACOBIAN_FACTOR,
    PAPER_GAMMA,
    avg_pool_std,
    correlation_after_prelu,
    depth_recursion,
    fixed_point,
    jacobian_kernel,
    max_pool,
    spectrum_density,
    spectrum_edges,
)
from .depth_claims import depth_tally
from .general_claims import exact_unit, gain
from .jacobian_claims import conv_spectrum, kernel_tally, nonzero, spectrum
from .moment_claims import NFNETS
from .monte_carlo import Draw, Estimate, Sampler, Tally
from .networks import gaussian, layer_with, preactivation_statistics, rows_at_cosine
from .pooling_claims import WINDOW, pooled_tally
from .training_claims import batch_tally

Data: TypeAlias = dict[str, Any]


def points(xs: Any, estimates: list[Estimate]) -> Data:
    """Measured points: x, y and error."""
    reach = [float(e.interval()[1] - e.value) for e in estimates]
    return {"x": [float(x) for x in xs], "y": [float(e.value) for e in estimates], "error": reach}


def curve(xs: HostArray, f: Callable[[float], float]) -> Data:
    return {"x": xs.tolist(), "y": [float(f(x)) for x in xs]}


def few(mc: Sampler, samples: int) -> Sampler:
    """So few samples that their error bars can be seen."""
    return Sampler(samples, seed=mc.seed, threads=mc.threads)


def moments_data(mc: Sampler) -> Data:
    """Mean, standard deviation and Jacobian factor of PReLU against a."""
    some, slopes = few(mc, 1000), np.linspace(-2.0, 2.0, 17)
    dense = np.linspace(-2.2, 2.2, 221)
    exact = moments.gaussian("prelu", a=dense)
    tallies = []
    for a in slopes:
        draw = _prelu(float(a))
        tallies.append(some.tally(f"prelu {a}", draw, samples=1000))
    return {
        "mean": {"x": dense.tolist(), "y": exact.mean.tolist()},
        "std": {"x": dense.tolist(), "y": exact.std.tolist()},
        "factor": {"x": dense.tolist(), "y": exact.jacobian_factor.tolist()},
        "measured mean": points(slopes, [t.mean() for t in tallies]),
        "measured std": points(slopes, [t.std() for t in tallies]),
    }


def _prelu(a: float) -> Draw:
    return lambda random, count: F.prelu(gaussian(random, count), a).data


def constants_data(mc: Sampler) -> Data:
    """The constants 1/c1 that NFNets sampled, against the exact ones."""
    exact = {name: 1.0 / moments.gaussian(name).std for name in NFNETS}
    return {"names": list(NFNETS), "sampled": list(NFNETS.values()), "exact": list(exact.values())}


def correlations_data(mc: Sampler) -> Data:
    """Correlations before and after PReLU, and the kernel of the Jacobian, against the cosine of two rows."""
    rhos, dense = np.linspace(-0.9, 0.9, 10), np.linspace(-1.0, 1.0, 201)
    some = few(mc, 4000)
    measured = {}
    for a in (0.0, 0.25, -1.0):
        estimates = [some.tally(f"map {a} {rho}", _products(float(rho), a), samples=4000).mean() for rho in rhos]
        measured[str(a)] = points(rhos, estimates)
    return {
        "maps": {str(a): curve(dense, partial(correlation_after_prelu, a=a)) for a in (0.0, 0.25, -1.0)},
        "measured maps": measured,
        "kernel": curve(dense, jacobian_kernel),
        "measured kernel": points(rhos, [kernel_tally(some, float(rho)).mean(1) for rho in rhos]),
    }


def _products(rho: float, a: float) -> Draw:
    layer = layer_with(rows_at_cosine(rho), activation="prelu", gamma=1.0)
    layer.a.data[...] = a

    def draw(random: np.random.Generator, count: int) -> Any:
        out = layer(gaussian(random, count, 2)).data
        return out[:, 0] * out[:, 1]

    return draw


def canonical_data(mc: Sampler) -> Data:
    """How far from diagonal the covariance of random rows is, and how far below the bound."""
    random, inputs = np.random.default_rng(mc.seed), 64
    units = [2, 4, 8, 16, 32, 64, 128, 256]
    errors, slacks = [], []
    for m in units:
        found = []
        for _ in range(8):
            rows = random.standard_normal((m, inputs))
            covariance = covariance_of(rows / np.linalg.norm(rows, axis=1, keepdims=True))
            error, bound = error_and_bound(covariance)
            found.append([error / np.linalg.norm(covariance), bound / error])
        tally = Tally.of(np.array(found).T)
        errors.append(tally.mean(0))
        slacks.append(tally.mean(1))
    corners = [error_and_bound(covariance_of(simplex(m))) for m in units if m <= inputs]
    dense = np.geomspace(2, 256, 100)
    return {
        "inputs": inputs,
        "error": {"x": (dense / inputs).tolist(), "y": [noncanonical_part(m, inputs) for m in dense]},
        "measured error": points([m / inputs for m in units], errors),
        "slack": points([m / inputs for m in units], slacks),
        "simplex": {"x": [m / inputs for m in units if m <= inputs], "y": [b / e for e, b in corners]},
    }


def spectrum_data(mc: Sampler) -> Data:
    """All singular values of some square layers, and the edges of other shapes."""
    width = 384
    values = nonzero(spectrum(np.random.default_rng(mc.seed), width, width))
    low, high = spectrum_edges(1, 1)
    inside = np.linspace(low, high, 300)
    ratios = [0.25, 0.5, 1.0, 1.5, 2.5, 3.5]
    tallies = [mc.tally(f"edges {r}", _edges(int(192 * r), 192), samples=8, cost=10**5, block=1) for r in ratios]
    filters = [4, 8, 16, 24]
    conv = [mc.tally(f"conv {m}", _conv_edge(8, m), samples=8, cost=10**5, block=1).mean() for m in filters]
    dense = np.linspace(0.05, 4.0, 200)
    return {
        "values": values.tolist(),
        "density": {"x": inside.tolist(), "y": spectrum_density(inside, 1, 1).tolist()},
        "rms": JACOBIAN_FACTOR,
        "inverse c1": 1.0 / C1,
        "low": curve(dense, lambda ratio: spectrum_edges(ratio, 1)[0]),
        "high": curve(dense, lambda ratio: spectrum_edges(ratio, 1)[1]),
        "measured low": points(ratios, [t.mean(1) for t in tallies]),
        "measured high": points(ratios, [t.mean(0) for t in tallies]),
        "conv": points([m / 8 for m in filters], conv),
    }


def _edges(units: int, inputs: int) -> Draw:
    """The largest and the smallest singular value but 0, of layers of a shape."""
    return lambda random, count: nonzero(spectrum(random, units, inputs))[[0, -1], None]


def _conv_edge(channels: int, filters: int) -> Draw:
    return lambda random, count: conv_spectrum(random, channels, filters, 5)[:1]


def depth_data(mc: Sampler) -> Data:
    """Variance and mean square of pre-activations, layer by layer, for three ways to set gamma."""
    depth, width, networks = 20, 192, 12
    settings: dict[str, dict[str, Any]] = {
        "gamma = 1": {"gamma": 1.0},
        "gamma = 1/1.21": {"gamma": PAPER_GAMMA},
        "exact, beta = gamma": {"gamma": 1.0, "beta": 1.0, "mode": "exact"},
    }
    some, layers = Sampler(seed=mc.seed, threads=mc.threads), np.arange(1, depth + 1)
    measured = {}
    for name, how in settings.items():
        tally = depth_tally(some, width, depth, networks, **how)
        measured[name] = {
            "variance": points(layers, [tally.mean(depth + i) for i in range(depth)]),
            "mean square": points(layers, [tally.mean(2 * depth + i) for i in range(depth)]),
        }
    flat = np.array([np.ones(depth), np.zeros(depth)])
    exact = {
        "gamma = 1": depth_recursion(1.0, depth),
        "gamma = 1/1.21": depth_recursion(PAPER_GAMMA, depth),
        "exact, beta = gamma": flat,
    }
    return {
        "layers": layers.tolist(),
        "width": width,
        "exact": {name: {"variance": e[0].tolist(), "mean square": e[1].tolist()} for name, e in exact.items()},
        "measured": measured,
    }


def pooling_data(mc: Sampler) -> Data:
    """Mean and standard deviation after 3 x 3 pooling against the correlation of the pooled units."""
    some, rhos = few(mc, 20_000), np.linspace(0.0, 1.0, 11)[:-1]
    dense = 1.0 - np.linspace(1.0, 0.0, 101) ** 2  # denser where the square root bends
    tallies = {
        "max": [pooled_tally(some, MaxPool2d(3), float(rho)) for rho in rhos],
        "avg": [pooled_tally(some, AvgPool2d(3), float(rho)) for rho in rhos],
    }
    return {
        "mean": {"max": curve(dense, lambda r: max_pool(WINDOW, r)[0]), "avg": curve(dense, lambda r: 0.0)},
        "std": {
            "max": curve(dense, lambda r: max_pool(WINDOW, r)[1]),
            "avg": curve(dense, lambda r: avg_pool_std(WINDOW, r)),
        },
        "measured mean": {kind: points(rhos, [t.mean() for t in ts]) for kind, ts in tallies.items()},
        "measured std": {kind: points(rhos, [t.std() for t in ts]) for kind, ts in tallies.items()},
    }


def training_data(mc: Sampler) -> Data:
    """The fourth moment of batch-normalised data against the batch size."""
    sizes = [2, 4, 8, 16, 32, 50, 100]
    some, dense = few(mc, 4000), np.geomspace(2, 128, 100)
    return {
        "kurtosis": curve(dense, lambda size: 3.0 * (size - 1.0) / (size + 1.0)),
        "measured": points(sizes, [batch_tally(some, size).mean() for size in sizes]),
    }


def beyond_data(mc: Sampler) -> Data:
    """The gain of exact NormProp against beta/gamma, and where deep networks settle against gamma."""
    t = np.linspace(-1.0, 3.0, 161)
    some, betas = few(mc, 4000), [-0.5, 0.0, 0.5, 1.0, 1.5, 2.0]
    gammas, dense = [0.7, 0.8, 0.9, 0.95], np.linspace(0.5, 1.0, 200)
    depth, width = 30, 96

    def settled(gamma: float) -> Estimate:
        def draw(random: np.random.Generator, count: int) -> HostArray:
            return preactivation_statistics(random, width, depth, 64, gamma=gamma)[0, -1:]

        return mc.tally(f"settled {gamma}", draw, samples=12, block=1, cost=10**5).mean()

    relu = moments.gaussian("relu", t, 1.0)
    return {
        "gain": {"x": t.tolist(), "y": (relu.jacobian_factor**2).tolist()},
        "measured gain": points(betas, [gain(some, f"gain {b}", exact_unit("relu", 1.0, b)) for b in betas]),
        "settled": curve(dense, fixed_point),
        "measured": points(gammas, [settled(g) for g in gammas]),
        "factor": 1.0 / JACOBIAN_FACTOR,
        "width": width,
    }
