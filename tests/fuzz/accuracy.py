"""Many rows, values far from 0, and outliers, in float32 and float16: the error is at most three
times PyTorch's own in the same dtype, or 2 units in the last place of the largest result."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import tinyprop as tp
import tinyprop.functional as F

from .case import Array, Case, Random, chance, choice, integer, laid_out, size
from .convolutions import TILES
from .oracle import Bound, Question, disagreement, torch, torch_tensor

STRICT = Bound(times=3.0, ulps=2.0, floor=0.0)


@dataclass(frozen=True)
class Values:
    """Rows of numbers, or images."""

    array: Array
    offset: float
    spread: float
    outlier: float | None

    @property
    def words(self) -> str:
        return f"values {self.offset} +- {self.spread}, outlier {self.outlier}"


def values(rng: Random, shape: Any, dtype: str, outliers: float = 0.3) -> Values:
    """Gaussian numbers, sometimes at an offset of 1,000 standard deviations, sometimes with an
    outlier."""
    offset, spread = choice(rng, [(0.0, 1.0), (1.0, 0.001), (120.0, 0.12), (-1e3, 1.0)])
    if dtype == "float16":
        offset, spread = choice(rng, [(0.0, 1.0), (10.0, 0.1)])
    x = (offset + spread * rng.standard_normal(shape)).astype(dtype)
    outlier = None
    if chance(rng, outliers):
        outlier = choice(rng, [1e8, np.inf, -np.inf, np.nan] if dtype == "float32" else [np.inf])
        x.flat[integer(rng, 0, x.size - 1)] = outlier
    return Values(laid_out(rng, x), offset, spread, outlier)


def draw(rng: Random) -> Case:
    dtype = "float16" if chance(rng, 0.15) else "float32"
    name = "conv2d" if chance(rng, 0.15) else choice(rng, QUESTIONS)
    question, words = QUESTIONS[name](rng, dtype)
    plain = chance(rng, 0.3)
    words = f"{name} of {question.described()}; {words}"
    return Case(words, lambda: disagreement(question, plain))


Drawn = tuple[Question, str]


def rows(rng: Random, dtype: str) -> Values:
    """(rows, columns), of which there may be a million, or a transposed table."""
    columns = integer(rng, 1, 4)
    table = (size(rng, 2, 1_000_000), columns)
    return values(rng, table[::-1] if chance(rng, 0.3) else table, dtype)


def asked(
    rng: Random, inputs: dict[str, Array], ours: Any, theirs: Any, floor: float = 0.0
) -> Question:
    """With the strict bound; `floor` is the size of what cancels in a single result, where PyTorch
    may be right by luck."""
    bound = replace(STRICT, floor=floor)
    return Question(inputs, ours, theirs, seed=integer(rng, 0, 2**31), bound=bound)


def reduction(name: str, theirs: Callable[..., Any]) -> Callable[[Random, str], Drawn]:
    """`theirs(x, dim)` is PyTorch's."""

    def ask(rng: Random, dtype: str) -> Drawn:
        x = rows(rng, dtype)
        # of a single -inf, the slope of logsumexp is 0 here and NaN in PyTorch
        axes = [0, 1, (0, 1)]
        if name == "logsumexp" and 1 in x.array.shape:
            axes = [(0, 1)]
        axis = choice(rng, axes)
        question = asked(
            rng,
            {"x": x.array},
            lambda x: getattr(F, name)(x, axis=axis),
            lambda x: theirs(x, axis),
        )
        return question, f"axis={axis}, {x.words}"

    return ask


def along(name: str) -> Callable[[Random, str], Drawn]:
    def ask(rng: Random, dtype: str) -> Drawn:
        x = rows(rng, dtype)
        axis = integer(rng, 0, 1)
        question = asked(
            rng,
            {"x": x.array},
            lambda x: getattr(F, name)(x, axis=axis),
            lambda x: getattr(torch(), name)(x, axis),
        )
        return question, f"axis={axis}, {x.words}"

    return ask


