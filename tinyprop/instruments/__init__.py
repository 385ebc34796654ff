"""Instruments for whole networks: spectra of Jacobians, correlations of similar inputs, comparisons
of normalisers, and the figures of depth."""

from .probes import Correlation, Spectrum, correlations, spectra

__all__ = ["Correlation", "Spectrum", "correlations", "spectra"]
