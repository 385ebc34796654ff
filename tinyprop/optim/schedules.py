"""Learning-rate schedules: each is told when an epoch ends, and changes the optimizer's `lr`."""

from ..engine.errors import explain
from .optimizers import Optimizer


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
        if n < 1 or n != int(n):
            raise ValueError(
                explain(f"HalveEvery({n})", "it counts whole epochs, at least 1", "HalveEvery(10)")
            )
        self.n, self.epochs = n, 0

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
        if patience < 1 or patience != int(patience):
            got = f"HalveOnPlateau({patience})"
            raise ValueError(
                explain(
                    got, "patience is a whole number of epochs, at least 1", "HalveOnPlateau(3)"
                )
            )
        self.patience, self.best, self.waited = patience, float("inf"), 0

    def epoch_ended(self, optimizer: Optimizer, error: float) -> None:
        self.waited += 1
        if error < self.best:
            self.best, self.waited = error, 0
        elif self.waited >= self.patience:
            optimizer.lr /= 2
            self.waited = 0


class LinearTo:
    """Change the learning rate by equal amounts after each epoch, from its value at the start to
    `final_lr`.

    >>> optimizer = tp.optim.SGD([tp.tensor([1.0], requires_grad=True)], lr=0.4)
    >>> schedule = tp.optim.LinearTo(0.0, epochs=4)
    >>> for epoch in range(3):
    ...     schedule.epoch_ended(optimizer, error=0.0)
    >>> round(optimizer.lr, 6)
    0.1
    """

    def __init__(self, final_lr: float, epochs: int):
        if epochs < 1 or epochs != int(epochs) or not 0 <= final_lr < float("inf"):
            rule = (
                "the last learning rate is a finite number >= 0, and epochs a whole number of at "
                "least 1"
            )
            raise ValueError(
                explain(f"LinearTo({final_lr}, epochs={epochs})", rule, "LinearTo(0.0, epochs=10)")
            )
        self.final_lr, self.epochs = final_lr, epochs
        self.first_lr: float | None = None  # known when the first epoch ends
        self.ended = 0  # epochs so far

    def epoch_ended(self, optimizer: Optimizer, error: float) -> None:
        if self.first_lr is None:
            self.first_lr = optimizer.lr
        self.ended = min(self.ended + 1, self.epochs)
        left = (self.epochs - self.ended) / self.epochs
        optimizer.lr = left * self.first_lr + (1 - left) * self.final_lr
