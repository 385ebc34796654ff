"""Checks of layers, activations and gradients, tinyprop's and yours."""

from .failure import CheckError, Failure
from .gradients import check_gradients
from .layer import check_layer
from .moments import check_moments
from .normalized import Normalized, check_normalized

__all__ = [
    "CheckError",
    "Failure",
    "Normalized",
    "check_gradients",
    "check_layer",
    "check_moments",
    "check_normalized",
]
