"""Checks of functions and modules, tinyprop's and yours."""

from .gradients import check_gradients

__all__ = ["check_gradients"]
