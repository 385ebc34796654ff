"""conv2d with any window, groups, layout and dtype, and its gradients, against PyTorch. Sizes reach
those from which kernels cut images into tiles and share blocks."""

from typing import Any

import tinyprop.functional as F
from tests.helpers import both

from .case import Case, Random, chance, choice, integer, laid_out
from .oracle import Bound, Question, disagreement, torch

# Winograd convolution rounds by about 5e-6 of the result (see conv2d); of many, the largest counts.
TILES = Bound(ulps=400.0)


def number_or_pair(rng: Random, least: int, most: int) -> Any:
    if chance(rng, 0.5):
        return integer(rng, least, most)
    return integer(rng, least, most), integer(rng, least, most)


def draw(rng: Random) -> Case:
    dtype = choice(rng, ["float64", "float64", "float32", "float32"])
    is_large = chance(rng, 0.15)
    groups = choice(rng, [1, 1, 1, 2, 3])
    most = 48 if is_large else 4
    least = 16 if is_large else 1
    channels, filters = (groups * max(1, integer(rng, least, most) // groups) for _ in range(2))
    if is_large:  # what the kernels choose tiles for
        kernel, stride, dilation = choice(rng, [3, 4, 5]), 1, 1
        image = integer(rng, 6, 14), integer(rng, 6, 14)
    else:
        kernel = number_or_pair(rng, 1, 5)
        stride = number_or_pair(rng, 1, 3)
        dilation = choice(rng, [1, 1, number_or_pair(rng, 1, 3)])
        image = integer(rng, 1, 12), integer(rng, 1, 12)
    padding = number_or_pair(rng, 0, 3)
    kernel_pair, padding_pair, dilation_pair = map(both, (kernel, padding, dilation))
    image = tuple(
        max(length, d * (k - 1) + 1 - 2 * p)
        for length, k, p, d in zip(image, kernel_pair, padding_pair, dilation_pair, strict=True)
    )
    batch = integer(rng, 1, 4 if is_large else 3)
    inputs = {
        "x": rng.standard_normal((batch, channels, *image)),
        "weight": rng.standard_normal((filters, channels // groups, *kernel_pair)),
    }
    if chance(rng, 0.7):
        inputs["bias"] = rng.standard_normal(filters)
    inputs = {name: laid_out(rng, value.astype(dtype)) for name, value in inputs.items()}
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    question = Question(
        inputs,
        lambda x, weight, bias=None: F.conv2d(x, weight, bias, **options),
        lambda x, weight, bias=None: torch().nn.functional.conv2d(x, weight, bias, **options),
        order=2 if dtype == "float64" and not is_large and chance(rng, 0.3) else 1,
        seed=integer(rng, 0, 2**31),
        bound=TILES if is_large else Bound(),
    )
    plain = chance(rng, 0.3)
    words = ", ".join(f"{name}={value}" for name, value in options.items())
    words = f"conv2d of {question.described()}; {words}; order {question.order}"
    return Case(words, lambda: disagreement(question, plain))
