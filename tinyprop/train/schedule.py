"""The optimizer of a run, and its learning rate at each step."""

from typing import Any

from .. import optim
from ..nn.module import Module
from .config import Config


def optimizer_for(model: Module, config: Config) -> optim.Optimizer:
    """The optimizer that the settings describe, for all parameters of a network."""
    parameters = list(model.parameters())
    optimizer: optim.Optimizer
    if config.optimizer == "sgd":
        optimizer = optim.SGD(parameters, config.lr, config.momentum, config.weight_decay)
    else:
        optimizer = optim.RMSProp(
            parameters, config.lr, config.alpha, weight_decay=config.weight_decay
        )
    if config.decay_on == "weights":
        optimizer.decays = lambda p: p.ndim > 1
    return optimizer


class Schedule:
    """Sets the learning rate: halved after some epochs, or annealed to 0 step by step.

    >>> schedule = Schedule(tp.train.Config(schedule="linear", lr=0.4, epochs=4))
    >>> optimizer = tp.optim.SGD([tp.tensor([1.0], requires_grad=True)], lr=0.4)
    >>> schedule.before_step(optimizer, epochs_done=1.5)
    >>> optimizer.lr
    0.25
    """

    def __init__(self, config: Config):
        self.config = config
        self.halving: optim.HalveEvery | optim.HalveOnPlateau | None = None
        if config.schedule == "halve":
            self.halving = optim.HalveEvery(config.halve_every)
        elif config.schedule == "plateau":
            self.halving = optim.HalveOnPlateau(config.patience)

    @property
    def annealing_starts(self) -> int:
        """The epoch after which the rate falls to 0."""
        return self.config.epochs - (self.config.anneal or 0)

    def is_averaging(self, epoch: int) -> bool:
        """Whether the weights of this epoch, counted from 0, are averaged."""
        first = self.annealing_starts - (self.config.average or 0)
        return first <= epoch < self.annealing_starts

    def before_step(self, optimizer: optim.Optimizer, epochs_done: float) -> None:
        """Set the rate where it changes within an epoch."""
        config = self.config
        if config.schedule == "linear":
            optimizer.lr = config.lr * (1.0 - epochs_done / config.epochs)
        elif config.anneal is not None and epochs_done >= self.annealing_starts:
            start = self.annealing_starts
            rate = config.lr * 0.5 ** (start // config.halve_every)
            optimizer.lr = rate * (1.0 - (epochs_done - start) / config.anneal)

    def epoch_ended(self, optimizer: optim.Optimizer, loss: float) -> None:
        """Halve the rate, if it is time."""
        if self.halving is not None:
            self.halving.epoch_ended(optimizer, loss)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.halving is None else dict(vars(self.halving))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.halving is not None:
            vars(self.halving).update(state)
