"""Every function of the table with integers, masks, float16 and large integers: the dtype is the
one that the table states, and the value that of float64; or it is refused in three parts.

Integers that stay integers overflow as NumPy's do: they are compared where the result fits."""

from contextlib import nullcontext
from typing import Any

import numpy as np

import tinyprop as tp
import tinyprop.functional as F
from tests.functional.calls import Call, numbers

from .case import Case, Random, chance, choice, difference, integer, laid_out, scale_of
from .oracle import ULP

DTYPES = ("float16", "float32", "int8", "int16", "int32", "int64", "uint8", "uint32", "bool")
ROWS = [row for row in F.functions.values() if row.form != "context"]
EXACT = {"float16": 2**11, "float32": 2**24, "float64": 2**53}  # integers up to here


def draw(rng: Random) -> Case:
    row = choice(rng, ROWS)
    dtype = choice(rng, DTYPES)
    call = numbers(row, dtype, integer(rng, 0, 2**31))
    is_integer = np.dtype(dtype).kind in "iu"
    grown = is_integer and np.dtype(dtype).itemsize >= 4 and chance(rng, 0.3)
    arrays = call.arrays
    if grown:
        arrays = [x * 2**23 + 1 if x.dtype.kind in "iu" else x for x in arrays]
    arrays = [laid_out(rng, x.astype(x.dtype)) for x in arrays]
    largest = max(scale_of(x) for x in arrays)
    seed = integer(rng, 0, 2**31)
    plain = chance(rng, 0.3)
    words = f"{row.name}, {call.settings}, of {dtype} {[x.shape for x in arrays]} up to {largest}"

    def check() -> str | None:
        expected = row.dtypes.result(np.dtype(dtype))
        expected = "float32" if expected == "chosen" else expected
        refusal = ""
        try:
            got = computed(call, arrays, seed, plain)
        except (TypeError, ValueError) as error:
            refusal = str(error)
            if [line.partition(":")[0] for line in refusal.splitlines()] != ["got", "rule", "try"]:
                return f"a bare {type(error).__name__}: {error}"
        may_refuse = expected is None or (is_integer and largest > EXACT.get(expected, np.inf))
        if refusal:
            return None if may_refuse else f"refused: {refusal}"
        if expected is None:
            return f"computed as {got.dtype}, but should be refused"
        if str(got.dtype) != expected:
            return f"the value is {got.dtype}, but should be {expected}"
        exact = computed(call, [x.astype("float64") for x in arrays], seed, plain)
        if got.dtype.kind == "b":  # for masks, + is "or"
            return difference("the value", got, exact != 0, 0.0)
        if got.dtype.kind in "iu":
            info = np.iinfo(got.dtype)
            fits = (exact >= info.min) & (exact <= info.max) & (abs(exact) < EXACT["float64"])
            return difference("the value", np.where(fits, got, exact), exact, 0.0)
        ulps = 64.0 * ULP[expected] * (1.0 + scale_of(exact))
        return difference("the value", got, exact, ulps)

    return Case(words, check)


def computed(call: Call, arrays: list[Any], seed: int, plain: bool) -> Any:
    tp.manual_seed(seed)
    with tp.plain() if plain else nullcontext():
        return call(*arrays).numpy()
