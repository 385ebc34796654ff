"""The mean and variance of every layer, computed from its weights and from the moments of the input."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import functional as F
from .. import nn
from ..engine.arrays import HostArray, to_numpy
from ..engine.errors import ShapeError, explain
from ..engine.tensor import Tensor
from ..windows import Window
from .field import SAMPLES, WHOLE, Field, Linear, Pointwise, max_pool


@dataclass(frozen=True)
class Propagated:
    """The predicted moments of one layer, for each unit or channel, over samples and positions.

    They are those of the pre-activations for layers with weights, of the output for all others. `exact` says that they
    hold for the weights and the input as given, except for rounding and the truncation of a series, bounded by `error`.
    Otherwise `error` estimates the relative error of the variance: it adds up 1 / (effective number of inputs) of
    each layer, the rate of the central limit theorem, and, with several Gaussians, what a single one would change.

    >>> net = tp.nn.Sequential(tp.nn.Linear(2, 1, bias=False))
    >>> net[0].weight.data[...] = [[3.0, 4.0]]
    >>> tp.propagate(net, [1.0, 0.0], [[1.0, 0.0], [0.0, 1.0]])
    [Propagated(layer='0 Linear', mean=array([3.]), variance=array([25.]), exact=True, error=0.0)]
    """

    layer: str  # number and class, as "2 MaxPool2d"
    mean: HostArray
    variance: HostArray
    exact: bool
    error: float


@dataclass(frozen=True)
class State:
    """What is known between two layers: weighted Gaussians, and an activation that is still to be applied to them.

    Max pooling needs the values before the activation, hence the delay.
    """

    fields: tuple[Field, ...]
    weights: tuple[float, ...]  # they add up to 1; one of 0 belongs to the single Gaussian that others are compared to
    gaussian: bool  # whether the values are jointly Gaussian
    exact: bool  # whether means and covariances are those of the values
    bound: float = 0.0  # of the relative error that series make
    error: float = 0.0  # an estimate of the rest
    pending: Pointwise | None = None

    def map(self, function: Any) -> "State":
        return replace(self, fields=tuple(function(field) for field in self.fields))

    def applied(self) -> "State":
        """After the activation."""
        if self.pending is None:
            return self
        found = [self.pending(field) for field in self.fields]
        whole = all(field.whole is not None for field, _ in found)
        bound = self.bound + max(bound for _, bound in found)
        fields = tuple(field for field, _ in found)
        return State(fields, self.weights, False, self.exact and self.gaussian and whole, bound, self.error)

    def total(self) -> tuple[HostArray, HostArray]:
        """Mean and variance of each value, over all Gaussians."""
        moments = [(f.mean, f.variance) for f in self.fields]
        if self.pending is not None:
            moments = [self.pending.moments(*pair) for pair in moments]
        mean = sum(w * m for w, (m, _) in zip(self.weights, moments, strict=True))
        variance = sum(w * (v + (m - mean) ** 2) for w, (m, v) in zip(self.weights, moments, strict=True))
        return np.asarray(mean), np.asarray(variance)

    def record(self, layer: str) -> Propagated:
        mean, variance = by_channel(*self.total())
        exact = self.exact and (self.pending is None or self.gaussian)
        error = self.bound + (0.0 if exact else self.error)
        if self.weights[-1] == 0.0 and not exact:
            _, single = by_channel(*replace(self, fields=self.fields[-1:], weights=(1.0,)).total())
            error += abs(float(single.mean() / variance.mean()) - 1.0)
        return Propagated(layer, mean, variance, exact, error)


def by_channel(mean: HostArray, variance: HostArray) -> tuple[HostArray, HostArray]:
    """Mean and variance of each channel, over samples and positions."""
    axes = tuple(range(1, mean.ndim))
    return mean.mean(axis=axes), variance.mean(axis=axes) + mean.var(axis=axes)


def propagate(
    net: nn.Module, mean: Any = None, covariance: Any = None, *, data: Any = None, components: int = 1
) -> list[Propagated]:
    """Predict the mean and variance of every layer of a network with these weights.

    The input is Gaussian, with a mean (C, H, W) or (features,) and a covariance matrix of all its values; or `data`
    (N, C, H, W) or (N, features), which are taken as a mixture of so many Gaussians: groups of samples that are alike
    in contrast and brightness. Ten describe images much better than one.

    Exact are linear layers up to the second one, with one activation between them, where the input is Gaussian and has
    at most 4096 values. Later layers are treated as Gaussian, which wide untrained layers nearly are. Values of larger
    images are taken to correlate alike at all positions. Layers run in their own mode: BatchNorm and BatchNormalizer in
    training mode divide by the standard deviation that is predicted, and Dropout adds its variance.

    >>> net = tp.nn.Sequential(tp.nn.Linear(3, 2), tp.nn.ReLU(), tp.nn.Linear(2, 1))
    >>> [(r.layer, r.mean.shape, r.exact) for r in tp.propagate(net, [0.0] * 3, [[1, 0, 0], [0, 1, 0], [0, 0, 1]])]
    [('0 Linear', (2,), True), ('1 ReLU', (2,), True), ('2 Linear', (1,), True)]
    """
    state = fitted(to_numpy(getattr(data, "data", data)), components) if data is not None else given(mean, covariance)
    records = []
    for name, layer in leaves(net):
        state, shown = step(state, layer)
        records.append(shown.record(name))
    return records


def leaves(net: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers in order, by number and class; a Sequential is its layers."""
    if not isinstance(net, nn.Sequential):
        yield f"0 {type(net).__name__}", net
        return
    for i, layer in enumerate(net):
        if isinstance(layer, nn.Sequential):
            yield from ((f"{i}.{name}", inner) for name, inner in leaves(layer))
        else:
            yield f"{i} {type(layer).__name__}", layer


