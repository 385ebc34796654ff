"""Losses, and what they need of labels."""

from typing import Any

from ..engine.arrays import Array, array_module, from_host, host_array, is_array, is_host_array
from ..engine.errors import ShapeError, explain
from ..engine.graph import Op
from ..engine.tensor import Operand, Tensor, as_tensor
from .arithmetic import as_float, square, where
from .reductions import log_softmax, mean, softmax, sum

IGNORED = -100  # the label that counts for nothing, as in PyTorch


def one_hot(labels: Array, x: Array) -> Array:
    """labels (N, ...) -> (N, C, ...), true at the class that is the label; nowhere if the label is
    no class"""
    classes = array_module(labels).arange(x.shape[1]).reshape(-1, *[1] * (x.ndim - 2))  # (C, ...)
    return classes == labels[:, None]


class CrossEntropy(Op):
    """-log_softmax(x) at the labels; 0 for a label that is not a class."""

    floating = True

    def __init__(self, labels: Array):
        self.labels = labels

    def forward(self, x: Array) -> Array:
        xp = array_module(x)
        x = x - x.max(axis=1, keepdims=True)
        log_probability = x - xp.log(xp.exp(x).sum(axis=1, keepdims=True))
        return -xp.where(one_hot(self.labels, x), log_probability, 0.0).sum(axis=1)

    def backward(self, g: Tensor, x: Tensor) -> Any:
        hot = one_hot(self.labels, x._data).astype(x.dtype)
        return g[:, None] * (softmax(x, axis=1) * hot.sum(axis=1, keepdims=True) - hot)


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
        raise ValueError(
            explain(f"label_smoothing={label_smoothing}", "it is a number from 0 to 1", "0.1")
        )
    labels, counted = _checked_labels("cross_entropy", x, labels, ignore_index)
    losses = CrossEntropy(labels)(x)
    if label_smoothing:
        smooth = -mean(log_softmax(x, axis=1), axis=1)
        smooth = smooth if counted is None else smooth * counted.astype(smooth.dtype)
        losses = losses * (1.0 - label_smoothing) + smooth * label_smoothing
    return _reduced(losses, reduction, counted)


def nll_loss(
    x: Operand, labels: Any, reduction: str = "mean", ignore_index: int = IGNORED
) -> Tensor:
    """The negative of log-probabilities x, shape (N, C, ...), at the labels: `cross_entropy` after
    `log_softmax`.

    >>> F.nll_loss([[-0.5, -2.0]], [1])
    tensor(2.)
    """
    x = as_tensor(x)
    labels, counted = _checked_labels("nll_loss", x, labels, ignore_index)
    return _reduced(
        -sum(where(Tensor(one_hot(labels, x._data)), x, 0.0), axis=1), reduction, counted
    )


def mse_loss(x: Operand, target: Operand, reduction: str = "mean") -> Tensor:
    """The squared difference of x and a target of the same shape.

    >>> F.mse_loss([1.0, 2.0], [1.0, 4.0])
    tensor(2.)
    """
    x, target = as_float(as_tensor(x, like=target)), as_float(as_tensor(target, like=x))
    if x.shape != target.shape:
        rule = "both have the same shape; broadcasting here is nearly always a mistake"
        raise ShapeError(
            f"mse_loss of {x.shape} and {target.shape}", rule, f"target.reshape{x.shape}"
        )
    return _reduced(square(x - target), reduction, None)


def _reduced(losses: Tensor, reduction: str, counted: Array | None) -> Tensor:
    """The mean over the labels that count, the sum, or the losses themselves."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(
            explain(f"reduction={reduction!r}", "it is 'mean', 'sum' or 'none'", "reduction='mean'")
        )
    if reduction == "mean":
        return mean(losses) if counted is None else sum(losses) / counted.sum().astype(losses.dtype)
    return sum(losses) if reduction == "sum" else losses


def _checked_labels(name: str, x: Tensor, labels: Any, ignored: int) -> tuple[Array, Array | None]:
    """A copy of the labels where x lives, and which of them count (None: all). Labels on a device
    are not checked."""
    labels = (
        labels._data
        if isinstance(labels, Tensor)
        else labels
        if is_array(labels)
        else host_array(labels)
    )
    got = f"{name} of logits {x.shape} and labels {labels.shape} of type {labels.dtype}"
    rule = "logits are (N, C, ...), labels are integers of shape (N, ...)"
    expected = x.shape[:1] + x.shape[2:]
    if x.ndim > 2 and labels.ndim == 1 and expected[1:] == (1,) * (x.ndim - 2):
        raise ShapeError(got, rule, "Flatten() at the end of the network, or logits.flatten(1)")
    if x.ndim < 2:
        raise ShapeError(got, rule, "logits[None] and [label], with a batch axis")
    if labels.shape == x.shape:
        raise ShapeError(got, rule, "labels.argmax(axis=1): class numbers, not one-hot rows")
    if labels.shape != expected:
        raise ShapeError(got, rule, f"labels of shape {expected}")
    if labels.dtype.kind not in "iu":
        raise ShapeError(got, rule, "labels.astype('int64')")
    counts = labels != ignored
    classes = array_module(labels).where(counts, labels.astype("int64"), -1)  # -1 is no class
    if not is_host_array(labels):
        return classes, counts
    valid = labels[counts]
    if valid.size and not (valid.min() >= 0 and valid.max() < x.shape[1]):
        found = f"labels from {valid.min()} to {valid.max()} for {x.shape[1]} classes"
        rule = f"a label is a class number from 0 to {x.shape[1] - 1}"
        raise IndexError(
            explain(found, rule, "count classes from 0, or give the network more outputs")
        )
    return from_host(classes, like=x._data), None if counts.all() else from_host(
        counts, like=x._data
    )
