"""Losses, and what they need of labels."""

from typing import Any

from ..engine.arrays import Array, array_module, from_host, host_array, is_array, is_host_array
from ..engine.errors import ShapeError, explain
from ..engine.graph import Op
from ..engine.sums import at_least_float32, total
from ..engine.tensor import Operand, Tensor, as_tensor
from .arithmetic import as_float, square, where
from .reductions import Mean, log_softmax, mean, softmax, sum

IGNORED = -100  # the label that counts for nothing, as in PyTorch


def one_hot(labels: Array, x: Array) -> Array:
    """labels (N, ...) -> (N, C, ...), true at the class that is the label; nowhere if the label is
    no class"""
    numbers = array_module(labels).arange(x.shape[1])
    classes = numbers.reshape(-1, *[1] * (x.ndim - 2))  # (C, 1, ...)
    return classes == labels[:, None]


class CrossEntropy(Op):
    """-log_softmax(x) at the labels; 0 for a label that is not a class. It may be known beforehand
    that all of them are classes."""

    floating = True

    def __init__(self, labels: Array, all_are_classes: bool = False):
        self.labels = labels
        self.all_are_classes = all_are_classes

    def forward(self, x: Array) -> Array:
        xp = array_module(x)
        shifted = at_least_float32(x) - x.max(axis=1, keepdims=True)
        log_probability = shifted - xp.log(total(xp.exp(shifted), 1, keepdims=True))
        at_label = xp.where(one_hot(self.labels, x), log_probability, 0.0)
        return -total(at_label, 1, dtype=x.dtype)

    def backward(self, g: Tensor, x: Tensor) -> Any:
        hot = one_hot(self.labels, x._data)
        is_class = hot.any(axis=1, keepdims=True)
        return g[:, None] * (softmax(x, axis=1) * is_class - hot.astype(x.dtype))


def cross_entropy(
    x: Operand,
    labels: Any,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    ignore_index: int = IGNORED,
) -> Tensor:
    """The cross-entropy of logits x, shape (N, C, ...), with integer labels, shape (N, ...).

    `reduction` is "mean", "sum" or "none" over the labels; those equal to `ignore_index` do not
    count. With `label_smoothing` s the target is 1 - s at the label plus s / C at every class.

    >>> F.cross_entropy([[0.0, 0.0]], [1])
    tensor(0.6931472)
    """
    x = as_tensor(x)
    if not 0 <= label_smoothing <= 1:
        got = f"label_smoothing={label_smoothing}"
        raise ValueError(explain(got, "it is a number from 0 to 1", "0.1"))
    labels, counts = _checked_labels("cross_entropy", x, labels, ignore_index)
    all_are_classes = counts is None
    losses = CrossEntropy(labels, all_are_classes)(x)
    if label_smoothing:
        smooth = -mean(log_softmax(x, axis=1), axis=1)
        if counts is not None:
            smooth = smooth * counts.astype(smooth.dtype)
        losses = losses * (1.0 - label_smoothing) + smooth * label_smoothing
    return _reduced(losses, reduction, counts)


def nll_loss(
    x: Operand, labels: Any, reduction: str = "mean", ignore_index: int = IGNORED
) -> Tensor:
    """The negative of log-probabilities x, shape (N, C, ...), at the labels: `cross_entropy` after
    `log_softmax`.

    >>> F.nll_loss([[-0.5, -2.0]], [1])
    tensor(2.)
    """
    x = as_tensor(x)
    labels, counts = _checked_labels("nll_loss", x, labels, ignore_index)
    hot = Tensor(one_hot(labels, x._data))
    losses = -sum(where(hot, x, 0.0), axis=1)
    return _reduced(losses, reduction, counts)


def mse_loss(x: Operand, target: Operand, reduction: str = "mean") -> Tensor:
    """The squared difference of x and a target of the same shape.

    >>> F.mse_loss([1.0, 2.0], [1.0, 4.0])
    tensor(2.)
    """
    x, target = as_tensor(x, like=target), as_tensor(target, like=x)
    if target.dtype.kind != "f":
        x = as_float(x)
    if x.shape != target.shape:
        got = f"mse_loss of {x.shape} and {target.shape}"
        rule = "both have the same shape; broadcasting here is nearly always a mistake"
        raise ShapeError(got, rule, f"target.reshape{x.shape}")
    return _reduced(square(x - target), reduction, None)


def _reduced(losses: Tensor, reduction: str, counts: Array | None) -> Tensor:
    """The mean over the labels that count (None: all), the sum, or the losses themselves."""
    if reduction == "none":
        return losses
    if reduction == "sum":
        return sum(losses)
    if reduction != "mean":
        got = f"reduction={reduction!r}"
        raise ValueError(explain(got, "it is 'mean', 'sum' or 'none'", "reduction='mean'"))
    if counts is None:
        return mean(losses)
    return Mean(None, keepdims=False, count=total(counts))(losses)


def _checked_labels(name: str, x: Tensor, labels: Any, ignored: int) -> tuple[Array, Array | None]:
    """A copy of the labels where x lives, and which of them count (None: all). Labels on a device
    are not checked."""
    if isinstance(labels, Tensor):
        labels = labels._data
    elif not is_array(labels):
        labels = host_array(labels)
    hint = _label_hint(x, labels)
    if hint is not None:
        got = f"{name} of logits {x.shape} and labels {labels.shape} of type {labels.dtype}"
        rule = "logits are (N, C, ...), labels are integers of shape (N, ...)"
        raise ShapeError(got, rule, hint)
    counts = labels != ignored
    on_host = is_host_array(labels)
    all_count = on_host and counts.all()
    classes = labels.astype("int64")
    if not all_count:
        classes = array_module(labels).where(counts, classes, -1)  # -1 is no class
    if not on_host:
        return classes, counts
    valid = labels if all_count else labels[counts]
    if valid.size and not (valid.min() >= 0 and valid.max() < x.shape[1]):
        got = f"labels from {valid.min()} to {valid.max()} for {x.shape[1]} classes"
        rule = f"a label is a class number from 0 to {x.shape[1] - 1}"
        hint = "count classes from 0, or give the network more outputs"
        raise IndexError(explain(got, rule, hint))
    classes = from_host(classes, like=x._data)
    return classes, None if all_count else from_host(counts, like=x._data)


def _label_hint(x: Tensor, labels: Array) -> str | None:
    """What to try if labels of this shape and type do not belong to logits x; None if they do."""
    expected = x.shape[:1] + x.shape[2:]
    one_pixel = x.ndim > 2 and expected[1:] == (1,) * (x.ndim - 2)
    if one_pixel and labels.ndim == 1:
        return "Flatten() at the end of the network, or logits.flatten(1)"
    if x.ndim < 2:
        return "logits[None] and [label], with a batch axis"
    if labels.shape == x.shape:
        return "labels.argmax(axis=1): class numbers, not one-hot rows"
    if labels.shape != expected:
        return f"labels of shape {expected}"
    if labels.dtype.kind not in "iu":
        return "labels.astype('int64')"
    return None