def given(mean: Any, covariance: Any) -> State:
    mean, matrix = (np.asarray(getattr(x, "data", x), "float64") for x in (mean, covariance))
    if mean.ndim not in (1, 3) or matrix.size != mean.size**2:
        got = f"a mean of shape {mean.shape} and a covariance of shape {matrix.shape}"
        raise ShapeError(
            got, "the mean is (features,) or (C, H, W), the covariance that of all its values", "data=images"
        )
    matrix = matrix.reshape(mean.size, mean.size)
    scale = abs(matrix).max(initial=0.0)
    if not np.allclose(matrix, matrix.T, rtol=0, atol=1e-6 * scale) or np.diag(matrix).min() < 0:
        got = "a covariance that is not symmetric, or has negative variances"
        raise ValueError(explain(got, "it is a covariance matrix", "numpy.cov(samples.T)"))
    return State((Field(mean, np.diag(matrix).reshape(mean.shape), matrix),), (1.0,), True, True)


def fitted(data: HostArray, components: int) -> State:
    """Groups of equal contrast, and inside each, of equal brightness: as many of these as divide `components`."""
    if data.ndim not in (2, 4) or not 1 <= 2 * components <= len(data) or data[0].size > WHOLE:
        got, rule = (
            f"data of shape {data.shape} for {components} Gaussians",
            "(N, features) or (N, C, H, W) of at most",
        )
        raise ShapeError(got, f"{rule} {WHOLE} values, and two samples for each Gaussian", "components=1")
    samples = data.reshape(len(data), -1).astype("float32")
    contrast, brightness = samples.std(axis=1), samples.mean(axis=1)
    parts = max(k for k in range(1, components + 1) if components % k == 0 and k * k <= components)
    groups = [
        part
        for group in np.array_split(np.argsort(contrast, kind="stable"), components // parts)
        for part in np.array_split(group[np.argsort(brightness[group], kind="stable")], parts)
    ]
    weights = [len(group) / len(data) for group in groups]
    if components > 1:
        groups, weights = [*groups, np.arange(len(data))], [*weights, 0.0]
    fields = []
    for group in groups:
        mean = samples[group].mean(axis=0, dtype="float64")
        centered = samples[group] - mean.astype("float32")
        whole = centered.T @ centered / np.float32(len(group))
        shape = data.shape[1:]
        fields.append(Field(mean.reshape(shape), np.diag(whole).reshape(shape).astype("float64"), whole))
    return State(tuple(fields), tuple(weights), False, True)


def step(state: State, layer: nn.Module) -> tuple[State, State]:
    """The state after a layer, and the one to show: these differ for a layer that contains an activation."""
    if isinstance(layer, (nn.NormPropLinear, nn.NormPropConv2d)):
        state = linear(state.applied(), layer)
        c1, c2 = (to_numpy(getattr(c, "data", c)) if isinstance(c, Tensor) else c for c in layer.constants())
        params = {"a": to_numpy(layer.a.data).astype("float64")} if layer.activation == "prelu" else {}
        return replace(state, pending=Pointwise(layer.activation, params, c1, c2)), state
    if isinstance(layer, (nn.Activation, nn.PReLU)):
        name = "prelu" if isinstance(layer, nn.PReLU) else layer.function
        own = {"a": to_numpy(layer.a.data).astype("float64")} if isinstance(layer, nn.PReLU) else layer.params
        state = replace(state.applied(), pending=Pointwise(name, own))
    elif isinstance(layer, nn.MaxPool2d):
        window = Window.of(layer.kernel_size, layer.stride, layer.padding)
        before = state
        state = before.map(lambda field: max_pool(image(field, layer), before.pending, window))
        error = before.error + math.sqrt(2.0 / SAMPLES)  # of a variance from so many samples
        state = State(state.fields, state.weights, False, False, state.bound, error)
    elif isinstance(layer, (nn.Linear, nn.Conv2d, nn.AvgPool2d)):
        state = linear(state.applied(), layer)
    elif isinstance(layer, nn.Flatten):
        state = state.applied().map(flattened)
    elif isinstance(layer, nn.Dropout):
        state, p = state.applied(), layer.p if layer.training else 0.0
        state = state.map(lambda f: f.noisy(p / (1.0 - p) * (f.variance + f.mean**2)) if p else f)
        state = replace(state, gaussian=state.gaussian and not p)
    elif isinstance(layer, nn.BatchNorm) or hasattr(layer, "as_floats"):  # tp.data's normalizers are in a room above
        state = state.applied()
        factor, shift = normalizer(state, layer)
        state = state.map(lambda field: field.scaled(factor, shift))
    else:
        got = f"a layer {type(layer).__name__}"
        rule = "propagate knows Linear, Conv2d, NormProp, BatchNorm, Dropout, pooling, activations, Flatten, Sequential"
        raise TypeError(explain(got, rule, "tp.nn.signals(net, x), which measures any network"))
    return state, state


def linear(state: State, layer: Any) -> State:
    """Linear, Conv2d, AvgPool2d and the weighted sums of NormProp layers."""
    image_layer = not isinstance(layer, (nn.Linear, nn.NormPropLinear))
    fields = [image(f, layer) if image_layer else vector(f, layer) for f in state.fields]
    bias: Any = 0.0
    window, groups = None, 1
    if isinstance(layer, nn.AvgPool2d):
        channels = fields[0].mean.shape[0]
        window, groups = Window.of(layer.kernel_size, layer.stride, layer.padding), channels
        if not layer.count_include_pad and window.padding != (0, 0):
            got, rule = "AvgPool2d(count_include_pad=False) with padding", "its weights differ between positions"
            raise TypeError(explain(got, f"{rule}; propagate has the same ones everywhere", "count_include_pad=True"))
        weight = np.full((channels, 1, *window.kernel), 1.0 / (window.kernel[0] * window.kernel[1]))
    elif isinstance(layer, (nn.NormPropLinear, nn.NormPropConv2d)):
        weight = to_numpy(F.weight_norm(layer.weight, layer.gamma).data)
        bias = to_numpy(layer.beta.data)
    else:
        weight = to_numpy(layer.weight.data)
        bias = 0.0 if layer.bias is None else to_numpy(layer.bias.data)
    if isinstance(layer, (nn.Conv2d, nn.NormPropConv2d)):
        dilation, groups = (layer.dilation, layer.groups) if isinstance(layer, nn.Conv2d) else (1, 1)
        window = Window.of(layer.kernel_size, layer.stride, layer.padding, dilation)

    def apply(x: Tensor, w: Tensor) -> Tensor:
        if window is None:
            return F.linear(x, w)
        return F.conv2d(x, w, None, window.stride, window.padding, window.dilation, groups)

    weights = Linear(apply, weight.astype("float64"), bias, window, groups)
    error = state.error
    if not state.gaussian and not isinstance(layer, nn.AvgPool2d):
        error += weights.concentration(fields[0])
    exact = state.exact and all(field.whole is not None for field in fields)
    return replace(state, fields=tuple(weights(field) for field in fields), exact=exact, error=error)


def image(field: Field, layer: nn.Module) -> Field:
    if field.mean.ndim != 3:
        got = f"{type(layer).__name__} for values of shape {field.mean.shape}"
        raise ShapeError(got, "it takes images (C, H, W)", "a mean of shape (C, H, W), and Flatten later")
    return field


def vector(field: Field, layer: Any) -> Field:
    if field.mean.ndim != 1 or field.mean.size != layer.in_features:
        got = f"{type(layer).__name__} of {layer.in_features} features for values of shape {field.mean.shape}"
        raise ShapeError(got, "it takes as many features as it has weights", "Flatten, or another mean")
    return field


def flattened(field: Field) -> Field:
    if field.mean.size > WHOLE:
        got = f"Flatten of an image {field.mean.shape}"
        raise ShapeError(got, f"the covariance of more than {WHOLE} values would not fit", "pool it first")
    return field.flat()


def normalizer(state: State, layer: Any) -> tuple[HostArray, HostArray]:
    """The factor and shift of BatchNorm (one per channel), GlobalNormalizer and BatchNormalizer (one per value)."""
    if isinstance(layer, nn.BatchNorm):
        mean, variance = (to_numpy(x.data).astype("float64") for x in (layer.running_mean, layer.running_var))
        if layer.training:
            mean, variance = by_channel(*state.total())
        factor = to_numpy(layer.weight.data) / np.sqrt(variance + layer.eps)
        return factor, to_numpy(layer.bias.data) - factor * mean
    mean, std = (to_numpy(x.data).astype("float64") for x in (layer.mean, layer.std))
    if layer.training and not hasattr(layer, "fit"):  # a BatchNormalizer
        mean, variance = state.total()
        std = np.sqrt(np.where(variance > 0, variance, 1.0))
    return 1.0 / std, -mean / std
