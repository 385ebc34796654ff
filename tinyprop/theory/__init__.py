"""Predictions for networks: moments of their layers, and activations designed for a depth."""

from .propagate import Propagated, propagate

__all__ = ["Propagated", "propagate"]