def broadcast(rng: Random, dtype: str) -> Drawn:
    """The gradient of what is broadcast is a sum over all rows."""
    x = rows(rng, dtype)
    y = rng.standard_normal(x.array.shape[1]).astype(dtype)
    question = asked(
        rng,
        {"x": x.array, "y": y},
        lambda x, y: x * y + y,
        lambda x, y: x * y + y,
    )
    return question, x.words


def linear(rng: Random, dtype: str) -> Drawn:
    """Products of matrices: BLAS rounds every step, so that PyTorch, too, is exact only by luck."""
    x = values(rng, (size(rng, 2, 300_000), integer(rng, 1, 6)), dtype)
    weight = rng.standard_normal((integer(rng, 1, 6), x.array.shape[1])).astype(dtype)
    question = Question(
        {"x": x.array, "weight": weight},
        F.linear,
        lambda x, weight: torch().nn.functional.linear(x, weight),
        seed=integer(rng, 0, 2**31),
        bound=Bound(times=10.0, ulps=16.0, floor=0.0),
    )
    return question, x.words


def bias(rng: Random, dtype: str) -> Drawn:
    """The gradient of a bias is a sum over all rows."""
    x = rng.standard_normal((size(rng, 2, 500_000), integer(rng, 1, 3))).astype(dtype)
    weight = rng.standard_normal((integer(rng, 1, 6), x.shape[1])).astype(dtype)
    question = asked(
        rng,
        {"bias": rng.standard_normal(len(weight)).astype(dtype)},
        lambda bias: F.linear(tp.tensor(x), tp.tensor(weight), bias),
        lambda bias: torch().nn.functional.linear(
            torch_tensor(x).to(bias.dtype), torch_tensor(weight).to(bias.dtype), bias
        ),
    )
    return question, f"linear of {x.shape}"


def batch_norm(rng: Random, dtype: str) -> Drawn:
    x = values(rng, (size(rng, 4, 500_000), integer(rng, 1, 4)), dtype)
    features = x.array.shape[1]

    def ours(x: tp.Tensor, weight: tp.Tensor, bias: tp.Tensor) -> tp.Tensor:
        running = tp.zeros(features, dtype=dtype), tp.ones(features, dtype=dtype)
        return F.batch_norm(x, *running, weight, bias, training=True)

    def theirs(x: Any, weight: Any, bias: Any) -> Any:
        running = torch().zeros(features, dtype=x.dtype), torch().ones(features, dtype=x.dtype)
        return torch().nn.functional.batch_norm(x, *running, weight, bias, training=True)

    inputs = {
        "x": x.array,
        "weight": rng.uniform(0.5, 2.0, features).astype(dtype),
        "bias": rng.standard_normal(features).astype(dtype),
    }
    return asked(rng, inputs, ours, theirs, floor=of_deviations(x)), x.words


def of_deviations(x: Values) -> float:
    """What a deviation from the mean loses: half a unit in the last place of the mean, in standard
    deviations."""
    return 1.0 + 0.5 * abs(x.offset) / x.spread


def by_sample(name: str) -> Callable[[Random, str], Drawn]:
    """layer_norm or rms_norm over many features."""

    def ask(rng: Random, dtype: str) -> Drawn:
        features = size(rng, 3, 300_000)
        x = values(rng, (integer(rng, 1, 4), features), dtype)
        question = asked(
            rng,
            {"x": x.array},
            lambda x: getattr(F, name)(x, features, eps=1e-5),
            lambda x: getattr(torch().nn.functional, name)(x, (features,), eps=1e-5),
            floor=of_deviations(x),
        )
        return question, x.words

    return ask


def cross_entropy(rng: Random, dtype: str) -> Drawn:
    x = values(rng, (size(rng, 2, 300_000), integer(rng, 2, 6)), dtype)
    labels = rng.integers(0, x.array.shape[1], len(x.array))
    labels[rng.random(len(labels)) < 0.1] = -100
    labels[0] = 0
    reduction = choice(rng, ["mean", "sum"])
    question = asked(
        rng,
        {"x": x.array},
        lambda x: F.cross_entropy(x, labels, reduction),
        lambda x: torch().nn.functional.cross_entropy(x, torch_tensor(labels), reduction=reduction),
    )
    return question, f"reduction={reduction}, {x.words}"


