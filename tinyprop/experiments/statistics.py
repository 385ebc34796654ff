"""Means over seeds with 95 % intervals, and what follows from them.

Two settings are compared by the differences of their runs of the same seed, which see the same images in the same
order: Student's interval of the mean of these differences. If it leaves 0 out, the settings differ.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from ..verify.monte_carlo import student_quantile

CONFIDENCE = 0.95


def interval(values: Sequence[float]) -> dict[str, Any]:
    """The mean of some runs, and half the width of its interval: None for fewer than two.

    >>> {name: round(value, 3) for name, value in interval([1.0, 2.0, 3.0]).items()}
    {'mean': 2.0, 'reach': 2.484, 'runs': 3}
    """
    if not values:
        return {"mean": None, "reach": None, "runs": 0}
    reach = None
    if len(values) > 1:
        error = statistics.stdev(values) / math.sqrt(len(values))
        reach = student_quantile(CONFIDENCE, len(values) - 1) * error
    return {"mean": statistics.fmean(values), "reach": reach, "runs": len(values)}


def difference(ours: dict[int, float], theirs: dict[int, float]) -> dict[str, Any]:
    """Ours less theirs, over the seeds that both have; `sign` is 1, -1, or 0 where the interval has 0 in it.

    >>> difference({0: 2.0, 1: 2.1, 2: 1.9}, {0: 1.0, 1: 1.0, 2: 1.0})["sign"]
    1
    """
    found = interval([ours[seed] - theirs[seed] for seed in ours if seed in theirs])
    clear = found["reach"] is not None and abs(found["mean"]) > found["reach"]
    return {**found, "sign": int(math.copysign(1, found["mean"])) if clear else 0}


def above(found: dict[str, Any], limit: float) -> bool:
    """Whether the whole interval of a mean is above a limit."""
    return found["reach"] is not None and found["mean"] - found["reach"] > limit


def within(found: dict[str, Any], limit: float) -> bool | None:
    """Whether a mean is between -limit and limit: if its whole interval is; not, if that is wholly outside.

    >>> [within({"mean": mean, "reach": 0.5, "runs": 3}, 2.0) for mean in (1.0, 3.0, 2.0)]
    [True, False, None]
    """
    if found["reach"] is None:
        return None
    if abs(found["mean"]) + found["reach"] < limit:
        return True
    return False if abs(found["mean"]) - found["reach"] > limit else None


def all_hold(verdicts: Iterable[bool | None]) -> bool | None:
    """Whether all of some claims hold: not if one does not, unknown if one of the others is unknown.

    >>> all_hold([True, True]), all_hold([True, None]), all_hold([None, False])
    (True, None, False)
    """
    found = set(verdicts)
    return False if False in found else None if None in found else True


def in_words(found: dict[str, Any], unit: str = "", digits: int = 1, sign: bool = False) -> str:
    """A mean and its interval as text.

    >>> in_words({"mean": 41.26, "reach": 1.04, "runs": 3}, " %")
    '41.3 ± 1.0 %'
    """
    if found["mean"] is None:
        return "no run"
    reach = "" if found["reach"] is None else f" ± {found['reach']:.{digits}f}"
    return f"{found['mean']:{'+' if sign else ''}.{digits}f}{reach}{unit}"


def rounded(value: Any) -> Any:
    """Plain data with floats to 6 digits; what is not finite becomes None, as JSON has no word for it.

    >>> rounded({"a": [1 / 3, float("inf")], "b": 2})
    {'a': [0.333333, None], 'b': 2}
    """
    if isinstance(value, dict):
        return {str(name): rounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
