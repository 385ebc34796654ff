"""jacobian, hessian and jvp of small networks and formulas, against torch.func."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

import tinyprop as tp
import tinyprop.functional as F

from .case import Case, Random, chance, choice, difference, integer, laid_out, scale_of
from .oracle import torch, torch_tensor


@dataclass(frozen=True)
class Pair:
    """A function of x and of a matrix w, by both libraries: `nn` is torch.nn.functional."""

    words: str
    ours: Callable[[Any, Any], Any]
    theirs: Callable[[Any, Any, Any], Any]


FUNCTIONS = (
    Pair(
        "tanh(x @ w)",
        lambda x, w: F.tanh(x @ w),
        lambda nn, x, w: (x @ w).tanh(),
    ),
    Pair(
        "softmax(x @ w) @ w.T",
        lambda x, w: F.softmax(x @ w, axis=-1) @ w.T,
        lambda nn, x, w: (x @ w).softmax(-1) @ w.T,
    ),
    Pair(
        "layer_norm(x) ** 2",
        lambda x, w: F.layer_norm(x, x.shape[-1]) ** 2,
        lambda nn, x, w: nn.layer_norm(x, x.shape[-1:]) ** 2,
    ),
    Pair(
        "gelu(x) * x.sum(axis=0)",
        lambda x, w: F.gelu(x) * x.sum(axis=0),
        lambda nn, x, w: nn.gelu(x) * x.sum(0),
    ),
    Pair(
        "logsumexp(x[::2]) + silu(x)",
        lambda x, w: F.logsumexp(x[::2], axis=-1).sum() + F.silu(x),
        lambda nn, x, w: x[::2].logsumexp(-1).sum() + nn.silu(x),
    ),
    Pair(
        "log(1.5 + sin(x)) / (2 + x ** 2)",
        lambda x, w: F.log(1.5 + F.sin(x)) / (2.0 + x**2),
        lambda nn, x, w: (1.5 + x.sin()).log() / (2.0 + x**2),
    ),
    Pair(
        "norm(x, axis=1) and var(x, axis=0)",
        lambda x, w: F.concatenate([F.norm(x, axis=1), F.var(x, axis=0)]),
        lambda nn, x, w: torch().cat([x.norm(dim=1), x.var(dim=0, correction=0)]),
    ),
)


def draw(rng: Random) -> Case:
    pair = choice(rng, FUNCTIONS)
    x = laid_out(rng, rng.standard_normal((integer(rng, 2, 4), integer(rng, 3, 4))))
    w = rng.standard_normal((x.shape[1], integer(rng, 2, 4)))
    v = rng.standard_normal(x.shape)
    derivative = choice(rng, ["jacobian", "hessian", "jvp", "the gradient of a Jacobian"])
    plain = chance(rng, 0.3)
    words = f"{derivative} of {pair.words} for x {x.shape}, w {w.shape}"
    # of a scalar function that mixes all results
    weights = np.cos(np.arange(1000.0))

    def ours() -> Any:
        def f(x: Any) -> Any:
            return pair.ours(x, tp.tensor(w))

        def mixed(y: Any) -> Any:
            return (y * y * tp.tensor(weights[: y.size].reshape(y.shape))).sum()

        at = tp.from_numpy(x)
        if derivative == "jacobian":
            return [tp.jacobian(f, at)]
        if derivative == "hessian":
            return [tp.hessian(lambda x: mixed(f(x)), at)]
        if derivative == "jvp":
            return tp.jvp(f, at, tp.tensor(v))
        leaf = tp.from_numpy(x, requires_grad=True)
        return tp.grad(mixed(tp.jacobian(f, leaf)), [leaf])

    def theirs() -> Any:
        nn, func = torch().nn.functional, torch().func

        def f(x: Any) -> Any:
            return pair.theirs(nn, x, torch_tensor(w))

        def mixed(y: Any) -> Any:
            return (y * y * torch_tensor(weights[: y.numel()].reshape(y.shape))).sum()

        at = torch_tensor(x)
        if derivative == "jacobian":
            return [func.jacrev(f)(at)]
        if derivative == "hessian":
            return [func.jacrev(func.jacrev(lambda x: mixed(f(x))))(at)]
        if derivative == "jvp":
            return func.jvp(f, (at,), (torch_tensor(v),))
        return [func.grad(lambda x: mixed(func.jacrev(f)(x)))(at)]

    def check() -> str | None:
        with tp.plain() if plain else nullcontext():
            got = ours()
        for number, (a, b) in enumerate(zip(got, theirs(), strict=True)):
            one, other = a.detach().numpy(), b.detach().numpy()
            allowed = 1e-10 * (1.0 + scale_of(other))
            if complaint := difference(f"result {number}", one, other, allowed):
                return complaint
        return None

    return Case(words, check)
