"""Normalisation: of weights by their length, of activations by statistics of a batch, a sample or a
group."""

from math import prod
from typing import Any

from ..engine.arrays import Array, array_module, as_int_tuple, from_host
from ..engine.errors import ShapeError, explain
from ..engine.graph import Op
from ..engine.guard import check_editable
from ..engine.overrides import overridable
from ..engine.random import next_key, random_words
from ..engine.tensor import Operand, Tensor, as_tensor
from ..engine.threads import add_up, in_batch, is_first_thread, over_batch
from .arithmetic import as_float, rsqrt
from .reductions import mean, norm
from .reductions import sum as sum_over
from .shapes import reshape
from .windows import Shape


def per_channel(numbers: Any, ndim: int) -> Any:
    """(n,) -> (n, 1, ...) with `ndim` axes: for rows (n, ...), or, with `ndim` - 1 axes, for
    channels (N, n, ...)"""
    return numbers.reshape(-1, *[1] * (ndim - 1))


class WeightNorm(Op):
    """Rows w[i] of any length to rows of length scale[i] * factor."""

    floating = True

    def __init__(self, factor: float):
        self.factor = factor

    def forward(self, w: Array, scale: Array) -> Array:
        xp, rows = array_module(w), w.reshape(len(w), -1)
        length = xp.sqrt(xp.einsum("ij,ij->i", rows, rows))  # without an array of squares
        return w * per_channel(scale * self.factor / length, w.ndim)

    def backward(self, g: Tensor, w: Tensor, scale: Tensor) -> Any:
        within = tuple(range(1, w.ndim))
        length = norm(w, within, keepdims=True)
        unit, size = w / length, per_channel(scale * self.factor, w.ndim)
        along = sum_over(g * unit, within, keepdims=True)
        return lambda: (g - unit * along) * (size / length), lambda: (along * self.factor).reshape(
            scale.shape
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
        raise ShapeError(
            got, "weight is (rows, ...), scale is (rows,)", f"scale of shape {weight.shape[:1]}"
        )
    if centered and weight.size < 2 * len(weight):
        got = f"weight_norm of weight {weight.shape}, centered"
        raise ShapeError(
            got, "one weight minus its own mean is 0, which has no direction", "centered=False"
        )
    rows = (
        weight - mean(weight, tuple(range(1, weight.ndim)), keepdims=True) if centered else weight
    )
    return WeightNorm(factor)(rows, scale)


class Normalize(Op):
    """(x - mean) / sqrt(var + eps) * weight + bias, with the mean and the variance over some axes:
    batch, layer and group normalisation. Not `centered`, the mean stays, and the mean square takes
    the place of the variance: RMSNorm."""

    floating = True
    hint = "weight and bias broadcast against x"

    def __init__(self, axes: Shape, eps: float, centered: bool = True):
        self.axes, self.eps, self.centered = axes, eps, centered

    def statistics(self, x: Array) -> tuple[Any, Array]:
        center = x.mean(axis=self.axes, keepdims=True) if self.centered else 0.0
        return center, ((x - center) ** 2).mean(axis=self.axes, keepdims=True)

    def forward(self, x: Array, weight: Any, bias: Any) -> Array:
        center, var = self.statistics(x)
        return (x - center) * (weight / array_module(x).sqrt(var + self.eps)) + bias

    def mean(self, x: Tensor) -> Tensor:
        return mean(x, self.axes, keepdims=True)

    def backward(self, g: Tensor, x: Tensor, weight: Any) -> Any:
        off = x - self.mean(x) if self.centered else x
        inverse = rsqrt(self.mean(off * off) + self.eps)
        normal, g_normal = off * inverse, g * weight
        rest = g_normal - normal * self.mean(g_normal * normal)
        rest = rest - self.mean(g_normal) if self.centered else rest
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
        self.count, self.momentum, self.running = count, momentum, (running_mean, running_var)

    def statistics(self, x: Array) -> tuple[Array, Array]:
        center = add_up(x.sum(axis=self.axes, keepdims=True)) / self.count
        var = add_up(((x - center) ** 2).sum(axis=self.axes, keepdims=True)) / self.count
        self.move_running(center.reshape(-1), var.reshape(-1))
        return center, var

    def move_running(self, center: Array, var: Array) -> None:
        if is_first_thread():
            for running, now in zip(
                self.running, (center, var * (self.count / (self.count - 1))), strict=True
            ):
                running += self.momentum * (now - running)

    def mean(self, x: Tensor) -> Tensor:
        return over_batch(sum_over(x, self.axes, keepdims=True)) / self.count

    def forward(self, x: Array, weight: Array, bias: Array) -> Array:
        return super().forward(x, per_channel(weight, x.ndim - 1), per_channel(bias, x.ndim - 1))

    def backward(self, g: Tensor, x: Tensor, weight: Tensor) -> Any:
        g_x, along, _ = super().backward(g, x, per_channel(weight, x.ndim - 1))
        return g_x, lambda: sum_over(along(), self.axes), lambda: sum_over(g, self.axes)


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
        rule = "the running estimates are tensors, which training moves"
        raise ShapeError(
            "batch_norm without running estimates",
            rule,
            "tp.zeros(C) and tp.ones(C) for C features",
        )
    x, features = as_float(x), running_mean.size
    if x.ndim < 2 or x.shape[1] != features:
        rule, hint = "axis 1 holds the features", f"(N, {features}) or (N, {features}, H, W)"
        raise ShapeError(f"batch_norm of {features} features of shape {x.shape}", rule, hint)
    for name, p in {"running_var": running_var, "weight": weight, "bias": bias}.items():
        if p is not None and p.size != features:
            got, rule = (
                f"batch_norm of {features} features with a {name} of shape {p.shape}",
                "each has one",
            )
            raise ShapeError(got, rule, f"shape ({features},)")
    xp = array_module(x._data)
    weight = Tensor(xp.ones(features, x.dtype)) if weight is None else weight
    bias = Tensor(xp.zeros(features, x.dtype)) if bias is None else bias
    if training:
        return batch_op(BatchNorm, x, running_mean, running_var, momentum, eps)(x, weight, bias)
    scale = weight * rsqrt(running_var + eps)
    return x * per_channel(scale, x.ndim - 1) + per_channel(bias - running_mean * scale, x.ndim - 1)


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
        got, hint = (
            f"batch_norm of a batch of shape {x.shape}",
            "a larger batch, or NormProp, which needs none",
        )
        raise ShapeError(
            got, "one value per feature has no spread: its normalised value would be 0/0", hint
        )
    check_editable(running_mean, "running_mean")
    check_editable(running_var, "running_var")
    return kind((0, *range(2, x.ndim)), eps, count, momentum, running_mean._data, running_var._data)


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
    x, shape = as_float(x), as_int_tuple(normalized_shape)
    return _normalized(
        f"layer_norm of shape {x.shape} over axes of lengths {shape}", x, shape, weight, bias, eps
    )


def rms_norm(
    x: Operand, normalized_shape: Any, weight: Operand | None = None, eps: float = 1e-5
) -> Tensor:
    """Divide each sample by its root mean square over the last axes: `layer_norm` without the mean,
    Zhang and Sennrich (2019). (In PyTorch, eps is the machine epsilon of the dtype unless given.)

    >>> F.rms_norm([[1.0, 7.0]], 2, eps=0.0)
    tensor([[0.2, 1.4]])
    """
    x, shape = as_float(x), as_int_tuple(normalized_shape)
    got = f"rms_norm of shape {x.shape} over axes of lengths {shape}"
    return _normalized(got, x, shape, weight, None, eps, centered=False)


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
        raise ShapeError(
            got, "axis 1 holds the channels, which the number of groups divides", "num_groups=1"
        )
    # (N, C, ...) -> (N, groups, C / groups, ...)
    shape = num_groups, x.shape[1] // num_groups, *x.shape[2:]
    weight, bias = (
        t if t is None else reshape(t, (*shape[:2], *[1] * (x.ndim - 2))) for t in (weight, bias)
    )
    return _normalized(got, x.reshape(len(x), *shape), shape[1:], weight, bias, eps).reshape(
        x.shape
    )


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
        raise ShapeError(
            f"{got}, with weight or bias for {out.shape}", Normalize.hint, f"shape {lengths}"
        )
    return out


def dropout(x: Operand, p: float = 0.5, training: bool = True) -> Tensor:
    """Each element is 0 with probability p, and the others are scaled by 1 / (1 - p); x itself
    unless training.

    >>> F.dropout([1.0, 2.0], training=False)
    tensor([1., 2.])
    """
    if not 0 <= p < 1:
        raise ValueError(
            explain(f"p={p}", "a probability of dropping is at least 0 and less than 1", "p=0.5")
        )
    x = as_float(x)
    if not training or p == 0:
        return x
    shape, mine = in_batch(x.shape)
    return x * Tensor(dropout_mask(x._data, shape, p, next_key())[mine])


@overridable
def dropout_mask(x: Array, shape: Shape, p: float, key: int) -> Array:
    """0 with probability p, otherwise 1 / (1 - p), in an array of this shape that is like x
    otherwise."""
    surviving = random_words(prod(shape), key).reshape(shape) >= round(p * 2**32)
    return from_host(surviving * x.dtype.type(1.0 / (1.0 - p)), x)
