"""Arguments for any function of the table `F.functions`, so that a test can call all of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

import tinyprop as tp
import tinyprop.functional as F

LENGTHS = {"N": 4, "C": 3, "H": 6, "W": 6, "h": 3, "w": 3, "I": 5, "O": 2}
# what a function needs besides tensors; an integer where integers should stay integers
SETTINGS: dict[str, dict[str, Any]] = {
    "astype": {"dtype": "float32"},
    "avg_pool2d": {"kernel_size": 2},
    "batch_norm": {"training": True},
    "broadcast_to": {"shape": (4, 3)},
    "clip": {"low": 1, "high": 2},
    "elu": {"alpha": 0.5},
    "group_norm": {"num_groups": 1},
    "hardtanh": {"min_val": -0.5, "max_val": 1.5},
    "layer_norm": {"normalized_shape": (3,)},
    "max_pool2d": {"kernel_size": 2},
    "normprop": {"c1": 0.5, "c2": 0.25},
    "pad": {"widths": [(0, 0), (1, 2)]},
    "reshape": {"shape": (3, 4)},
    "rms_norm": {"normalized_shape": (3,)},
    "split": {"size": 2},
    "to": {"backend": "numpy"},
}


@dataclass
class Call:
    """A row of the table, host arrays for its tensors, and its other arguments."""

    row: F.Row
    arrays: list[Any]
    settings: dict[str, Any]

    def __call__(self, *arrays: Any, dtype: Any = None, backend: str = "numpy", **more: Any) -> Any:
        """The result for these arrays, or for those of the call."""
        given = arrays or self.arrays
        return self.of([tp.tensor(x, dtype=dtype, backend=backend) for x in given], **more)

    def of(self, tensors: list[Any], **more: Any) -> Any:
        """The result for these tensors; several results joined along the last axis."""
        settings = self.settings | more
        if self.row.name == "to":
            settings["backend"] = tensors[0].backend
        positional, named = arranged(self.row, tensors)
        out = self.row.function(*positional, **named, **settings)
        return F.concatenate(out, axis=-1) if isinstance(out, list) else out


def arranged(row: F.Row, tensors: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The tensors as positional arguments and as named ones, for a function or its counterpart."""
    if row.form == "join":
        return [tensors], {}
    if row.name == "where":
        return [_is_larger(*tensors), *tensors], {}
    if row.form == "normalizer":  # some have other arguments between the tensors
        return tensors[:1], dict(zip(list(row.shapes)[1:], tensors[1:], strict=True))
    return tensors, {}


def _is_larger(x: Any, y: Any) -> Any:
    """The condition of `where`, also for lists and numbers."""
    return F.subtract(x, y) > 0 if isinstance(x, list) or isinstance(y, list) else x > y


def call(row: F.Row, values: Any) -> Call:
    """A call of the function with arrays whose elements are values(operand, shape)."""
    shapes = [shape_of(letters) for letters in row.shapes.values()]
    if row.form == "join":
        shapes *= 2
    if row.name in ("broadcast_to", "squeeze"):
        shapes = [(4, 1)]
    arrays = [values(i, shape) for i, shape in enumerate(shapes)]
    for i, name in enumerate(row.shapes):
        if name.startswith("running_"):
            floats = arrays[i].dtype if arrays[i].dtype.kind == "f" else "float32"
            arrays[i] = np.ones(shapes[i], floats)  # training moves them
    settings = dict(SETTINGS.get(row.name, {}))
    if "labels" in row.renamed:
        settings["labels"] = np.arange(shapes[0][0]) % shapes[0][1]
    return Call(row, arrays, settings)


def shape_of(letters: str) -> tuple[int, ...]:
    """ "N C ..." as (4, 3): as few axes as it may have, but "..." alone as (4, 3)."""
    if letters == "...":
        return (4, 3)
    return tuple(LENGTHS[letter] for letter in letters.split() if letter != "...")


def numbers(row: F.Row, dtype: Any, seed: int = 0) -> Call:
    """A call with elements of that dtype from the domain of the function: whole numbers from 1 to 3
    for integers, bools, or floats away from kinks and from each other."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind

    def values(operand: int, shape: tuple[int, ...]) -> Any:
        domain = row.domain(operand)
        if kind in "iu":
            return rng.integers(1, 4, shape).astype(dtype)
        if kind == "b":
            return rng.integers(0 if 0 in domain else 1, 2, shape).astype(dtype)
        steps = rng.permutation(np.arange(np.prod(shape, dtype=int))).reshape(shape)
        spread = (steps - steps.size / 2 + 0.3) / steps.size * 4  # from -2 to 2, none is a kink
        return (spread if -2 in domain else abs(spread) + 0.1 + operand / 64).astype(dtype)

    return call(row, values)