def mse_loss(rng: Random, dtype: str) -> Drawn:
    x = rows(rng, dtype)
    target = (x.array + rng.standard_normal(x.array.shape)).astype(dtype)
    question = asked(
        rng,
        {"x": x.array, "target": target},
        F.mse_loss,
        lambda x, target: torch().nn.functional.mse_loss(x, target),
    )
    return question, x.words


def avg_pool2d(rng: Random, dtype: str) -> Drawn:
    side = size(rng, 2, 300)
    x = values(rng, (integer(rng, 1, 2), integer(rng, 1, 3), side, side), dtype)
    question = asked(
        rng,
        {"x": x.array},
        lambda x: F.avg_pool2d(x, side),
        lambda x: torch().nn.functional.avg_pool2d(x, side),
        floor=2.0 * x.spread / side,
    )
    return question, x.words


def conv2d(rng: Random, dtype: str) -> Drawn:
    """An outlier spoils the outputs whose window holds it, and no others."""
    channels = choice(rng, [3, 32, 40])
    k = choice(rng, [3, 5])
    shape = (integer(rng, 1, 3), channels, integer(rng, 6, 16), integer(rng, 6, 16))
    x = values(rng, shape, "float32", outliers=0.6)
    weight = rng.standard_normal((choice(rng, [32, 40]), channels, k, k)).astype("float32")
    padding = k // 2
    question = Question(
        {"x": x.array, "weight": weight},
        lambda x, w: F.conv2d(x, w, padding=padding),
        lambda x, w: torch().nn.functional.conv2d(x, w, padding=padding),
        seed=integer(rng, 0, 2**31),
        bound=replace(STRICT, ulps=TILES.ulps),
        also=lambda: of_tiles(question, padding),
    )
    return question, x.words


def of_tiles(question: Question, padding: int) -> dict[str, Array]:
    """What the docstring of conv2d states: 1e-5 times the lengths, as vectors, of window and
    filter; for the gradient of the filters, of what both factors of the sum are."""
    x, weight = (torch_tensor(array, "float64") for array in question.inputs.values())
    squares = x.square().nan_to_num(0.0, 0.0, 0.0)
    ones = torch().ones(len(weight), *weight.shape[1:], dtype=x.dtype)
    windows = torch().nn.functional.conv2d(squares, ones, padding=padding).sqrt()
    filters = weight.square().sum((1, 2, 3)).sqrt()
    g = torch_tensor(question.cotangent(tuple(windows.shape)), "float64")
    lengths = g.square().sum((0, 2, 3)).sqrt()
    conv2d_weight = torch().nn.grad.conv2d_weight
    shifted = conv2d_weight(squares, weight.shape, torch().ones_like(g), padding=padding).sqrt()
    return {
        "the value": 1e-5 * (windows * filters[:, None, None]).numpy(),
        "the gradient of weight": 1e-5 * (shifted * lengths[:, None, None, None]).numpy(),
    }


QUESTIONS: dict[str, Callable[[Random, str], Drawn]] = {
    "sum": reduction("sum", lambda x, dim: x.sum(dim)),
    "mean": reduction("mean", lambda x, dim: x.mean(dim)),
    "var": reduction("var", lambda x, dim: x.var(dim, correction=0)),
    "std": reduction("std", lambda x, dim: x.std(dim, correction=0)),
    "norm": reduction("norm", lambda x, dim: torch().linalg.vector_norm(x, dim=dim)),
    "logsumexp": reduction("logsumexp", lambda x, dim: x.logsumexp(dim)),
    "softmax": along("softmax"),
    "log_softmax": along("log_softmax"),
    "broadcasting": broadcast,
    "linear": linear,
    "bias": bias,
    "batch_norm": batch_norm,
    "layer_norm": by_sample("layer_norm"),
    "rms_norm": by_sample("rms_norm"),
    "cross_entropy": cross_entropy,
    "mse_loss": mse_loss,
    "avg_pool2d": avg_pool2d,
    "conv2d": conv2d,
}
