"""Learning-rate schedules: call `epoch_ended` after each epoch, which changes the optimizer's
`lr`."""

from ..engine.errors import explain
from .optimizers import Optimizer


def _is_count(n: float) -> bool:
    return n >= 1 and n == int(n)


class HalveEvery:
    """Halve the learning rate after every n epochs.

    >>> optimizer = tp.optim.SGD([tp.tensor([1.0], requires_grad=True)], lr=0.4)
    >>> schedule = tp.optim.HalveEvery(2)
    >>> for epoch in range(4):
    ...     schedule.epoch_ended(optimizer, error=0.0)
    >>> optimizer.lr
    0.1
    """

    def __init__(self, n: int):
        if not _is_count(n):
            rule = "it counts whole epochs, at least 1"
            raise ValueError(explain(f"HalveEvery({n})", rule, "HalveEvery(10)"))
        self.n = n
        self.epochs = 0  # so far

    def epoch_ended(self, optimizer: Optimizer, error: float) -> None:
        self.epochs += 1
        if self.epochs % self.n == 0:
            optimizer.lr /= 2


class HalveOnPlateau:
    """Halve the learning rate when the training error has not improved for `patience` epochs
    (section 4.4).

    >>> optimizer = tp.optim.SGD([tp.tensor([1.0], requires_grad=True)], lr=0.4)
    >>> schedule = tp.optim.HalveOnPlateau(patience=2)
    >>> for error in (0.5, 0.5, 0.5):
    ...     schedule.epoch_ended(optimizer, error)
    >>> optimizer.lr
    0.2
    """

    def __init__(self, patience: int = 3):
        if not _is_count(patience):
            rule = "patience is a whole number of epochs, at least 1"
            raise ValueError(explain(f"HalveOnPlateau({patience})", rule, "HalveOnPlateau(3)"))
        self.patience = patience
        self.best = float("inf")
        self.waited = 0  # epochs since the best error, or since the last halving

    def epoch_ended(self, optimizer: Optimizer, error: float) -> None:
        if error < self.best:
            self.best = error
            self.waited = 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            optimizer.lr /= 2
            self.waited = 0
