"""Random layers and networks, and what is measured on them, all by running the engine."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .. import Tensor, grad, manual_seed, no_grad, tensor
from ..engine.arrays import Array, HostArray, array_module, default_backend, to_backend, to_numpy
from ..nn import Linear, Module, NormPropLinear
from .monte_carlo import Draw


def gaussian(random: np.random.Generator, *shape: int) -> Tensor:
    """Standard normal numbers, drawn in float32 on the host, as a tensor of the default backend."""
    return tensor(random.standard_normal(shape, np.float32))


def layer_with(rows: Any, beta: float | None = None, **settings: Any) -> NormPropLinear:
    """A NormProp layer with these weights (units, inputs)."""
    units, inputs = np.shape(rows)
    layer = NormPropLinear(inputs, units, **settings)
    layer.weight.data = to_backend(np.asarray(rows, np.float32), default_backend())
    if beta is not None:
        layer.beta.data[...] = beta
    return layer


def random_layer(random: np.random.Generator, units: int, inputs: int, **settings: Any) -> NormPropLinear:
    """A NormProp layer whose rows point in random directions, uniformly."""
    return layer_with(random.standard_normal((units, inputs), np.float32), **settings)


def two_units(rho: float, **settings: Any) -> NormPropLinear:
    """A NormProp layer of gamma = 1 with two units, whose rows have the cosine rho."""
    return layer_with([[1.0, 0.0], [rho, (1.0 - rho * rho) ** 0.5]], gamma=1.0, **settings)


def first_unit(layer: Callable[[Tensor], Tensor], inputs: int = 1, scale: float = 1.0) -> Draw:
    """Draws the output of a layer's first unit, for normal inputs of this scale."""
    return lambda random, count: layer(gaussian(random, count, inputs) * scale).data[:, 0]


def jacobian_rows(function: Callable[[Tensor], Tensor], x: Tensor, units: Sequence[int]) -> list[Tensor]:
    """For each sample of a batch, the rows of the Jacobian that belong to some units: (samples, inputs) each."""
    x = Tensor(x.data, requires_grad=True)
    out = function(x)
    rows = []
    for unit in units:
        cotangent = array_module(out.data).zeros_like(out.data)
        cotangent[:, unit] = 1.0
        rows.append(grad(out, x, cotangent, retain_graph=True)[0])
    return rows


def whole_jacobian(function: Callable[[Tensor], Tensor], x: Tensor) -> Array:
    """The Jacobian (outputs, inputs) at one sample, in one backward pass: a copy of the sample for each output.

    It equals `tp.jacobian`, which takes one backward pass for each output.
    """
    xp = array_module(x.data)
    with no_grad():
        outputs = function(Tensor(x.data[None])).size
    copies = Tensor(xp.repeat(x.data[None], outputs, axis=0), requires_grad=True)
    out = function(copies)
    cotangent = xp.eye(outputs, dtype=out.dtype).reshape(out.shape)
    return grad(out, copies, cotangent)[0].data.reshape(outputs, x.size)


def difference_ratio(function: Callable[[], Tensor], points: Iterable[Tensor], random: np.random.Generator) -> float:
    """A slope by the engine's gradients over the same slope by a central difference, in float64: 1 if both are right.

    It is the slope of a randomly weighted sum of the function's values, along a random direction of all the points
    (tensors that it depends on). As it may be near 0 by chance, 1 plus the difference of both, relative to the root sum
    of squares of its terms.
    """
    leaves = list(points)
    places = [leaf.data for leaf in leaves]
    ways = [to_backend(random.standard_normal(leaf.shape), default_backend()) for leaf in leaves]
    out = function()
    weights = Tensor(to_backend(random.standard_normal(out.shape), default_backend()))
    gradients = grad((out * weights).sum(), leaves)
    terms = np.concatenate([to_numpy(g.data * way).ravel() for g, way in zip(gradients, ways, strict=True)])

    def moved(step: float) -> float:
        for leaf, place, way in zip(leaves, places, ways, strict=True):
            leaf.data = place + step * way
        with no_grad():
            return (function() * weights).sum().item()

    step = 1e-8  # so short that hardly ever a unit passes a kink on the way
    quotient = (moved(step) - moved(-step)) / (2.0 * step)
    moved(0.0)  # back to where they were
    return float(1.0 + (terms.sum() - quotient) / np.linalg.norm(terms))


def singular_values(function: Callable[[Tensor], Tensor], x: Tensor) -> HostArray:
    """Those of the Jacobian at one sample."""
    return np.linalg.svd(to_numpy(whole_jacobian(function, x)).astype(np.float64), compute_uv=False)


def preactivation_statistics(
    random: np.random.Generator, width: int, depth: int, inputs: int, input_scale: float = 1.0, **settings: Any
) -> HostArray:
    """Of the pre-activations of each layer of a random network: (3, depth), without bias.

    E u^2; the variance of a unit over inputs, averaged over units; and the mean square of the units' means. A layer
    of the same weights without activation shows the pre-activations u.
    """
    x = gaussian(random, inputs, width) * input_scale
    found = np.empty((3, depth))
    with no_grad():
        for depth_here in range(depth):
            layer = random_layer(random, width, width, **settings)
            linear = layer_with(to_numpy(layer.weight.data), activation="identity", gamma=to_numpy(layer.gamma.data))
            u = to_numpy(linear(x).data).astype(np.float64)
            variance = u.var(axis=0, ddof=1).mean()
            found[:, depth_here] = (u * u).mean(), variance, (u.mean(axis=0) ** 2).mean() - variance / inputs
            x = layer(x)
    return found


def seeded(random: np.random.Generator) -> None:
    """Let the layers' own initialisation draw its next weights from here."""
    manual_seed(int(random.integers(2**62)))


def dense(random: np.random.Generator, width: int, variance: float = 1.0) -> Linear:
    """A square linear layer without bias, of Gaussian weights of this variance over the width: 2 is He's."""
    layer = Linear(width, width, bias=False)
    layer.weight.data = gaussian(random, width, width).data * math.sqrt(variance / width)
    return layer


def orthogonal_samples(random: np.random.Generator, count: int, width: int, mean_square: float = 1.0) -> Tensor:
    """So many samples that are orthogonal to each other, in random directions."""
    basis = np.linalg.qr(random.standard_normal((width, count)))[0].T
    return tensor((math.sqrt(width * mean_square) * basis).astype(np.float32))


def probe(random: np.random.Generator, network: Module, x: Tensor, centered: bool = False) -> tuple[HostArray, float]:
    """The output for a batch, and the mean-square gain of a gradient on its way back: of a random one, and so, on
    average, |J|^2 / n for the Jacobian J of all outputs by all n inputs. BatchNorm lets pass what is centred over the
    batch only: so is the gradient that it hands on.
    """
    x = Tensor(x.data, requires_grad=True)
    out = network(x)
    cotangent = random.standard_normal(out.shape, np.float32)
    if centered:
        cotangent -= cotangent.mean(axis=0)
    (found,) = grad(out, x, to_backend(cotangent, default_backend()))
    gain = float((found.data.astype("float64") ** 2).sum()) / float((cotangent.astype("float64") ** 2).sum())
    return to_numpy(out.data).astype(np.float64), gain
