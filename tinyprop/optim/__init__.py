"""Optimizers, learning-rate schedules, and the unit-length constraint."""

from .constraint import normalize_weights
from .optimizers import SGD, Adam, Optimizer, RMSProp
from .schedules import HalveEvery, HalveOnPlateau

__all__ = [
    "SGD",
    "Adam",
    "HalveEvery",
    "HalveOnPlateau",
    "Optimizer",
    "RMSProp",
    "normalize_weights",
]
