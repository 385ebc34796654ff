"""One step of each optimizer, and the unit-length constraint, as functions that change arrays in
place."""

from ..engine.arrays import Array, array_module
from ..engine.overrides import overridable
from ..functional.normalization import per_channel, row_lengths

Arrays = list[Array]  # one for each parameter


@overridable
def sgd(
    w: Arrays, g: Arrays, velocity: Arrays, lr: float, momentum: float, weight_decay: float
) -> None:
    """One step of stochastic gradient descent."""
    for w_i, g_i, v in zip(w, g, velocity, strict=True):
        if weight_decay:
            g_i = g_i + weight_decay * w_i
        if momentum:
            v *= momentum
            v += g_i
            g_i = v
        w_i -= lr * g_i


@overridable
def rmsprop(
    w: Arrays, g: Arrays, square: Arrays, lr: float, alpha: float, eps: float, weight_decay: float
) -> None:
    """One step of RMSProp."""
    for w_i, g_i, s in zip(w, g, square, strict=True):
        if weight_decay:
            g_i = g_i + weight_decay * w_i
        s *= alpha
        s += (1 - alpha) * g_i * g_i
        w_i -= lr * g_i / (array_module(w_i).sqrt(s) + eps)


@overridable
def adam(
    w: Arrays,
    g: Arrays,
    mean: Arrays,
    square: Arrays,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
) -> None:
    """Step number `step`, counted from 1, of Adam."""
    for w_i, g_i, m, s in zip(w, g, mean, square, strict=True):
        if weight_decay:
            g_i = g_i + weight_decay * w_i
        m += (1 - beta1) * (g_i - m)
        s *= beta2
        s += (1 - beta2) * g_i * g_i
        # both estimates start at 0: undo that bias
        root = array_module(w_i).sqrt(s) / (1 - beta2**step) ** 0.5
        rate = lr / (1 - beta1**step)
        w_i -= rate * m / (root + eps)


@overridable
def unit_rows(weights: list[Array]) -> None:
    """Scale each row w[i] to length 1."""
    for w in weights:
        w /= per_channel(row_lengths(w).astype(w.dtype), w.ndim)
