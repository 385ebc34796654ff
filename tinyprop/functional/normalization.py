"""Normalisation: of weights by their length, of activations by statistics of a batch, a sample or a
group."""

from math import prod
from typing import Any

from ..engine.arrays import Array, array_module, as_int_tuple, from_host
from ..engine.batch import add_up, in_batch, over_batch
from ..engine.errors import ShapeError, explain
from ..engine.graph import Op
from ..engine.guard import check_editable
from ..engine.overrides import overridable
from ..engine.random import next_key, random_words
from ..engine.stand_in import accepts_stand_ins
from ..engine.sums import at_least_float32, total, wide
from ..engine.tensor import Operand, Tensor, as_tensor
from .arithmetic import as_float, rsqrt
from .reductions import mean, moments, norm
from .reductions import sum as sum_over
from .shapes import reshape
from .windows import Shape


def per_channel(numbers: Any, ndim: int) -> Any:
    """(n,) -> (n, 1, ...) with `ndim` axes: for rows (n, ...), or, with `ndim` - 1 axes, for
    channels (N, n, ...)"""
    return numbers.reshape(-1, *[1] * (ndim - 1))


@overridable
def row_lengths(w: Array) -> Array:
    """The Euclidean length of each row w[i], in the type in which its squares are added."""
    rows = at_least_float32(w.reshape(len(w), prod(w.shape[1:])))
    return array_module(w).sqrt(total(rows * rows, 1, dtype=wide(rows.dtype)))


class WeightNorm(Op):
    """Rows w[i] of any length to rows of length scale[i] * factor."""

    floating = True

    def __init__(self, factor: float):
        self.factor = factor

    def forward(self, w: Array, scale: Array) -> Array:
        times = scale * self.factor / row_lengths(w)
        dtype = array_module(w).result_type(w, scale)
        return w * per_channel(times.astype(dtype), w.ndim)

    def backward(self, g: Tensor, w: Tensor, scale: Tensor) -> Any:
        within = tuple(range(1, w.ndim))
        length = norm(w, within, keepdims=True)
        unit = w / length
        size = per_channel(scale * self.factor, w.ndim)
        along = sum_over(g * unit, within, keepdims=True)
        return (
            lambda: (g - unit * along) * (size / length),
            lambda: (along * self.factor).reshape(scale.shape),
        )


def weight_norm(
    weight: Operand, scale: Operand, factor: float = 1.0, centered: bool = False
) -> Tensor:
    """The rows weight[i], whatever their length, at length scale[i] * factor (Salimans and Kingma,
    2016).

    `centered` rows lose their mean first: scaled weight standardisation (Brock et al., 2021). Their
    sum is then 0, so that the mean which all inputs share cancels.

    >>> F.weight_norm(tp.tensor([[3.0, 4.0]]), tp.tensor([10.0]))
    tensor([[6., 8.]])
    >>> F.weight_norm(tp.tensor([[3.0, 7.0, 5.0]]), tp.tensor([2.0]), factor=2**0.5, centered=True)
    tensor([[-2.,  2.,  0.]])
    """
    weight, scale = as_tensor(weight, like=scale), as_tensor(scale, like=weight)
    if weight.ndim < 2 or scale.shape != weight.shape[:1]:
        got = f"weight_norm of weight {weight.shape} and scale {scale.shape}"
        rule = "weight is (rows, ...), scale is (rows,)"
        raise ShapeError(got, rule, f"scale of shape {weight.shape[:1]}")
    if not centered:
        return WeightNorm(factor)(weight, scale)
    if weight.size < 2 * len(weight):
        got = f"weight_norm of weight {weight.shape}, centered"
        rule = "one weight minus its own mean is 0, which has no direction"
        raise ShapeError(got, rule, "centered=False")
    within = tuple(range(1, weight.ndim))
    return WeightNorm(factor)(weight - mean(weight, within, keepdims=True), scale)


class Normalize(Op):
    """(x - mean) / sqrt(var + eps) * weight + bias, with the mean and the variance over some axes:
    batch, layer and group normalisation. Not `centered`, the mean stays, and the mean square takes
    the place of the variance: RMSNorm."""

    floating = True
    hint = "weight and bias broadcast against x"

    def __init__(self, axes: Shape, eps: float, centered: bool = True):
        self.axes, self.eps, self.centered = axes, eps, centered

    def statistics(self, x: Array) -> tuple[Any, Array]:
        """The mean and the variance, in the type in which x is added."""
        count = prod(x.shape[axis] for axis in self.axes)
        if self.centered:
            return moments(x, self.axes, count)
        return 0.0, total(x * x, self.axes, True, wide(x.dtype), count)

    def forward(self, x: Array, weight: Any, bias: Any) -> Array:
        dtype = array_module(x).result_type(x, weight, bias)
        x = at_least_float32(x)
        center, var = self.statistics(x)
        if self.centered:
            x = x - center.astype(x.dtype)
        inverse = (1.0 / array_module(x).sqrt(var + self.eps)).astype(x.dtype)
        return (x * (weight * inverse) + bias).astype(dtype, copy=False)

    def mean(self, x: Tensor) -> Tensor:
        return mean(x, self.axes, keepdims=True)

    def backward(self, g: Tensor, x: Tensor, weight: Any) -> Any:
        g, x = at_least_float32(g), at_least_float32(x)
        deviation = x - self.mean(x) if self.centered else x
        inverse = rsqrt(self.mean(deviation * deviation) + self.eps)
        normal = deviation * inverse
        g_normal = g * weight
        rest = g_normal - normal * self.mean(g_normal * normal)
        if self.centered:
            rest = rest - self.mean(g_normal)
        return rest * inverse, lambda: g * normal, g


