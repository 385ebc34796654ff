"""Wide layers of random weights: one recursion for the mean products of values over channels.

For two inputs a and b, let K_ab be the mean over the channels of a layer of x_a x_b, and m_a that
of x_a. Weights of mean 0 make weighted sums that are Gaussian with covariance K, by the central
limit theorem, so K after a layer follows from K before it. Going backwards, the squared gradient is
multiplied by E s'(u)^2 at an activation, and by what weights and normalisers multiply squares by.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from .. import moments
from ..engine.arrays import HostArray
from ..functional.activation import AnyActivation, as_activation
from ..moments.many import covariances
from .field import Pointwise

# deep networks ask for the same moments again and again
gaussian = lru_cache(maxsize=4096)(moments.gaussian)


@dataclass(frozen=True)
class Sites:
    """Inputs of the same length, and what a wide layer makes of them. Each method is what one kind
    of layer does.

    Two inputs at a right angle, in a layer of ReLU and He's weights:

    >>> after = Sites.at([0.0]).activation("relu").weights(2.0)
    >>> round(after.square, 12), after.products.round(6), round(after.gain, 12)
    (1.0, array([0.31831]), 1.0)
    """

    square: float  # K_aa, the same for all inputs
    products: HostArray  # K_ab for pairs of them
    mean: float = 0.0  # m_a
    gain: float = 1.0  # of the squared gradient, from these values back to the first

    @classmethod
    def at(cls, cosines: Any, square: float = 1.0) -> "Sites":
        """Pairs of inputs with these cosines between them."""
        return cls(square, square * np.asarray(cosines, "float64"))

    @property
    def cosines(self) -> HostArray:
        """Between the values of each pair."""
        return self.products / self.square

    def weights(self, square: float, center: bool = False) -> "Sites":
        """Random weights with |row|^2 = square on average; rows that add up to 0 see the deviations
        from the mean over channels."""
        before = self.centered() if center else self
        after = before.scaled(square)
        return replace(after, mean=0.0)

    def scaled(self, square: float) -> "Sites":
        """Values whose squares are multiplied by this."""
        return Sites(
            square * self.square,
            square * self.products,
            math.sqrt(square) * self.mean,
            square * self.gain,
        )

    def activation(self, activation: AnyActivation, shift: float = 0.0, **params: Any) -> "Sites":
        """s(u + shift) of weighted sums u: the dual activation, E s, and E s'^2."""
        std = math.sqrt(self.square)
        found = gaussian(activation, shift, std, **params)
        rho = np.clip(self.products / self.square, -1.0, 1.0)
        record = as_activation(activation)
        one = Pointwise(record, params).units(np.array([shift]), np.array([self.square]))
        others = one.take(np.zeros(len(rho), int))
        variance = np.full(len(rho), found.std**2)
        pairs, _ = covariances(one, others, rho[None], (variance[:1], variance))
        covariance = np.where(rho == 1.0, variance, pairs[0])
        product_of_means = found.mean**2
        return Sites(
            found.std**2 + product_of_means,
            covariance + product_of_means,
            found.mean,
            found.slope2 * self.gain,
        )

    def moved(self, number: float) -> "Sites":
        """Values plus a number."""
        change = number * (2.0 * self.mean + number)
        return replace(
            self,
            square=self.square + change,
            products=self.products + change,
            mean=self.mean + number,
        )

    def centered(self) -> "Sites":
        """Values minus their mean over channels."""
        return self.moved(-self.mean)

    def normalized(self, gamma: float = 1.0, center: bool = False) -> "Sites":
        """LayerNorm with `center`, or RMSNorm, with a gamma."""
        before = self.centered() if center else self
        return before.scaled(gamma**2 / before.square)

    def batch_normalized(self, unrelated: int, gamma: float = 1.0) -> "Sites":
        """BatchNorm of a large batch of unrelated inputs, as those of this pair are: it removes
        what they have in common."""
        common = float(self.products[unrelated])
        rest = replace(self, square=self.square - common, products=self.products - common)
        return replace(rest.scaled(gamma**2 / rest.square), mean=0.0)

    def plus(self, branch: "Sites") -> "Sites":
        """With a branch of these values added, which ends in random weights of its own."""
        return Sites(
            self.square + branch.square,
            self.products + branch.products,
            self.mean,
            self.gain + branch.gain,
        )
