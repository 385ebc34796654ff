"""Checks of layers, activations and gradients, tinyprop's and yours."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .failure import CheckError, Failure
from .gradients import check_gradients
from .layer import check_layer
from .moments import check_moments
from .normalized import Normalized, check_normalized

if TYPE_CHECKING:
    from . import strategies

__all__ = [
    "CheckError",
    "Failure",
    "Normalized",
    "check_gradients",
    "check_layer",
    "check_moments",
    "check_normalized",
    "strategies",
]


def __getattr__(name: str) -> Any:
    """Strategies need hypothesis, so they are loaded on first use."""
    if name == "strategies":
        return import_module(".strategies", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
