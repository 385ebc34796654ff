"""Moments of activations under Gaussian input."""

from .gaussian import Moments, Simulation, gaussian, simulate

__all__ = ["Moments", "Simulation", "gaussian", "simulate"]
