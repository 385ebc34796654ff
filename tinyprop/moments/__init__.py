"""Moments of activations under Gaussian input."""

from . import builtin  # noqa: F401 (registers our activations)
from .dual import Dual, dual
from .gaussian import Moments, Simulation, gaussian, simulate

__all__ = ["Dual", "Moments", "Simulation", "dual", "gaussian", "simulate"]
