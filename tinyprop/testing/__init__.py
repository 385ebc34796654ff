"""Checks of layers, activations and gradients, tinyprop's and yours."""

from .failure import CheckError, Failure
from .gradients import check_gradients
from .layer import check_layer

__all__ = [
    "CheckError",
    "Failure",
    "check_gradients",
    "check_layer",
]