class BatchNorm(Normalize):
    """Over all axes but 1, with one weight and bias for each feature; forward also moves the
    running estimates. Sums go over all parts of a batch, if several threads share it, and `count`
    is how many values of a feature there are."""

    def __init__(
        self,
        axes: Shape,
        eps: float,
        count: int,
        momentum: float,
        running_mean: Array,
        running_var: Array,
    ):
        super().__init__(axes, eps)
        self.count = count
        self.momentum = momentum
        self.running = running_mean, running_var

    def statistics(self, x: Array) -> tuple[Array, Array]:
        center, var = moments(x, self.axes, self.count, add_up)
        self.move_running(center.reshape(-1), var.reshape(-1))
        return center, var

    def move_running(self, center: Array, var: Array) -> None:
        running_mean, running_var = self.running
        unbiased = var * (self.count / (self.count - 1))
        running_mean += self.momentum * (center - running_mean)
        running_var += self.momentum * (unbiased - running_var)

    def mean(self, x: Tensor) -> Tensor:
        return over_batch(sum_over(x, self.axes, keepdims=True)) / self.count

    def forward(self, x: Array, weight: Array, bias: Array) -> Array:
        return super().forward(x, per_channel(weight, x.ndim - 1), per_channel(bias, x.ndim - 1))

    def backward(self, g: Tensor, x: Tensor, weight: Tensor) -> Any:
        g_x, along, g = super().backward(g, x, per_channel(weight, x.ndim - 1))
        return g_x, lambda: sum_over(along(), self.axes), lambda: sum_over(g, self.axes)


