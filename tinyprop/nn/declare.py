"""What a module declares about itself: attributes that theory, ranks and instruments go by, for a
module of tinyprop as for one of yours.

An attribute is declared for the code of the class that has it. A subclass with methods of its own
may compute something else, so it declares anew what still holds.
"""

from dataclasses import dataclass
from typing import Any

from .module import Module

# Methods that do not change what a module computes.
HARMLESS = {"__init__", "__repr__", "extra_repr", "propagate", "pre_activation"}


@dataclass(frozen=True)
class Statistics:
    """What a normaliser divides by, as its class attribute `statistics` declares it for theory.

    `over="batch"`: each unit is normalised over the samples (and positions), as in BatchNorm.
    `over="sample"`: each sample over its units (and positions), as in LayerNorm. `center` says that
    the mean is removed first; otherwise it divides by the root mean square. `group` is the number
    of units that are normalised together, if it is not all of them.

    >>> tp.nn.GroupNorm(2, 8).statistics
    Statistics(over='sample', center=True, group=4)
    """

    over: str
    center: bool = True
    group: int | None = None


@dataclass(frozen=True)
class Rows:
    """What is known of the rows of random weights of a layer, as its attribute `rows` declares it
    for theory: their mean squared length, or None if it is that of the weights as they were drawn,
    and whether each has sum 0.

    >>> tp.nn.WeightNorm(tp.nn.Linear(3, 2)).rows
    Rows(square=None, center=False)
    """

    square: float | None = None
    center: bool = False


def declared(module: Module, attribute: str) -> Any:
    """What a module declares, or Module's default if a subclass has methods of its own and does not
    declare it anew.

    >>> class Doubled(tp.nn.BatchNorm):
    ...     def forward(self, x):
    ...         return 2.0 * super().forward(x)
    >>> [declared(kind(3), "sums_over_batch") for kind in (tp.nn.BatchNorm, Doubled)]
    [True, False]
    """
    if attribute in vars(module):
        return getattr(module, attribute)
    for kind in type(module).__mro__:
        if attribute in vars(kind):
            return getattr(module, attribute)
        if _has_own_methods(kind):
            break
    return getattr(Module, attribute)


def _has_own_methods(kind: type) -> bool:
    for name, value in vars(kind).items():
        is_method = callable(value) or isinstance(value, (property, classmethod, staticmethod))
        if is_method and name not in HARMLESS:
            return True
    return False


def is_ours(thing: Any) -> bool:
    """Whether a class or function is tinyprop's."""
    package = __name__.split(".")[0]
    return str(getattr(thing, "__module__", "")).startswith(f"{package}.")


def can_be_split(module: Module) -> bool:
    """Whether the outputs for a batch follow from those for its parts, as far as is known: of
    tinyprop's own modules, and of those that are declared to treat each sample by itself or to sum
    over the batch by `over_batch`."""
    if is_ours(type(module)):
        return True
    return bool(declared(module, "per_sample") or declared(module, "sums_over_batch"))
