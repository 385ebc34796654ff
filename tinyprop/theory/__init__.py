"""Predictions for networks: moments of their layers, gains, activations designed for a depth."""

from ..nn.state import State
from .design import Design, design
from .propagate import Propagated, propagate

__all__ = ["Design", "Propagated", "State", "design", "propagate"]
