"""Residual blocks, and what keeps their variance known."""

from ..engine.errors import explain
from ..engine.tensor import Tensor
from .module import Module


class Residual(Module):
    """h + alpha branch(h / beta): a residual block, with the bookkeeping of Brock et al. (2021).

    If h has variance beta^2 and the branch keeps a variance of 1, the output has variance beta^2 +
    alpha^2, so block l of a chain gets beta^2 = 1 + l alpha^2. With a `shortcut`, as where a block
    changes the number of channels, both paths get h / beta, and the output has variance 1 +
    alpha^2. `variance` is what the next block needs.

    >>> first = tp.nn.Residual(tp.nn.NormPropLinear(8, 8), alpha=0.5)
    >>> second = tp.nn.Residual(tp.nn.NormPropLinear(8, 8), alpha=0.5, beta=first.variance**0.5)
    >>> round(second.variance, 12)
    1.5
    """

    def __init__(
        self, branch: Module, alpha: float = 1.0, beta: float = 1.0, shortcut: Module | None = None
    ):
        if not beta > 0:
            rule = "it is the standard deviation of the input"
            raise ValueError(explain(f"Residual(beta={beta})", rule, "beta=1.0"))
        self.alpha = alpha
        self.beta = beta
        self.branch = branch
        self.shortcut = shortcut

    @property
    def variance(self) -> float:
        """The variance of the output, if the input has variance beta^2 and the branch keeps a
        variance of 1."""
        other_path = self.beta**2 if self.shortcut is None else 1.0
        return self.alpha**2 + other_path

    def forward(self, h: Tensor) -> Tensor:
        # A factor of 1 costs no op.
        x = h if self.beta == 1.0 else h * (1.0 / self.beta)
        branch = self.branch(x)
        if self.alpha != 1.0:
            branch = self.alpha * branch
        other_path = h if self.shortcut is None else self.shortcut(x)
        return other_path + branch

    def extra_repr(self) -> str:
        return f"alpha={self.alpha!r}, beta={self.beta!r}"


class Scale(Module):
    """x times a fixed number, for instance after the last of several residual blocks.

    >>> tp.nn.Scale(0.5)(tp.tensor([1.0, 2.0]))
    tensor([0.5, 1. ])
    """

    def __init__(self, factor: float):
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor

    def extra_repr(self) -> str:
        return repr(self.factor)
