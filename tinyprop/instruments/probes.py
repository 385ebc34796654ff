"""Two instruments for any network and any input: singular values of Jacobians, and correlations of
pairs of inputs.

Both return one record for each layer, as `tp.nn.signals` does for signals and gradients.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .. import nn
from ..engine.arrays import HostArray, array_module, from_host, to_numpy
from ..engine.backward import grad
from ..engine.errors import explain
from ..engine.random import new_generator
from ..engine.tensor import Tensor
from ..functional.derivatives import jvp
from ..nn.declare import can_be_split
from ..nn.module import observing
from ..nn.observation import Observation, observe, outermost, until

SMALL = 256  # numbers in and out, up to which a Jacobian is computed in full
ROUNDS = 8  # in which a block of vectors is multiplied by the Jacobian and by its transpose
NEGLIGIBLE = 1e-5  # differences of float32 vectors, relative to them


@dataclass(frozen=True)
class Spectrum:
    """Singular values of the Jacobian of one layer, and of that of the network so far, largest
    first.

    >>> net = tp.nn.Sequential(tp.nn.Linear(2, 2, bias=False), tp.nn.ReLU())
    >>> net[0].weight.data[...] = [[3.0, 0.0], [0.0, -4.0]]
    >>> x = tp.tensor([[1.0, 1.0]])
    >>> [(s.layer, s.own.tolist(), s.product.tolist()) for s in spectra(net, x)]
    [('0 Linear', [4.0, 3.0], [4.0, 3.0]), ('1 ReLU', [1.0, 0.0], [3.0, 0.0])]
    """

    layer: str  # name and class, as "2 MaxPool2d"
    own: HostArray
    product: HostArray
    # all singular values, by a full decomposition; otherwise the largest ones, by a randomised one
    exact: bool


def spectra(model: nn.Module, x: Tensor, largest: int = 8, seed: int = 0) -> list[Spectrum]:
    """The singular values of every layer's Jacobian at a batch x, and of the product of the
    Jacobians so far.

    The Jacobian is that of the whole batch, which is block-diagonal if samples do not depend on
    each other. Up to SMALL numbers in and out of the layers it is computed in full. Beyond, the
    `largest` are approached from below, by blocks of vectors (randomised Krylov iteration: Musco
    and Musco, 2015). Layers keep their mode, and the model its state.

    >>> net = tp.nn.Sequential(tp.nn.ReLU(), tp.nn.Tanh())
    >>> [s.product.round(4).tolist() for s in spectra(net, tp.tensor([[0.5, -3.0]]))]
    [[1.0, 0.0], [0.7864, 0.0]]
    """
    if any(isinstance(module, nn.Dropout) and module.training for module in model.modules()):
        rule = "a Jacobian belongs to one function, and dropout draws another one each time"
        raise ValueError(
            explain("spectra of a network with dropout in training mode", rule, "model.eval()")
        )
    separate = samples_are_separate(model)
    found = []
    with observing():
        for i, record in enumerate(outermost(observe(model, x))):
            y = record.output
            own = Jacobian(layer_function(record), record.input, y, separate)
            whole = Jacobian(until(model, i), x, y, separate)
            exact = max(x.size, record.input.size, y.size) <= SMALL
            values = []
            for jacobian in (own, whole):
                values.append(jacobian.all() if exact else jacobian.largest(largest, seed))
            found.append(Spectrum(record.name, values[0], values[1], exact))
    return found


def layer_function(record: Observation) -> Callable[[Tensor], Tensor]:
    """The layer as a function of the first tensor that it was called with; what else it was called
    with stays as it was."""

    def function(x: Tensor) -> Tensor:
        arguments = [x if value is record.input else value for value in record.arguments]
        keywords = {k: x if v is record.input else v for k, v in record.keywords.items()}
        return record.layer(*arguments, **keywords)

    return function


def samples_are_separate(model: nn.Module) -> bool:
    """Whether no sample depends on others of its batch, as far as is known."""
    for module in model.modules():
        looks_across = module.training and (module.draws_for_batch or module.sums_over_batch)
        if looks_across or not can_be_split(module):
            return False
    return True


class Jacobian:
    """Products of blocks of vectors (rows) with the Jacobian of a function at a batch x, whose
    output is y. Samples may be `separate`: none depends on the others."""

    def __init__(self, function: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, separate: bool):
        self.function = function
        self.x = x.detach()
        self.y = y
        self.separate = separate

    def times(self, block: HostArray) -> HostArray:
        """J v for each vector v: (k, inputs) -> (k, outputs)."""
        return self._in_blocks(block, self.x, lambda x, v: jvp(self.function, x, v)[1])

    def transposed(self, block: HostArray) -> HostArray:
        """u J for each vector u: (k, outputs) -> (k, inputs)."""

        def pull(x: Tensor, u: Tensor) -> Tensor:
            x = Tensor(x.data, requires_grad=True)
            return grad(self.function(x), x, u)[0]

        return self._in_blocks(block, self.y, pull)

    def _in_blocks(
        self, block: HostArray, like: Tensor, product: Callable[[Tensor, Tensor], Tensor]
    ) -> HostArray:
        """If samples do not depend on each other, all vectors at once, each with its own copy of
        the batch."""
        xp, k = array_module(self.x.data), len(block)
        vectors = from_host(block.astype(like.dtype), like=like.data).reshape(k, *like.shape)
        if self.separate:
            copies = xp.concatenate([self.x.data] * k)  # (k N, ...)
            results = [product(Tensor(copies), Tensor(vectors.reshape(-1, *like.shape[1:])))]
        else:
            results = [product(self.x, Tensor(vector)) for vector in vectors]
        return (
            np.concatenate([to_numpy(result.data) for result in results])
            .astype(np.float64)
            .reshape(k, -1)
        )

    def all(self) -> HostArray:
        """All singular values."""
        return np.linalg.svd(self.transposed(np.eye(self.y.size)), compute_uv=False)

    def largest(self, count: int, seed: int) -> HostArray:
        """The largest singular values, by the projection of J on the space of J v, J J^T J v, ...
        for random v."""
        count = min(count, self.x.size, self.y.size)
        block = new_generator(seed).standard_normal((count, self.x.size))
        basis, projected = np.empty((0, self.y.size)), np.empty((0, self.x.size))
        for _ in range(ROUNDS):
            block = self.times(block / np.linalg.norm(block))
            for _ in range(2):  # rounding makes the first not quite orthogonal to the basis
                _, sizes, rows = np.linalg.svd(block - block @ basis.T @ basis, full_matrices=False)
                # elsewhere there is only rounding
                block = rows[sizes > NEGLIGIBLE * np.linalg.norm(block)]
            if not len(block):  # the basis is complete
                break
            basis, block = np.concatenate([basis, block]), self.transposed(block)
            projected = np.concatenate([projected, block])
        return np.pad(np.linalg.svd(projected, compute_uv=False), (0, count))[:count]


@dataclass(frozen=True)
class Correlation:
    """The cosine between the outputs of one layer for the two inputs of each pair.

    >>> x = tp.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    >>> correlations(tp.nn.Sequential(tp.nn.Identity()), x, degrees=60.0)[0].cosines.round(6)
    array([0.5, 0.5])
    """

    layer: str  # name and class, as "2 MaxPool2d"
    cosines: HostArray


def correlations(
    model: nn.Module, x: Tensor, degrees: float = 60.0, seed: int = 0
) -> list[Correlation]:
    """Follow pairs of inputs through all layers: each sample of x, and another of its length, in a
    random direction at this angle to it. All are in one batch. The layers run in their own mode,
    and the model stays as it is.

    >>> (found,) = correlations(tp.nn.Identity(), tp.tensor([[2.0, 0.0]]), degrees=45.0)
    >>> found.cosines.round(6)
    array([0.707107])
    """
    given = to_numpy(x.data).astype(np.float64).reshape(len(x), -1)
    lengths = np.linalg.norm(given, axis=1, keepdims=True)
    if not lengths.all() or given.shape[1] < 2:
        got, rule = f"correlations of inputs {x.shape}", "each has a direction"
        raise ValueError(explain(got, rule, "at least 2 numbers, not 0"))
    # whose seed is unlikely to be that of the data
    other = new_generator([seed, len(x)]).standard_normal(given.shape)
    other -= given * (given * other).sum(axis=1, keepdims=True) / lengths**2
    other *= lengths / np.linalg.norm(other, axis=1, keepdims=True)
    pairs = np.concatenate(
        [given, math.cos(math.radians(degrees)) * given + math.sin(math.radians(degrees)) * other]
    )
    pairs = pairs.astype(x.dtype if x.dtype.kind == "f" else np.float32).reshape(-1, *x.shape[1:])
    found = []
    for record in outermost(observe(model, from_host(pairs, like=x.data))):
        outputs = to_numpy(record.output.data).astype(np.float64)
        one, two = outputs.reshape(2, len(x), -1)
        products = (one * two).sum(axis=1)
        norms = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
        found.append(Correlation(record.name, products / norms))
    return found
