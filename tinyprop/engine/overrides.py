"""The table of overrides. An op has one rule, written for readers; `kernels/` registers faster ways
to compute it:

    @override(WeightNorm.backward, on="cupy")
    def weight_norm_gradient(op, g, w, scale):      # arrays in, arrays out
        if not supported(g, w, scale):
            return NotImplemented                   # ask the next override, at last the rule itself
        ...

An override of `forward` always applies, one of `backward` unless create_graph=True asks for
gradients of gradients. With `tp.plain()`, or TINYPROP_PLAIN=1 in the environment, only the rules
are used."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from .arrays import backend_of, is_array
from .context import context, current

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class Override:
    """One entry of the table: which rule it replaces, on which backend, and whether it has been
    used."""

    rule: Callable[..., Any]
    backend: str
    function: Callable[..., Any]
    used: bool = False

    def __str__(self) -> str:
        return (
            f"{self.rule.__qualname__} on {self.backend}: "
            f"{self.function.__module__}.{self.function.__name__}"
        )


# By backend: makes, from a TrainingStep, what records this step and replays it. Only a device has
# one (kernels/graphs.py).
recorders: dict[str, Callable[[Any], Any]] = {}

table: dict[str, dict[Callable[..., Any], list[Override]]] = {"numpy": {}, "cupy": {}}


def override(
    rule: Callable[..., Any], on: str | Sequence[str] = ("numpy", "cupy")
) -> Callable[[R], R]:
    """Register a faster way to compute a rule: `forward` or `backward` of an Op class, or an
    `overridable` function. Earlier registrations are asked first."""
    rule = getattr(rule, "rule", rule)

    def register(function: Any) -> Any:
        for backend in (on,) if isinstance(on, str) else on:
            table[backend].setdefault(rule, []).append(Override(rule, backend, function))
        return function

    return register


def try_overrides(rule: Callable[..., Any], backend: str, *args: Any, **kwargs: Any) -> Any:
    """The result of the first override that does not decline; NotImplemented if all do."""
    if not current().plain:
        for entry in table[backend].get(rule, ()):
            result = entry.function(*args, **kwargs)
            if result is not NotImplemented:
                entry.used = True
                return result
    return NotImplemented


def run(rule: Callable[..., Any], backend: str, *args: Any, **kwargs: Any) -> Any:
    """The result of the first override that does not decline, or of the rule itself."""
    result = try_overrides(rule, backend, *args, **kwargs)
    return rule(*args, **kwargs) if result is NotImplemented else result


def overridable(function: Callable[P, R]) -> Callable[P, R]:
    """A plain function that overrides may replace; its first argument, or the first of several,
    says where it runs."""

    @wraps(function)
    def dispatch(*args: P.args, **kwargs: P.kwargs) -> R:
        first: Any = args[0]
        while isinstance(first, (list, tuple)) and first:
            first = first[0]
        backend = backend_of(first) if is_array(first) else getattr(first, "backend", "numpy")
        return run(function, backend, *args, **kwargs)

    dispatch.rule = function  # type: ignore[attr-defined]  # what `override` registers under
    return dispatch


def overrides() -> list[Override]:
    """All registered overrides, in the order in which they are asked.

    >>> any("Convolve.forward" in str(entry) for entry in tp.overrides())
    True
    """
    return [entry for rules in table.values() for entries in rules.values() for entry in entries]


def plain() -> AbstractContextManager[None]:
    """Compute with the rules alone inside the block: slower, and the same results up to rounding.

    >>> with tp.plain():
    ...     tp.tensor([2.0]).exp().log().item()
    2.0
    """
    return context(plain=True)
