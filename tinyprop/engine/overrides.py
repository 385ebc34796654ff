"""The table of overrides. An op has one rule, written for readers; `kernels/` registers faster
implementations of it:

    @override(WeightNorm.backward, on="cupy")
    def weight_norm_gradient(op, g, w, scale):      # arrays in, arrays out
        if not supported(g, w, scale):
            return NotImplemented                   # ask the next override, finally the rule
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
    """One entry of the table: a faster implementation of a rule on one backend."""

    rule: Callable[..., Any]
    backend: str
    function: Callable[..., Any]
    used: bool = False  # whether it has computed something

    def __str__(self) -> str:
        function = f"{self.function.__module__}.{self.function.__name__}"
        return f"{self.rule.__qualname__} on {self.backend}: {function}"


# backend -> a function that takes a TrainingStep, and returns what records and replays it. Only
# devices have one (kernels/graphs.py).
recorders: dict[str, Callable[[Any], Any]] = {}

# backend -> rule -> its overrides, in the order in which they are asked
table: dict[str, dict[Callable[..., Any], list[Override]]] = {"numpy": {}, "cupy": {}}


def override(
    rule: Callable[..., Any], on: str | Sequence[str] = ("numpy", "cupy")
) -> Callable[[R], R]:
    """Register a faster implementation of a rule: `forward` or `backward` of an Op class, or an
    `overridable` function. Earlier registrations are asked first."""
    rule = getattr(rule, "rule", rule)  # an overridable function is registered by its rule
    backends = (on,) if isinstance(on, str) else on

    def register(function: Any) -> Any:
        for backend in backends:
            entries = table[backend].setdefault(rule, [])
            entries.append(Override(rule, backend, function))
        return function

    return register


def try_overrides(rule: Callable[..., Any], backend: str, *args: Any, **kwargs: Any) -> Any:
    """The result of the first override that does not decline; NotImplemented if all do."""
    if current().plain:
        return NotImplemented
    for entry in table[backend].get(rule, ()):
        result = entry.function(*args, **kwargs)
        if result is not NotImplemented:
            entry.used = True
            return result
    return NotImplemented


def run(rule: Callable[..., Any], backend: str, *args: Any, **kwargs: Any) -> Any:
    """The result of the first override that does not decline, or of the rule itself."""
    result = try_overrides(rule, backend, *args, **kwargs)
    if result is NotImplemented:
        return rule(*args, **kwargs)
    return result


def overridable(function: Callable[P, R]) -> Callable[P, R]:
    """Let overrides replace a plain function. Its first argument says on which backend it runs: an
    array, a tensor, or a list of them."""

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
    every: list[Override] = []
    for rules in table.values():
        for entries in rules.values():
            every.extend(entries)
    return every


def plain() -> AbstractContextManager[None]:
    """Compute with the rules alone inside the block: slower, with the same results up to rounding.

    >>> with tp.plain():
    ...     tp.tensor([2.0]).exp().log().item()
    2.0
    """
    return context(plain=True)
