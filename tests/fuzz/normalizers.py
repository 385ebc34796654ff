"""Normalisers with and without weights, against PyTorch; and normprop and weight_norm against their
formulas."""

import math
from typing import Any

import tinyprop as tp
import tinyprop.functional as F

from .case import Case, Random, chance, choice, integer, laid_out, size
from .oracle import Bound, Question, disagreement, torch, torch_tensor


def draw(rng: Random) -> Case:
    return choice(rng, DRAWERS)(rng)


def samples(rng: Random, channels: int) -> Any:
    """(N, C), (N, C, L) or (N, C, H, W), with different means and spreads of the channels."""
    positions = [integer(rng, 1, 6) for _ in range(choice(rng, [0, 1, 2]))]
    x = rng.standard_normal((size(rng, 2, 60), channels, *positions))
    column = (channels, *[1] * len(positions))
    return x * rng.uniform(0.3, 3.0, column) + rng.uniform(-3.0, 3.0, column)


def asked(rng: Random, name: str, inputs: dict[str, Any], ours: Any, theirs: Any) -> Case:
    dtype = choice(rng, ["float64", "float64", "float32"])
    inputs = {key: laid_out(rng, value.astype(dtype)) for key, value in inputs.items()}
    question = Question(
        inputs,
        ours,
        theirs,
        order=choice(rng, [1, 2]) if dtype == "float64" else 1,
        seed=integer(rng, 0, 2**31),
        bound=Bound(relative=1e-9),
    )
    plain = chance(rng, 0.3)
    words = f"{name} of {question.described()}; order {question.order}"
    return Case(words, lambda: disagreement(question, plain))


def weight_and_bias(rng: Random, shape: Any) -> dict[str, Any]:
    """Both, one, or none."""
    given = {}
    if chance(rng, 0.7):
        given["weight"] = rng.uniform(0.5, 2.0, shape)
        if chance(rng, 0.7):
            given["bias"] = rng.standard_normal(shape)
    return given


def batch_norm(rng: Random) -> Case:
    channels = integer(rng, 1, 6)
    x = samples(rng, channels)
    given = weight_and_bias(rng, channels)
    training = chance(rng, 0.7)
    momentum = choice(rng, [0.1, 0.3, 1.0])
    eps = choice(rng, [1e-5, 1e-3, 0.5])
    mean = rng.standard_normal(channels)
    var = rng.uniform(0.5, 2.0, channels)
    options = {"training": training, "momentum": momentum, "eps": eps}

    def ours(x: tp.Tensor, weight: Any = None, bias: Any = None) -> tp.Tensor:
        running = tp.tensor(mean.astype(x.dtype)), tp.tensor(var.astype(x.dtype))
        out = F.batch_norm(x, *running, weight, bias, **options)
        return with_estimates(F.concatenate, out, *running)

    def theirs(x: Any, weight: Any = None, bias: Any = None) -> Any:
        running = torch_tensor(mean).to(x.dtype), torch_tensor(var).to(x.dtype)
        out = torch().nn.functional.batch_norm(x, *running, weight, bias, **options)
        return with_estimates(torch().cat, out, *running)

    words = f"batch_norm, {options} (the result, then running mean and variance)"
    return asked(rng, words, {"x": x, **given}, ours, theirs)


def with_estimates(join: Any, out: Any, mean: Any, var: Any) -> Any:
    """The result and the running estimates in one row."""
    return join([out.reshape(-1), mean, var])


def layer_norm(rng: Random) -> Case:
    x = samples(rng, integer(rng, 2, 6))
    shape = x.shape[integer(rng, 1, x.ndim - 1) :]
    if math.prod(shape) < 3:  # of two values only signs are left: gradients are 0 but for rounding
        shape = x.shape[1:]
    given = weight_and_bias(rng, shape)
    eps = choice(rng, [1e-5, 1e-3, 0.5])
    return asked(
        rng,
        f"layer_norm over {shape}, eps={eps}",
        {"x": x, **given},
        lambda x, *more: F.layer_norm(x, shape, *more, eps=eps),
        lambda x, *more: torch().nn.functional.layer_norm(x, shape, *more, eps=eps),
    )


def rms_norm(rng: Random) -> Case:
    x = samples(rng, integer(rng, 2, 6))
    shape = x.shape[integer(rng, 1, x.ndim - 1) :]
    if math.prod(shape) < 2:  # of one value only the sign is left
        shape = x.shape[1:]
    given = {"weight": rng.uniform(0.5, 2.0, shape)} if chance(rng, 0.7) else {}
    eps = choice(rng, [1e-5, 1e-3, 0.5])
    return asked(
        rng,
        f"rms_norm over {shape}, eps={eps}",
        {"x": x, **given},
        lambda x, *more: F.rms_norm(x, shape, *more, eps=eps),
        lambda x, *more: torch().nn.functional.rms_norm(x, shape, *more, eps=eps),
    )


def group_norm(rng: Random) -> Case:
    groups = integer(rng, 1, 3)
    channels = groups * integer(rng, 3, 4)
    x = samples(rng, channels)
    given = weight_and_bias(rng, channels)
    eps = choice(rng, [1e-5, 1e-3, 0.5])
    return asked(
        rng,
        f"group_norm in {groups} groups, eps={eps}",
        {"x": x, **given},
        lambda x, *more: F.group_norm(x, groups, *more, eps=eps),
        lambda x, *more: torch().nn.functional.group_norm(x, groups, *more, eps=eps),
    )


