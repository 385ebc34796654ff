"""max_pool2d and avg_pool2d with any window, border and layout, against PyTorch."""

import tinyprop.functional as F
from tests.helpers import both, points

from .case import Case, Random, chance, choice, integer, laid_out
from .convolutions import number_or_pair
from .oracle import Question, disagreement, torch


def draw(rng: Random) -> Case:
    dtype = choice(rng, ["float64", "float32"])
    is_large = chance(rng, 0.1)  # as in the paper's network
    channels = integer(rng, 1, 40 if is_large else 4)
    kernel = choice(rng, [2, 3]) if is_large else number_or_pair(rng, 1, 5)
    if chance(rng, 0.05):  # more elements than a byte can count
        channels, kernel = 1, (integer(rng, 15, 30), 16)
    most_padding = [k // 2 for k in both(kernel)]  # PyTorch has no more
    padding = tuple(integer(rng, 0, most) for most in most_padding)
    stride = choice(rng, [None, number_or_pair(rng, 1, 4)])
    least = [max(1, k - 2 * p) for k, p in zip(both(kernel), padding, strict=True)]
    most = 16 if is_large else 9
    image = [integer(rng, smallest, max(smallest, most)) for smallest in least]
    x = points(rng, (integer(rng, 1, 3), channels, *image), -3, 3)  # all different: no ties
    x = laid_out(rng, x.astype(dtype))
    options = {"kernel_size": kernel, "stride": stride, "padding": padding}
    name = choice(rng, ["max_pool2d", "avg_pool2d"])
    if name == "max_pool2d":
        options["ceil_mode"] = chance(rng, 0.4)
    else:
        options["count_include_pad"] = chance(rng, 0.5)
    question = Question(
        {"x": x},
        lambda x: getattr(F, name)(x, **options),
        lambda x: getattr(torch().nn.functional, name)(x, **options),
        order=choice(rng, [1, 2]) if dtype == "float64" else 1,
        seed=integer(rng, 0, 2**31),
    )
    plain = chance(rng, 0.3)
    words = ", ".join(f"{name}={value}" for name, value in options.items())
    words = f"{name} of {question.described()}; {words}"
    return Case(words, lambda: disagreement(question, plain))
