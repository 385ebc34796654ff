"""Checks of layers and activations, tinyprop's and yours. Each raises an error that names what is
wrong; `strategies` draws tensors, layers and networks for property-based tests with hypothesis."""

from .gradients import check_gradients

__all__ = ["check_gradients"]
