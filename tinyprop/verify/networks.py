"""Random layers and networks, and what is measured on them, all by running the engine."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from .. import Tensor, grad, manual_seed, no_grad, tensor
from ..engine.arrays import Array, HostArray, array_module, default_backend, to_backend, to_numpy
from ..engine.random import next_key, normals
from ..nn import Linear, Module, NormPropLinear
from .monte_carlo import Draw, Sampler, Tally, each


def gaussian(random: np.random.Generator, *shape: int) -> Tensor:
    """Standard normal numbers in float32, drawn where the default backend is."""
    like = to_backend(np.empty(1), default_backend())
    return Tensor(normals(like, shape, next_key(random)))


def batch(random: np.random.Generator, *shape: int) -> Tensor:
    """The same in float64, drawn on the host, so that what is equal is equal to 15 digits."""
    return tensor(random.standard_normal(shape))


def largest_difference(a: Tensor, b: Tensor) -> float:
    return float(abs(a.numpy() - b.numpy()).max())


def layer_with(rows: Any, beta: float | None = None, **settings: Any) -> NormPropLinear:
    """A NormProp layer with these weights (units, inputs)."""
    weight = rows if isinstance(rows, Tensor) else tensor(rows, dtype="float32")
    units, inputs = weight.shape
    layer = NormPropLinear(inputs, units, **settings)
    layer.weight.data = weight.data
    if beta is not None:
        layer.beta.data[...] = beta
    return layer


def random_layer(
    random: np.random.Generator, units: int, inputs: int, **settings: Any
) -> NormPropLinear:
    """A NormProp layer whose rows point in random directions, uniformly."""
    return layer_with(gaussian(random, units, inputs), **settings)


def two_units(rho: float, **settings: Any) -> NormPropLinear:
    """A NormProp layer of gamma = 1 with two units, whose rows have the cosine rho."""
    return layer_with([[1.0, 0.0], [rho, (1.0 - rho * rho) ** 0.5]], gamma=1.0, **settings)


def first_unit(layer: Callable[[Tensor], Tensor], inputs: int = 1, scale: float = 1.0) -> Draw:
    """Draws the output of a layer's first unit, for normal inputs of this scale."""
    return lambda random, count: layer(gaussian(random, count, inputs) * scale).data[:, 0]


def jacobian_rows(
    function: Callable[[Tensor], Tensor], x: Tensor, units: Sequence[int]
) -> list[Tensor]:
    """For each sample of a batch, the rows of the Jacobian that belong to some units: (samples,
    inputs) each."""
    x = Tensor(x.data, requires_grad=True)
    out = function(x)
    return [grad(out[:, unit].sum(), x, retain_graph=True)[0] for unit in units]


def whole_jacobian(function: Callable[[Tensor], Tensor], x: Tensor) -> Array:
    """The Jacobian (outputs, inputs) at one sample, in one backward pass: a copy of the sample for
    each output.

    It equals `tp.jacobian`, which takes one backward pass for each output.
    """
    xp = array_module(x.data)
    with no_grad():
        outputs = function(Tensor(x.data[None])).size
    copies = Tensor(xp.repeat(x.data[None], outputs, axis=0), requires_grad=True)
    out = function(copies)
    cotangent = xp.eye(outputs, dtype=out.dtype).reshape(out.shape)
    return grad(out, copies, cotangent)[0].data.reshape(outputs, x.size)


def singular_values(function: Callable[[Tensor], Tensor], x: Tensor) -> HostArray:
    """Those of the Jacobian at one sample."""
    return np.linalg.svd(to_numpy(whole_jacobian(function, x)).astype(np.float64), compute_uv=False)


def difference_ratio(
    function: Callable[[], Tensor], points: Iterable[Tensor], random: np.random.Generator
) -> float:
    """A slope by the engine's gradients over the same by a central difference, in float64: 1 if
    both are right.

    It is that of a randomly weighted sum of the function's values, along a random direction of all
    the points (tensors that it depends on). As it may be near 0, it is 1 plus their difference over
    the root sum of squares of the terms."""
    leaves = list(points)
    places, ways = (
        [leaf.data for leaf in leaves],
        [batch(random, *leaf.shape).data for leaf in leaves],
    )
    out = function()
    weights = batch(random, *out.shape)
    gradients = grad((out * weights).sum(), leaves)
    terms = np.concatenate(
        [to_numpy(g.data * way).ravel() for g, way in zip(gradients, ways, strict=True)]
    )

    def moved(step: float) -> float:
        for leaf, place, way in zip(leaves, places, ways, strict=True):
            leaf.data = place + step * way
        with no_grad():
            return (function() * weights).sum().item()

    step = 1e-8  # so short that hardly ever a unit passes a kink on the way
    quotient = (moved(step) - moved(-step)) / (2.0 * step)
    moved(0.0)  # back to where they were
    return float(1.0 + (terms.sum() - quotient) / np.linalg.norm(terms))


def seeded(random: np.random.Generator) -> None:
    """Let the layers' own initialisation draw its next weights from here."""
    manual_seed(int(random.integers(2**62)))


def dense(random: np.random.Generator, width: int, variance: float = 1.0) -> Linear:
    """A square linear layer without bias, of Gaussian weights of this variance over the width: 2 is
    He's."""
    layer = Linear(width, width, bias=False)
    layer.weight.data = gaussian(random, width, width).data * math.sqrt(variance / width)
    return layer


def orthogonal_samples(
    random: np.random.Generator, count: int, width: int, mean_square: float = 1.0
) -> Tensor:
    """So many samples that are orthogonal to each other, in random directions."""
    basis = np.linalg.qr(random.standard_normal((width, count)))[0].T
    return tensor((math.sqrt(width * mean_square) * basis).astype(np.float32))


def probe(
    random: np.random.Generator, network: Module, x: Tensor, centered: bool = False
) -> tuple[HostArray, float]:
    """The output for a batch, and the mean-square gain of a gradient on its way back: of a random
    one, and so, on average, |J|^2 / n for the Jacobian J of all outputs by all n inputs. BatchNorm
    passes on only what is centred over the batch, so such a gradient is centred, too."""
    x = Tensor(x.data, requires_grad=True)
    out = network(x)
    given = random.standard_normal(out.shape, np.float32)
    given -= given.mean(axis=0) if centered else 0.0
    found = grad(out, x, to_backend(given, default_backend()))[0].numpy()
    gain = float((found.astype(np.float64) ** 2).sum() / (given.astype(np.float64) ** 2).sum())
    return out.numpy().astype(np.float64), gain


# a random network, and a batch for it
Build: TypeAlias = Callable[[np.random.Generator], tuple[Module, Tensor]]


def network_tally(
    mc: Sampler,
    name: str,
    build: Build,
    samples: int,
    cost: int = 10**5,
    block: int = 1,
    centered: bool = False,
) -> Tally:
    """Of random networks: the gain of the gradient; the mean square of the output, and its square
    for single samples, averaged over the batch; and the variance over the batch."""

    def draw(random: np.random.Generator) -> list[float]:
        out, gain = probe(random, *build(random), centered)
        squares = (out * out).mean(axis=1)
        return [gain, squares.mean(), (squares**2).mean(), out.var(axis=0, ddof=1).mean()]

    return mc.tally(name, each(draw), samples, cost, block)
