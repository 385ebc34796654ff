"""Cross-entropy and means on the host, without ops in between: in a small step, Python takes longer
than arithmetic."""

import math
from typing import Any

import numpy as np

from ..engine.arrays import HostArray, as_array, strided_view
from ..engine.overrides import override
from ..engine.sums import wide
from ..functional.losses import CrossEntropy
from ..functional.reductions import Mean


@override(CrossEntropy.forward, on="numpy")
def cross_entropy(op: CrossEntropy, x: HostArray) -> Any:
    """log(sum(exp(x - max))) - (x - max)[label]. Where a graph is recorded, the softmax is kept.
    27 > 18 us for 50 samples of 10 classes."""
    if x.ndim != 2 or x.dtype.itemsize < 4 or not x.size or not op.all_are_classes:
        return NotImplemented
    shifted = x - x.max(axis=1, keepdims=True)
    powers = np.exp(shifted)
    sums = powers.sum(axis=1, keepdims=True, dtype=wide(x.dtype, terms=x.shape[1]))
    at_label = shifted[np.arange(len(x)), op.labels]
    losses = np.log(sums[:, 0]) - at_label
    if op.recorded:
        powers /= sums.astype(x.dtype, copy=False)
        op.cache["softmax"] = powers
    return losses.astype(x.dtype, copy=False)


@override(CrossEntropy.backward, on="numpy")
def cross_entropy_gradient(op: CrossEntropy, g: HostArray, x: HostArray) -> Any:
    """g (softmax(x) - one_hot(label)). The rule takes 11 ops, 47 > 6 us for 50 samples of 10
    classes."""
    if "softmax" not in op.cache:
        return NotImplemented
    slope = op.cache["softmax"].copy()
    slope[np.arange(len(x)), op.labels] -= 1.0
    slope *= g[:, None]
    return slope


@override(Mean.backward, on="numpy")
def mean_gradient(op: Mean, g: HostArray) -> Any:
    """g / count for each element: a view of one number, where all elements are reduced. 26 > 10
    us for 50 elements, with what the backward pass adds."""
    if op.axis is not None or op.keepdims or not math.prod(op.old_shape):
        return NotImplemented
    factor = g.dtype.type(1.0 / op.divisor)
    each = as_array(g * factor)
    copies = strided_view(each, op.old_shape, (0,) * len(op.old_shape))
    copies.setflags(write=False)  # they share one number, as those of np.broadcast_to
    return copies