def weight_norm(rng: Random) -> Case:
    """PyTorch has its formula: rows, centred or not, over their length, times scale and factor."""
    shape = tuple(integer(rng, 3, 6) for _ in range(choice(rng, [2, 4])))
    factor = float(rng.uniform(0.5, 2.0))
    centered = chance(rng, 0.5)

    def theirs(weight: Any, scale: Any) -> Any:
        rows = weight.reshape(len(weight), -1)
        if centered:
            rows = rows - rows.mean(1, keepdim=True)
        rows = rows / rows.norm(dim=1, keepdim=True) * (scale * factor)[:, None]
        return rows.reshape(weight.shape)

    inputs = {"weight": rng.standard_normal(shape), "scale": rng.uniform(0.5, 2.0, shape[0])}
    return asked(
        rng,
        f"weight_norm with factor {factor:.2f}, centered={centered}",
        inputs,
        lambda weight, scale: F.weight_norm(weight, scale, factor, centered),
        theirs,
    )


def normprop(rng: Random) -> Case:
    """The paper's equation, (1/c1) [s(gamma w.x / |w| + beta) - c2], for linear layers and for
    convolutions."""
    # a row of one weight has a direction that never changes: its gradients are rounding
    units, features = integer(rng, 1, 6), integer(rng, 2, 6)
    on_images = chance(rng, 0.5)
    name = choice(rng, ["relu", "tanh", "gelu", "elu"])
    if on_images:
        x = rng.standard_normal((integer(rng, 1, 5), features, 6, 5))
        weight = rng.standard_normal((units, features, 3, 3))
        sums = lambda x, w: F.conv2d(x, w, padding=1)  # noqa: E731
        other_sums = lambda x, w: torch().nn.functional.conv2d(x, w, padding=1)  # noqa: E731
    else:
        x = rng.standard_normal((size(rng, 1, 60), features))
        weight = rng.standard_normal((units, features))
        sums = F.linear
        other_sums = lambda x, w: torch().nn.functional.linear(x, w)  # noqa: E731
    inputs = {
        "x": x,
        "weight": weight,
        "gamma": rng.uniform(0.5, 2.0, units),
        "beta": rng.standard_normal(units),
    }
    are_tensors = chance(rng, 0.5)
    if are_tensors:
        inputs |= {"c1": rng.uniform(0.5, 2.0, units), "c2": rng.standard_normal(units)}
    numbers = () if are_tensors else (0.58, 0.4)

    def theirs(x: Any, weight: Any, gamma: Any, beta: Any, *constants: Any) -> Any:
        def per_unit(value: Any) -> Any:
            return value.reshape(-1, *[1] * (weight.ndim - 2)) if are_tensors else value

        c1, c2 = map(per_unit, constants or numbers)
        length = weight.reshape(units, -1).norm(dim=1)
        column = (-1, *[1] * (weight.ndim - 2))
        u = other_sums(x, weight) * (gamma / length).reshape(column) + beta.reshape(column)
        return (getattr(torch().nn.functional, name)(u) - c2) / c1

    def ours(x: Any, weight: Any, gamma: Any, beta: Any, *constants: Any) -> Any:
        c1, c2 = constants or numbers
        activation = getattr(F, name)
        return F.normprop(x, weight, gamma, beta, c1, c2, sums, activation)

    return asked(rng, f"normprop with {name}", inputs, ours, theirs)


def batch_normalizer(rng: Random) -> Case:
    """tp.data.BatchNormalizer on a few batches in training, then in evaluation, in float32."""
    shape = tuple(integer(rng, 1, 3) for _ in range(integer(rng, 1, 3)))
    momentum = choice(rng, [0.1, 0.5, 1.0])
    batches = [
        rng.uniform(0.5, 2.0) * rng.standard_normal((integer(rng, 2, 9), *shape)) + 1.0
        for _ in range(integer(rng, 1, 3))
    ]

    def ours(*batches: tp.Tensor) -> tp.Tensor:
        normalizer = tp.data.BatchNormalizer(shape, momentum)
        outs = [normalizer(x) for x in batches]
        normalizer.eval()
        return F.concatenate([*outs, normalizer(batches[0])])

    def theirs(*batches: Any) -> Any:
        mean, std = torch().zeros(shape, dtype=batches[0].dtype), 1.0
        outs = []
        for x in batches:
            outs.append((x - x.mean(0)) / x.std(0, correction=0))
            mean = mean + momentum * (x.mean(0).detach() - mean)
            std = std + momentum * (x.std(0).detach() - std)
        return torch().cat([*outs, (batches[0] - mean) / std])

    inputs = {f"batch {i}": x.astype("float32") for i, x in enumerate(batches)}
    # of a batch of two the gradient is 0: terms of the size of 1 / std cancel
    bound = Bound(floor=1.0 / min(x.std(axis=0).min() for x in batches))
    question = Question(inputs, ours, theirs, seed=integer(rng, 0, 2**31), bound=bound)
    words = f"BatchNormalizer({shape}, momentum={momentum}) of {question.described()}"
    return Case(words, lambda: disagreement(question))


DRAWERS = (
    batch_norm,
    layer_norm,
    rms_norm,
    group_norm,
    weight_norm,
    normprop,
    batch_normalizer,
)
