"""Losses with every option, against PyTorch."""

from typing import Any

import numpy as np

import tinyprop.functional as F

from .case import Case, Random, chance, choice, integer, laid_out, size
from .oracle import Question, disagreement, torch, torch_tensor

INTEGERS = ("int64", "int32", "int8", "uint8")


def draw(rng: Random) -> Case:
    name = choice(rng, ["cross_entropy", "cross_entropy", "nll_loss", "mse_loss"])
    dtype = choice(rng, ["float64", "float32"])
    reduction = choice(rng, ["mean", "sum", "none"])
    positions = [integer(rng, 1, 4) for _ in range(choice(rng, [0, 0, 1, 2]))]
    shape = (size(rng, 1, 300), integer(rng, 1, 12), *positions)
    x = rng.standard_normal(shape) * choice(rng, [0.1, 1.0, 30.0])
    options: dict[str, Any] = {"reduction": reduction}
    if name == "mse_loss":
        inputs = {"x": x, "target": rng.standard_normal(shape)}
        ours, theirs = F.mse_loss, lambda x, y, **how: torch().nn.functional.mse_loss(x, y, **how)
    else:
        inputs = {"x": x}
        labels = rng.integers(0, shape[1], (shape[0], *positions))
        if chance(rng, 0.5):
            options["ignore_index"] = choice(rng, [-100, -1, 0, shape[1] - 1])
            ignored = rng.random(labels.shape) < 0.3
            labels = np.where(ignored, options["ignore_index"], labels)
            if (labels == options["ignore_index"]).all():  # the mean of none is NaN
                options["reduction"] = "sum"
        if name == "cross_entropy" and chance(rng, 0.5):
            options["label_smoothing"] = float(rng.random())
        fitting = [kind for kind in INTEGERS if (labels.astype(kind) == labels).all()]
        labels = laid_out(rng, labels.astype(choice(rng, fitting)))
        ours = lambda x, **how: getattr(F, name)(x, labels, **how)  # noqa: E731

        def theirs(x: Any, **how: Any) -> Any:
            return getattr(torch().nn.functional, name)(x, torch_tensor(labels, "int64"), **how)

    inputs = {key: laid_out(rng, value.astype(dtype)) for key, value in inputs.items()}
    question = Question(
        inputs,
        lambda *xs: ours(*xs, **options),
        lambda *xs: theirs(*xs, **options),
        order=choice(rng, [1, 2]) if dtype == "float64" else 1,
        seed=integer(rng, 0, 2**31),
    )
    plain = chance(rng, 0.3)
    words = f"{name} of {question.described()}; {options}; order {question.order}"
    return Case(words, lambda: disagreement(question, plain))
