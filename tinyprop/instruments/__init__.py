"""Instruments for whole networks: spectra of Jacobians, correlations of similar inputs, comparisons
of normalisers, and the figures of depth."""

from .examine import Examination, LayerExamination, examine
from .faults import Fault
from .probes import Correlation, Spectrum, correlations, spectra

__all__ = [
    "Correlation",
    "Examination",
    "Fault",
    "LayerExamination",
    "Spectrum",
    "correlations",
    "examine",
    "spectra",
]
