"""Random layers and networks, and what is measured on them, all by running the engine."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from .. import Tensor, grad, manual_seed, no_grad, tensor
from ..engine.arrays import HostArray, array_module, default_backend, to_backend, to_numpy
from ..engine.random import next_key, normals
from ..nn import BatchNorm, Linear, Module, Normalizer, NormPropLinear, Sequential
from ..theory.stacks import Stack


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


def one_unit(**settings: Any) -> NormPropLinear:
    """A NormProp layer of one unit and one input, of weight 1: its pre-activation is its input."""
    return layer_with([[1.0]], **settings)


def two_units(rho: float, **settings: Any) -> NormPropLinear:
    """A NormProp layer of gamma = 1 with two units, whose rows have the cosine rho."""
    first = [1.0, 0.0]
    second = [rho, (1.0 - rho * rho) ** 0.5]
    return layer_with([first, second], gamma=1.0, **settings)


def jacobian_rows(
    function: Callable[[Tensor], Tensor], x: Tensor, units: Sequence[int]
) -> list[Tensor]:
    """For each sample of a batch, the rows of the Jacobian that belong to some units: (samples,
    inputs) each."""
    x = Tensor(x.data, requires_grad=True)
    out = function(x)
    return [grad(out[:, unit].sum(), x, retain_graph=True)[0] for unit in units]


def jacobians(function: Callable[[Tensor], Tensor], x: Tensor) -> HostArray:
    """The Jacobian of each sample of a batch x, (samples, outputs, inputs), in one backward pass: a
    copy of the batch for each output. No sample may depend on another."""
    xp = array_module(x.data)
    samples = len(x.data)
    with no_grad():
        outputs = function(x).size // samples
    copies = x.data.repeat(outputs, axis=0)  # (samples, ...) -> (samples*outputs, ...)
    leaf = Tensor(copies, requires_grad=True)
    out = function(leaf)
    each_output = xp.eye(outputs, dtype=out.dtype)
    cotangent = xp.tile(each_output, (samples, 1)).reshape(out.shape)
    (rows,) = grad(out, leaf, cotangent)
    found = to_numpy(rows.data).astype(np.float64)
    return found.reshape(samples, outputs, -1)


def whole_jacobian(function: Callable[[Tensor], Tensor], x: Tensor) -> HostArray:
    """The Jacobian (outputs, inputs) at one sample. It equals `tp.jacobian`, which takes one
    backward pass for each output."""
    return jacobians(function, Tensor(x.data[None]))[0]


def singular_values(jacobian: HostArray) -> HostArray:
    """Largest first, as square roots of the eigenvalues of J J^T or J^T J, whichever is smaller:
    rows that are 0 are left out, which makes this several times as fast as a decomposition of J."""
    seen = jacobian[jacobian.any(axis=1)]
    gram = seen @ seen.T if len(seen) <= seen.shape[1] else seen.T @ seen
    squares = np.linalg.eigvalsh(gram)[::-1]
    values = np.zeros(min(jacobian.shape))
    values[: len(squares)] = np.sqrt(np.maximum(squares, 0.0))
    return values


def seeded(random: np.random.Generator) -> None:
    """Let the layers' own initialisation draw its next weights from here."""
    manual_seed(int(random.integers(2**62)))


# BatchNorm divides by the standard deviation itself
EXACT_BATCH_NORM = Normalizer("batch-norm", before=partial(BatchNorm, eps=0.0), bias=False)


def dense(random: np.random.Generator, width: int) -> Linear:
    """A square linear layer without bias, of Gaussian weights of variance 1 over the width."""
    layer = Linear(width, width, bias=False)
    layer.weight.data = gaussian(random, width, width).data / math.sqrt(width)
    return layer


def random_network(random: np.random.Generator, stack: Stack) -> Sequential:
    """A random network: stages that end before an activation, or residual blocks."""
    seeded(random)
    return stack.network()


def random_layers(random: np.random.Generator, stack: Stack) -> Sequential:
    """A random network, cut into layers that end with their activation."""
    modules = [module for stage in random_network(random, stack) for module in stage]
    modules += stack.activated(stack.width)
    size = len(modules) // stack.depth
    starts = range(0, len(modules), size)
    return Sequential(*(Sequential(*modules[i : i + size]) for i in starts))


def normprop_layers(
    width: int,
    depth: int,
    mode: str = "paper",
    gamma: float | None = None,
    beta: float | None = None,
) -> Stack:
    """Square layers of NormProp and ReLU whose rows point in random directions, uniformly."""
    norm = {"paper": "normprop", "exact": "normprop-exact"}[mode]
    return Stack(norm, "relu", depth, width, 1, False, gamma, beta, init="lecun")


def orthogonal_samples(
    random: np.random.Generator, count: int, width: int, mean_square: float = 1.0
) -> Tensor:
    """So many samples that are orthogonal to each other, in random directions."""
    directions, _ = np.linalg.qr(random.standard_normal((width, count)))
    samples = math.sqrt(width * mean_square) * directions.T
    return tensor(samples.astype(np.float32))


def probe(
    random: np.random.Generator, network: Module, x: Tensor, centered: bool = False
) -> dict[str, float]:
    """A batch on its way forward, and a random gradient on its way back.

    "gain" is the mean-square gain of the gradient: on average |J|^2 / n for the Jacobian J of all
    outputs by all n inputs. "square" is the mean square of the outputs, "square of squares" that
    mean square of single samples, squared and averaged over the batch, and "variance" that over the
    batch. BatchNorm passes on only what is centred over the batch: then the gradient is, too."""
    x = Tensor(x.data, requires_grad=True)
    out = network(x)
    given = random.standard_normal(out.shape, np.float32)
    if centered:
        given -= given.mean(axis=0)
    (arrived,) = grad(out, x, to_backend(given, default_backend()))
    before = given.astype(np.float64)
    after = arrived.numpy().astype(np.float64)
    values = out.numpy().astype(np.float64)
    squares = (values**2).mean(axis=1)
    return {
        "gain": float((after**2).sum() / (before**2).sum()),
        "square": float(squares.mean()),
        "square of squares": float((squares**2).mean()),
        "variance": float(values.var(axis=0, ddof=1).mean()),
    }
