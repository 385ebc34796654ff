"""Functions at their kinks and at ties, where tinyprop takes PyTorch's side: values and first
gradients."""

from typing import Any

from tinyprop.functional.table import Row, functions

from .case import Array, Case, Random, chance, choice, integer, laid_out
from .oracle import Question, disagreement
from .programs import PARAMETERS, some_axes, theirs_of

ROWS = [row for row in functions.values() if row.kinks and row.form in ("elementwise", "reduction")]


def near_kinks(rng: Random, shape: Any, kinks: list[float]) -> Array:
    """Kinks, numbers close to them on both sides, and others."""
    beside = [kink + side for kink in kinks for side in (-1e-6, 1e-6)]
    usual = [-1.0, -0.5, 0.5, 1.0]
    return rng.choice([*kinks, *kinks, *beside, *usual], size=shape)


def draw(rng: Random) -> Case:
    row = choice(rng, ROWS)
    shape = [integer(rng, 1, 4) for _ in range(integer(rng, 2, 3))]
    options: dict[str, Any] = PARAMETERS.get(row.name, lambda rng: {})(rng)
    named = {"ties": 0.0, "all zero": 0.0, **options}
    kinks = [named[kink] if isinstance(kink, str) else kink for kink in row.kinks]
    inputs = {"x": near_kinks(rng, shape, kinks)}
    if row.name == "prelu":
        inputs["a"] = rng.uniform(-1.0, 1.0, shape[1])
    elif len(row.shapes) == 2:
        inputs["y"] = near_kinks(rng, shape, kinks)
    if row.form == "reduction":
        options = reduced(rng, row, inputs)
    dtype = choice(rng, ["float32", "float64"])
    inputs = {name: laid_out(rng, value.astype(dtype)) for name, value in inputs.items()}
    renamed = {row.renamed.get(name, name): value for name, value in options.items()}
    theirs = theirs_of(row)
    question = Question(
        inputs,
        lambda *xs: row.function(*xs, **options),
        lambda *xs: theirs(*xs, **renamed),
        seed=integer(rng, 0, 2**31),
    )
    plain = chance(rng, 0.3)
    words = f"{row.name}, {options}, of {[value.tolist() for value in inputs.values()]}"
    return Case(words, lambda: disagreement(question, plain))


def reduced(rng: Random, row: Row, inputs: dict[str, Array]) -> dict[str, Any]:
    """Axes, and for some functions elements that are all 0, or have no spread."""
    axes = tuple(range(inputs["x"].ndim))
    axis = some_axes(rng, len(axes), row.axes)
    if "all zero" in row.kinks:
        inputs["x"][..., :1] = 0.0
    options: dict[str, Any] = {"axis": axes if axis is None else axis}
    if "ddof" in row.renamed:
        options["ddof"] = 0
    return options