@accepts_stand_ins
def batch_norm(
    x: Operand,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each feature (axis 1) over the batch and all places: Ioffe and Szegedy (2015).

    When training, by the statistics of the batch, which also move the running estimates in place;
    otherwise by these.

    >>> mean, var = tp.zeros(1), tp.ones(1)
    >>> F.batch_norm([[1.0], [3.0]], mean, var, training=True, eps=0.0), mean
    (tensor([[-1.],
            [ 1.]]), tensor([0.2]))
    """
    if running_mean is None or running_var is None:
        got = "batch_norm without running estimates"
        rule = "the running estimates are tensors, which training moves"
        raise ShapeError(got, rule, "tp.zeros(C) and tp.ones(C) for C features")
    x = as_float(x)
    features = running_mean.size
    if x.ndim < 2 or x.shape[1] != features:
        got = f"batch_norm of {features} features of shape {x.shape}"
        hint = f"(N, {features}) or (N, {features}, H, W)"
        raise ShapeError(got, "axis 1 holds the features", hint)
    if running_mean.dtype.kind != "f" or running_var.dtype.kind != "f":
        got = f"running estimates of type {running_mean.dtype} and {running_var.dtype}"
        raise TypeError(explain(got, "they are floats", "tp.zeros(C) and tp.ones(C)"))
    for name, p in (("running_var", running_var), ("weight", weight), ("bias", bias)):
        if p is not None and p.size != features:
            got = f"batch_norm of {features} features with a {name} of shape {p.shape}"
            raise ShapeError(got, "each has one", f"shape ({features},)")
    xp = array_module(x._data)
    weight = Tensor(xp.ones(features, x.dtype)) if weight is None else weight
    bias = Tensor(xp.zeros(features, x.dtype)) if bias is None else bias
    if training:
        return batch_op(BatchNorm, x, running_mean, running_var, momentum, eps)(x, weight, bias)
    scale = weight * rsqrt(running_var + eps)
    shift = bias - running_mean * scale
    return x * per_channel(scale, x.ndim - 1) + per_channel(shift, x.ndim - 1)


def batch_op(
    kind: type[BatchNorm],
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> BatchNorm:
    """The op that normalises x by its own statistics and moves the running ones."""
    count = add_up(x.size // max(running_mean.size, 1))
    if count < 2:
        got = f"batch_norm of a batch of shape {x.shape}"
        rule = "one value per feature has no spread: its normalised value would be 0/0"
        raise ShapeError(got, rule, "a larger batch, or NormProp, which needs none")
    check_editable(running_mean, "running_mean")
    check_editable(running_var, "running_var")
    axes = (0, *range(2, x.ndim))
    return kind(axes, eps, count, momentum, running_mean._data, running_var._data)


@accepts_stand_ins
def layer_norm(
    x: Operand,
    normalized_shape: Any,
    weight: Operand | None = None,
    bias: Operand | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each sample over its last axes, of these lengths: Ba et al. (2016). Weight and bias
    have this shape, or another that broadcasts against x.

    >>> F.layer_norm([[1.0, 3.0], [10.0, 10.5]], 2, eps=0.0)
    tensor([[-1.,  1.],
            [-1.,  1.]])
    """
    x = as_float(x)
    shape = as_int_tuple(normalized_shape)
    got = f"layer_norm of shape {x.shape} over axes of lengths {shape}"
    return _normalized(got, x, shape, weight, bias, eps)


@accepts_stand_ins
def rms_norm(
    x: Operand, normalized_shape: Any, weight: Operand | None = None, eps: float = 1e-5
) -> Tensor:
    """Divide each sample by its root mean square over the last axes: `layer_norm` without the mean,
    Zhang and Sennrich (2019). (In PyTorch, eps is the machine epsilon of the dtype unless given.)

    >>> F.rms_norm([[1.0, 7.0]], 2, eps=0.0)
    tensor([[0.2, 1.4]])
    """
    x = as_float(x)
    shape = as_int_tuple(normalized_shape)
    got = f"rms_norm of shape {x.shape} over axes of lengths {shape}"
    return _normalized(got, x, shape, weight, None, eps, centered=False)


@accepts_stand_ins
def group_norm(
    x: Operand,
    num_groups: int,
    weight: Operand | None = None,
    bias: Operand | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each sample within groups of its channels (axis 1), over all places: Wu and He
    (2018).

    >>> F.group_norm([[1.0, 3.0, 10.0, 20.0]], 2, eps=0.0)
    tensor([[-1.,  1., -1.,  1.]])
    """
    x = as_float(x)
    got = f"group_norm of shape {x.shape} in {num_groups} groups"
    if x.ndim < 2 or num_groups < 1 or x.shape[1] % num_groups:
        rule = "axis 1 holds the channels, which the number of groups divides"
        raise ShapeError(got, rule, "num_groups=1")
    # (N, C, ...) -> (N, groups, C / groups, ...), and (C,) -> (groups, C / groups, 1, ...)
    each = x.shape[1] // num_groups
    in_groups = x.reshape(len(x), num_groups, each, *x.shape[2:])
    per_group = num_groups, each, *[1] * (x.ndim - 2)
    weight = None if weight is None else reshape(weight, per_group)
    bias = None if bias is None else reshape(bias, per_group)
    lengths = in_groups.shape[2:]
    return _normalized(got, in_groups, lengths, weight, bias, eps).reshape(x.shape)


def _normalized(
    got: str, x: Tensor, lengths: Shape, weight: Any, bias: Any, eps: float, centered: bool = True
) -> Tensor:
    if not lengths or x.shape[-len(lengths) :] != lengths:
        raise ShapeError(got, "these are the last axes of x", f"normalized_shape={x.shape[1:]}")
    if prod(lengths) < 1 + centered:
        hint = "longer axes, fewer groups, or rms_norm, which needs no spread"
        raise ShapeError(got, "one value has no spread: its normalised value would be 0/0", hint)
    op = Normalize(tuple(range(-len(lengths), 0)), eps, centered)
    out = op(x, 1.0 if weight is None else weight, 0.0 if bias is None else bias)
    if out.shape != x.shape:
        got = f"{got}, with weight or bias for {out.shape}"
        raise ShapeError(got, Normalize.hint, f"shape {lengths}")
    return out


@accepts_stand_ins
def dropout(x: Operand, p: float = 0.5, training: bool = True) -> Tensor:
    """Each element is 0 with probability p, and the others are scaled by 1 / (1 - p); x itself
    unless training.

    >>> F.dropout([1.0, 2.0], training=False)
    tensor([1., 2.])
    """
    if not 0 <= p < 1:
        rule = "a probability of dropping is at least 0 and less than 1"
        raise ValueError(explain(f"p={p}", rule, "p=0.5"))
    x = as_float(x)
    if not training or p == 0:
        return x
    shape, mine = in_batch(x.shape)
    mask = dropout_mask(x._data, shape, p, next_key())
    return x * Tensor(mask[mine])


@overridable
def dropout_mask(x: Array, shape: Shape, p: float, key: int) -> Array:
    """0 with probability p, otherwise 1 / (1 - p), in an array of this shape that is like x
    otherwise."""
    surviving = random_words(prod(shape), key).reshape(shape) >= round(p * 2**32)
    return from_host(surviving * x.dtype.type(1.0 / (1.0 - p)), x)
