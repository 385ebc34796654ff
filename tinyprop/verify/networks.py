"""Random NormProp layers and networks, and what is measured on them, all by running the engine."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..engine.arrays import Array, HostArray, array_module, default_backend, to_backend, to_numpy
from ..engine.backward import grad
from ..engine.graph import no_grad
from ..engine.tensor import Tensor, tensor
from ..nn import NormPropLinear, Sequential


def gaussian(random: np.random.Generator, *shape: int) -> Tensor:
    """Standard normal numbers, drawn in float32 on the host, as a tensor of the default backend."""
    return tensor(random.standard_normal(shape, np.float32))


def layer_with(rows: Any, **settings: Any) -> NormPropLinear:
    """A NormProp layer with these weights (units, inputs)."""
    rows = np.asarray(rows, np.float32)
    units, inputs = rows.shape
    layer = NormPropLinear(inputs, units, **settings)
    layer.weight.data = to_backend(rows, default_backend())
    return layer


def random_layer(random: np.random.Generator, units: int, inputs: int, **settings: Any) -> NormPropLinear:
    """A NormProp layer whose rows point in random directions, uniformly."""
    return layer_with(random.standard_normal((units, inputs), np.float32), **settings)


def random_network(random: np.random.Generator, width: int, depth: int, **settings: Any) -> Sequential:
    return Sequential(*(random_layer(random, width, width, **settings) for _ in range(depth)))


def rows_at_cosine(rho: float) -> HostArray:
    """Two rows of unit length, and the cosine of their angle."""
    return np.array([[1.0, 0.0], [rho, (1.0 - rho * rho) ** 0.5]])


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


def difference_ratio(function: Callable[..., Tensor], points: Sequence[Tensor], random: np.random.Generator) -> float:
    """A slope by the engine's gradients over the same slope by a central difference, in float64: 1 if both are right.

    It is the slope of a randomly weighted sum of the function's values, along a random direction of all its arguments.
    As it may be near 0 by chance, 1 plus the difference of both, relative to the root sum of squares of its terms.
    """
    leaves = [Tensor(point.data, requires_grad=True) for point in points]
    ways = [to_backend(random.standard_normal(point.shape), default_backend()) for point in points]
    out = function(*leaves)
    weights = Tensor(to_backend(random.standard_normal(out.shape), default_backend()))
    gradients = grad((out * weights).sum(), leaves)
    terms = np.concatenate([to_numpy(g.data * way).ravel() for g, way in zip(gradients, ways, strict=True)])

    def moved(step: float) -> Tensor:
        with no_grad():
            values = function(*(Tensor(leaf.data + step * way) for leaf, way in zip(leaves, ways, strict=True)))
            return (values * weights).sum()

    step = 1e-8  # so short that hardly ever a unit passes a kink on the way
    quotient = (moved(step) - moved(-step)).item() / (2.0 * step)
    return float(1.0 + (terms.sum() - quotient) / np.linalg.norm(terms))


def singular_values(matrix: Array) -> HostArray:
    return np.linalg.svd(to_numpy(matrix).astype(np.float64), compute_uv=False)


def preactivation_statistics(
    random: np.random.Generator,
    width: int,
    depth: int,
    inputs: int,
    beta: float | None = None,
    input_scale: float = 1.0,
    **settings: Any,
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
            if beta is not None:
                layer.beta.data[...] = beta
            linear = layer_with(to_numpy(layer.weight.data), activation="identity", gamma=to_numpy(layer.gamma.data))
            u = to_numpy(linear(x).data).astype(np.float64)
            variance = u.var(axis=0, ddof=1).mean()
            found[:, depth_here] = (u * u).mean(), variance, (u.mean(axis=0) ** 2).mean() - variance / inputs
            x = layer(x)
    return found
