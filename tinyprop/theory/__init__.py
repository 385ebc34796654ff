"""Predictions for networks: moments of their layers, gains, activations designed for a depth; and
two instruments."""

from .design import Design, design
from .instruments import Correlation, Spectrum, correlations, spectra
from .propagate import Propagated, propagate

__all__ = [
    "Correlation",
    "Design",
    "Propagated",
    "Spectrum",
    "correlations",
    "design",
    "propagate",
    "spectra",
]
