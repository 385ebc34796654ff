"""How the values of a State were computed, and what two of them have in common.

Each State has an Origin: the rule and the Origins that it was computed from. The correlations of
two States are found when they are added, by going back from both until they meet. A linear map of
one of them maps the correlations on its side, an activation multiplies them by its mean slope
(Stein's lemma, exact for jointly Gaussian values), a sum adds up those of its parts. So the order
in which a forward computes its branches does not matter.
"""

import weakref
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from .field import Correlation, Field
from .pointwise import Bent
from .steps import Made, added

_numbers = count()


class Values:
    """The fields of a State: one for each Gaussian. The State keeps them alive, its Origin does
    not."""

    def __init__(self, fields: Sequence[Field]):
        self.fields = tuple(fields)


class Origin:
    """Where values come from: here, the input of the network."""

    parents: tuple["Origin", ...] = ()
    is_linear = False
    steps: Sequence[Any] = ()  # for each Gaussian, what becomes of correlations with other values

    def __init__(self, values: Values):
        self.number = next(_numbers)  # in the order in which they were made
        self._kept: Values | None = values

    def values(self) -> Values:
        assert self._kept is not None
        return self._kept

    def with_input(self, other: "Origin", k: int) -> Correlation | None:
        """The correlations with another input; None if they have nothing in common."""
        return None

    def descends_from(self, other: "Origin") -> bool:
        """Whether it was computed from another one."""
        waiting = list(self.parents)
        seen = set()
        while waiting:
            origin = waiting.pop()
            if origin is other:
                return True
            if origin.number > other.number and origin not in seen:
                seen.add(origin)
                waiting.extend(origin.parents)
        return False


class _Computed(Origin):
    """Values that are computed again in the rare case that nobody kept them."""

    def __init__(self, *parents: Origin):
        self.number = next(_numbers)
        self.parents = parents

    def remember(self, values: Values) -> Values:
        self._values = weakref.ref(values)
        return values

    def values(self) -> Values:
        values = self._values()
        return self.compute() if values is None else values

    def compute(self) -> Values:
        raise NotImplementedError


class Derived(_Computed):
    """Values of one State, changed by a rule."""

    def __init__(self, parent: Origin, rule: Callable[[Field], Made]):
        super().__init__(parent)
        self.rule = rule

    def compute(self) -> Values:
        made = [self.rule(field) for field in self.parents[0].values().fields]
        fields, self.steps = zip(*made, strict=True)
        self.is_linear = self.steps[0].is_linear
        return self.remember(Values(fields))


class Sum(_Computed):
    """The sum of two States."""

    is_linear = True

    def compute(self) -> Values:
        first, second = self.parents
        pairs = zip(first.values().fields, second.values().fields, strict=True)
        made = [added(a, b, correlation(first, second, k)) for k, (a, b) in enumerate(pairs)]
        fields, self.steps = zip(*made, strict=True)
        return self.remember(Values(fields))


class Fresh(Derived):
    """Values times random weights: correlated only with values times the same weights."""

    def __init__(self, parent: Origin, rule: Callable[[Field], Made], key: object):
        super().__init__(parent, rule)
        self.key = key


Memory = dict[tuple[Origin, Sum], Correlation | None]


def correlation(
    first: Origin, second: Origin, k: int, memory: Memory | None = None
) -> Correlation | None:
    """The correlations of the values of two Origins, for the Gaussian of number k; None if they
    have nothing in common. The memory is for sums, which several paths may lead to."""
    memory = {} if memory is None else memory
    steps = []
    while _is_next(second, first, k):
        steps.append(second.steps[k])
        second = second.parents[0]
    found = _where_they_part(first, second, k, memory)
    for step in reversed(steps):
        if found is not None:
            found = step(found)
    return found


def _is_next(last: Origin, other: Origin, k: int) -> bool:
    """Whether to go back from the last one, which was made from one State, rather than from the
    other: from the one that was made later. But two activations meet, and a linear map of an
    activation goes first if the other one is an activation of something else."""
    if not isinstance(last, Derived) or isinstance(last, Fresh) or last.number <= other.number:
        return False
    if isinstance(other, Fresh) or last.is_linear or last.descends_from(other):
        return True
    return not other.is_linear and not (_is_bent(last, k) and _is_bent(other, k))


def _where_they_part(first: Origin, second: Origin, k: int, memory: Memory) -> Correlation | None:
    if first is second:
        return first.values().fields[k].with_itself()
    if not first.parents and not second.parents:
        return first.with_input(second, k)
    if first.number > second.number:
        return _flipped(correlation(second, first, k, memory))
    # From here on, the second was made later: the first does not descend from it.
    if isinstance(second, Fresh):
        return _with_fresh(first, second, k, memory)
    if isinstance(second, Sum):
        return _with_sum(first, second, k, memory)
    if _is_bent(first, k) and _is_bent(second, k):
        inputs = correlation(first.parents[0], second.parents[0], k, memory)
        return None if inputs is None else first.steps[k].with_other(second.steps[k], inputs)
    return _flipped(_before_first(second, first, k, memory))


def _before_first(other: Origin, last: Origin, k: int, memory: Memory) -> Correlation | None:
    """The correlations of another Origin (rows) with the last one, from those with its parents."""
    if isinstance(last, Sum):
        return _with_sum(other, last, k, memory)
    if not last.parents or isinstance(last, Fresh):  # random weights know nothing of an input
        return None
    found = correlation(other, last.parents[0], k, memory)
    return None if found is None else last.steps[k](found)


def _with_sum(other: Origin, total: Sum, k: int, memory: Memory) -> Correlation | None:
    if (other, total) not in memory:
        parts = [correlation(other, parent, k, memory) for parent in total.parents]
        memory[other, total] = total.steps[k].of(parts)
    return memory[other, total]


def _with_fresh(first: Origin, second: Fresh, k: int, memory: Memory) -> Correlation | None:
    """Going back from the first until it is values times random weights, too."""
    if not isinstance(first, Fresh):
        return _flipped(_before_first(second, first, k, memory))
    if first.key is not second.key:
        return None
    inputs = correlation(first.parents[0], second.parents[0], k, memory)
    return first.steps[k].with_other(second.steps[k], inputs)


def _is_bent(origin: Origin, k: int) -> bool:
    return bool(origin.steps) and isinstance(origin.steps[k], Bent)


def _flipped(found: Correlation | None) -> Correlation | None:
    return None if found is None else found.flipped()
