"""The mean and variance of every layer, computed from its weights and from the moments of the
input."""

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import functional as F
from .. import nn
from ..engine.arrays import HostArray, to_numpy
from ..engine.errors import ShapeError, explain
from ..engine.tensor import Tensor
from ..functional.activation import activations
from ..functional.windows import Window
from ..moments.hermite import SAMPLES
from ..nn.normprop import NormProp
from .field import WHOLE, Field, Linear, Pointwise, max_pool


@dataclass(frozen=True)
class Propagated:
    """The predicted moments of one layer, for each unit or channel, over samples and positions.

    They are those of the pre-activations for layers with weights, of the output for all others.
    `exact` says that they hold for the weights and the input as given, except for rounding and the
    truncation of a series: `error` is the fraction of the variance of activations that it leaves
    out. Otherwise `error` estimates the relative error of the variance: it adds up 1 / (effective
    number of inputs) of each layer, the rate of the central limit theorem, and, with several
    Gaussians, what a single one would change.

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


def propagate(
    net: nn.Module,
    mean: Any = None,
    covariance: Any = None,
    *,
    data: Any = None,
    components: int = 1,
    weights: str = "given",
) -> list[Propagated]:
    """Predict the mean and variance of every layer of a network with these weights, or with random
    ones.

    The input is Gaussian, with a mean (C, H, W) or (features,) and a covariance matrix of all its
    values; or `data` (N, C, H, W) or (N, features), which are taken as a mixture of so many
    Gaussians: groups of samples that are alike in contrast and brightness. Ten describe images much
    better than one.

    Exact are linear layers up to the second one, with one activation between them, where the input
    is Gaussian and has at most 4096 values. Later layers are treated as Gaussian, which wide
    untrained layers nearly are. Values of larger images are taken to correlate alike at all
    positions. Layers run in their own mode: BatchNorm and BatchNormalizer in training mode divide
    by the standard deviation that is predicted, and Dropout adds its variance. Normalisers of a
    sample divide by its expected norm: behind them, averages over whole images vary less than
    predicted.

    With weights="random" the prediction is the average over networks whose weights are random,
    independent, and as large as these: see `Law`. Each record has one number, the same for all
    units; its mean is the root mean square of the means of units. It is exact for wide layers and
    any data, Gaussian or not: `error` adds up 1 / width.

    >>> net = tp.nn.Sequential(tp.nn.Linear(3, 2), tp.nn.ReLU(), tp.nn.Linear(2, 1))
    >>> records = tp.propagate(net, [0.0] * 3, [[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    >>> [(r.layer, r.mean.shape, r.exact) for r in records]
    [('0 Linear', (2,), True), ('1 ReLU', (2,), True), ('2 Linear', (1,), True)]
    """
    if weights not in ("given", "random"):
        raise ValueError(
            explain(f"weights={weights!r}", "they are 'given' or 'random'", "weights='given'")
        )
    if data is not None and not (mean is None and covariance is None):
        got, rule = "propagate with data, and a mean or a covariance", "the data have their own"
        raise ValueError(
            explain(got, rule, "propagate(net, data=x), or propagate(net, mean, covariance)")
        )
    given = (
        to_numpy(getattr(data, "data", data)) if data is not None else gaussian(mean, covariance)
    )
    if weights == "random":
        from .law import law

        return law(net, given)
    start = Mixture((Field.of(*given),)) if isinstance(given, tuple) else fitted(given, components)
    return [state.record(name) for name, state in walk(layers_of(net), start)]


def gaussian(mean: Any, covariance: Any) -> tuple[HostArray, HostArray]:
    """Both as checked arrays, the covariance as a matrix."""
    mean, matrix = (np.asarray(getattr(x, "data", x), "float64") for x in (mean, covariance))
    if mean.ndim not in (1, 3) or matrix.size != mean.size**2:
        got = f"a mean of shape {mean.shape} and a covariance of shape {matrix.shape}"
        rule = "the mean is (features,) or (C, H, W), the covariance that of all its values"
        raise ShapeError(got, rule, "data=images")
    matrix = matrix.reshape(mean.size, mean.size)
    if not is_covariance(matrix):
        got = "a covariance that is not symmetric, or gives some direction a negative variance"
        raise ValueError(explain(got, "it is a covariance matrix", "numpy.cov(samples.T)"))
    return mean, matrix


def is_covariance(matrix: HostArray) -> bool:
    """Whether it is symmetric and has no negative eigenvalue, up to rounding."""
    slack = 1e-6 * (abs(matrix).max(initial=0.0) or 1.0)
    try:
        np.linalg.cholesky(matrix + slack * np.eye(len(matrix)))
    except np.linalg.LinAlgError:
        return False
    return bool(np.allclose(matrix, matrix.T, rtol=0, atol=slack))


def fitted(data: HostArray, components: int) -> "Mixture":
    """Groups of equal contrast, and inside each, of equal brightness: as many of these as divide
    `components`."""
    if data.ndim not in (2, 4) or not 1 <= 2 * components <= len(data) or data[0].size > WHOLE:
        got = f"data of shape {data.shape} for {components} Gaussians"
        rule = (
            f"(N, features) or (N, C, H, W) of at most {WHOLE} values, and two samples for each "
            "Gaussian"
        )
        raise ShapeError(got, rule, "components=1")
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
        fields.append(
            Field.of(mean.reshape(data.shape[1:]), centered.T @ centered / np.float32(len(group)))
        )
    return Mixture(tuple(fields), tuple(weights), gaussian=False)


def by_channel(mean: HostArray, variance: HostArray) -> tuple[HostArray, HostArray]:
    """Mean and variance of each channel, over samples and positions."""
    axes = tuple(range(1, mean.ndim))
    return mean.mean(axis=axes), variance.mean(axis=axes) + mean.var(axis=axes)


@dataclass(frozen=True)
class Mixture:
    """What is known between two layers: weighted Gaussians, and an activation that is still to be
    applied to them.

    Max pooling needs the values before the activation, hence the delay.
    """

    fields: tuple[Field, ...]
    weights: tuple[float, ...] = (1.0,)  # 0 for the single Gaussian that the others are compared to
    gaussian: bool = True  # whether the values are jointly Gaussian
    exact: bool = True  # whether means and covariances are those of the values
    bound: float = 0.0  # of the relative error that series make
    error: float = 0.0  # an estimate of the rest
    pending: Pointwise | None = None

    def total(self) -> tuple[HostArray, HostArray]:
        """Mean and variance of each value, over all Gaussians."""
        moments = [
            field.live if self.pending is None else self.pending.moments(*field.live)
            for field in self.fields
        ]
        mean = sum(w * m for w, (m, _) in zip(self.weights, moments, strict=True))
        variance = sum(
            w * (v + (m - mean) ** 2) for w, (m, v) in zip(self.weights, moments, strict=True)
        )
        return np.asarray(mean), np.asarray(variance)

    def record(self, layer: str) -> Propagated:
        mean, variance = by_channel(*self.total())
        exact = self.exact and (self.pending is None or self.gaussian)
        error = self.bound + (0.0 if exact else self.error)
        if self.weights[-1] == 0.0 and not exact:
            _, single = by_channel(*replace(self, fields=self.fields[-1:], weights=(1.0,)).total())
            error += abs(float(single.mean() / variance.mean()) - 1.0)
        return Propagated(layer, mean, variance, exact, error)

    def map(self, function: Callable[[Field], Field], **changes: Any) -> "Mixture":
        exact = self.exact and self.fields[0].whole
        return replace(self, fields=tuple(map(function, self.fields)), exact=exact, **changes)

    def bent(self, function: Pointwise) -> "Mixture":
        return replace(self, pending=function)

    def applied(self) -> "Mixture":
        """After the activation."""
        if self.pending is None:
            return self
        fields, bounds = zip(*map(self.pending, self.fields), strict=True)
        exact, bound = self.exact and self.gaussian, self.bound + max(bounds)
        return replace(self, fields=fields, gaussian=False, exact=exact, bound=bound, pending=None)

    def linear(self, weights: Linear) -> "Mixture":
        variance = self.fields[0].live[1]
        if (weights.window is None) != (variance.ndim == 1):
            got = (
                f"{'Linear' if weights.window is None else 'a convolution'} of values "
                f"{variance.shape}"
            )
            raise ShapeError(
                got,
                "Linear takes vectors, a convolution images (C, H, W)",
                "Flatten, or another mean",
            )
        return self.map(
            weights, error=self.error + (0.0 if self.gaussian else weights.concentration(variance))
        )

    def average(self, window: Window) -> "Mixture":
        kernel = np.full(window.kernel, 1.0 / math.prod(window.kernel))
        return self.map(
            Linear(np.eye(len(self.fields[0].live[0]))[:, :, None, None] * kernel, window=window)
        )

    def max_pool(self, window: Window) -> "Mixture":
        if self.fields[0].held:
            got, rule = (
                "MaxPool2d in a residual branch",
                "propagate does not know what it has in common with its input",
            )
            raise TypeError(explain(got, rule, "pool in front of the block"))
        function = self.pending or Pointwise(activations["identity"], {})
        error = self.error + math.sqrt(2.0 / SAMPLES)  # of a variance from so many samples
        fields = tuple(max_pool(field, function, window) for field in self.fields)
        return replace(self, fields=fields, gaussian=False, exact=False, error=error, pending=None)

    def flat(self) -> "Mixture":
        if self.fields[0].mean.size > WHOLE:
            got = f"Flatten of an image {self.fields[0].mean.shape}"
            raise ShapeError(
                got, f"the covariance of more than {WHOLE} values would not fit", "pool it first"
            )
        return self.map(Field.flat)

    def scaled(self, factor: Any, shift: Any = 0.0) -> "Mixture":
        return self.map(lambda field: field.scaled(factor, shift))

    def batch_normalized(self, eps: float) -> "Mixture":
        mean, variance = by_channel(*self.total())
        std = np.sqrt(variance + eps)
        return self.scaled(1.0 / std, -mean / std)

    def normalized(self, groups: int, center: bool, eps: float) -> "Mixture":
        fields, errors = zip(
            *(field.normalized(groups, center, eps) for field in self.fields), strict=True
        )
        return replace(self, fields=fields, exact=False, error=self.error + max(errors))

    def split(self) -> "Mixture":
        """With a second copy of all values, to be changed by a residual branch."""
        channels = np.arange(len(self.fields[0].mean))
        doubled = np.concatenate([channels, channels[self.fields[0].held :]])
        return self.map(lambda field: field.take(doubled, len(channels)))

    def exchanged(self, before: "Mixture") -> "Mixture":
        """The values from before the branch, with its results beside them."""
        outer, held, end = before.fields[0].held, self.fields[0].held, len(self.fields[0].mean)
        channels = np.concatenate([np.arange(outer), np.arange(held, end), np.arange(outer, held)])
        return self.map(lambda field: field.take(channels, outer + end - held))

    def joined(self, before: "Mixture", alpha: float) -> "Mixture":
        """Values + alpha * results of the branch."""
        outer, held = before.fields[0].held, self.fields[0].held
        weight = np.hstack([alpha * np.eye(held - outer), np.eye(held - outer)])
        image = self.fields[0].mean.ndim == 3
        weights = (
            Linear(weight[:, :, None, None], window=Window.of(1, 1, 0)) if image else Linear(weight)
        )
        return self.map(lambda field: weights(replace(field, held=outer)))


def layers_of(net: nn.Module) -> list[Any]:
    return list(net) if type(net).forward is nn.Sequential.forward else [net]


def walk(
    layers: list[Any], state: Any, prefix: str = "", first: int = 0
) -> Generator[tuple[str, Any], None, Any]:
    """The state to show of every layer, by number and class; returns the one after all of them."""
    for i, layer in enumerate(layers, first):
        name, inside = f"{prefix}{i} {type(layer).__name__}", f"{prefix}{i}."
        if type(layer).forward.__module__.partition(".")[0] != "tinyprop":
            got, rule = (
                f"{type(layer).__name__}, with a forward of its own",
                "propagate knows the layers of tp.nn",
            )
            raise TypeError(explain(got, rule, "tp.nn.signals(net, x) measures any network"))
        if isinstance(layer, nn.Sequential):
            state = yield from walk(list(layer), state, inside)
        elif isinstance(layer, nn.Residual):
            before = state.applied()
            state = yield from walk(
                layers_of(layer.branch), before.split().scaled(1.0 / layer.beta), inside
            )
            state = state.applied().exchanged(before)
            if layer.shortcut is not None:
                shortcut = layers_of(layer.shortcut)
                state = yield from walk(
                    shortcut, state.scaled(1.0 / layer.beta), inside + "shortcut."
                )
            state = state.applied().joined(before, layer.alpha)
            yield name, state
        else:
            state = step(state, layer)
            yield name, replace(state, pending=None) if isinstance(layer, NormProp) else state
    return state


def step(state: Any, layer: Any) -> Any:
    """The state after a layer."""
    if isinstance(layer, nn.MaxPool2d):
        return state.max_pool(Window.of(layer.kernel_size, layer.stride, layer.padding))
    state = state.applied()
    if (weights := linear_map(layer)) is not None:
        state = state.linear(weights)
        if isinstance(layer, NormProp):
            c1, c2 = (array(c) if isinstance(c, Tensor) else c for c in layer.constants())
            state = state.bent(Pointwise(layer.activation, learnt(layer), c1, c2))
    elif isinstance(layer, nn.Activation):
        state = state.bent(Pointwise(layer.activation, layer.params | learnt(layer)))
    elif isinstance(layer, nn.DyT):
        name, shift = ("erf", layer.shift.item()) if isinstance(layer, nn.Derf) else ("tanh", 0.0)
        c1 = 1.0 / array(layer.weight)
        state = state.scaled(layer.alpha.item(), shift).bent(
            Pointwise(activations[name], {}, c1, -array(layer.bias) * c1)
        )
    elif isinstance(layer, nn.AvgPool2d):
        if not layer.count_include_pad and layer.padding not in (0, (0, 0)):
            got, rule = (
                "AvgPool2d(count_include_pad=False) with padding",
                "its weights differ between positions",
            )
            raise TypeError(
                explain(
                    got, f"{rule}; propagate has the same ones everywhere", "count_include_pad=True"
                )
            )
        state = state.average(Window.of(layer.kernel_size, layer.stride, layer.padding))
    elif isinstance(layer, nn.Flatten):
        state = state.flat()
    elif isinstance(layer, nn.Dropout):
        if layer.training and layer.p:
            state = state.map(lambda field: field.dropped(layer.p), gaussian=False)
    elif isinstance(layer, nn.BatchNorm):
        if layer.training:
            state = state.batch_normalized(layer.eps).scaled(array(layer.weight), array(layer.bias))
        else:
            factor = array(layer.weight) / np.sqrt(array(layer.running_var) + layer.eps)
            state = state.scaled(factor, array(layer.bias) - factor * array(layer.running_mean))
    elif isinstance(layer, (nn.RMSNorm, nn.GroupNorm)):
        groups, shape = getattr(layer, "num_groups", 1), getattr(layer, "normalized_shape", ())
        if len(shape) in (1, 2) and state.fields[0].mean[0].size > 1:
            got = f"{type(layer).__name__}({shape}) for images"
            raise TypeError(
                explain(got, "propagate normalises over whole samples", "(C, None, None)")
            )
        bias = getattr(layer, "bias", None)  # RMSNorm has none
        state = state.normalized(groups, bias is not None, layer.eps)
        state = state.scaled(array(layer.weight), 0.0 if bias is None else array(bias))
    elif isinstance(layer, nn.Scale):
        state = state.scaled(layer.factor)
    elif hasattr(layer, "as_floats"):  # tp.data's normalizers are in a room above
        mean, std = array(layer.mean), array(layer.std)
        if layer.training and not hasattr(layer, "fit"):  # a BatchNormalizer
            mean, variance = state.total()
            std = np.sqrt(np.where(variance > 0, variance, 1.0))
        state = state.scaled(1.0 / std, -mean / std)
    else:
        rule = (
            "propagate knows layers with weights, normalisers, pooling, activations, Flatten, "
            "Residual, Sequential"
        )
        raise TypeError(
            explain(
                f"a layer {type(layer).__name__}",
                rule,
                "tp.nn.signals(net, x) measures any network",
            )
        )
    return state


def array(tensor: Tensor) -> HostArray:
    return to_numpy(tensor.data).astype("float64")


def learnt(layer: Any) -> dict[str, HostArray]:
    """The learnable parameters of a layer's activation."""
    return {name: array(p) for name, p in layer.activation_parameters.items()}


def linear_map(layer: Any) -> Linear | None:
    """The weights and bias of Linear, Conv2d, their wrappers, and NormProp layers."""
    base: Any = layer.layer if isinstance(layer, nn.WeightNorm) else layer
    if isinstance(layer, NormProp):
        weight, bias = array(F.weight_norm(layer.weight, layer.gamma)), array(layer.beta)
    elif isinstance(base, (nn.Linear, nn.Conv2d)):
        weight, bias = array(layer.weight), np.zeros(1) if base.bias is None else array(base.bias)
    else:
        return None
    window, groups = None, getattr(base, "groups", 1)
    if weight.ndim == 4:
        window = Window.of(
            base.kernel_size, base.stride, base.padding, getattr(base, "dilation", 1)
        )
        rows, channels = np.indices(weight.shape[:2])
        # 0 between groups
        dense = np.zeros((len(weight), groups * weight.shape[1], *window.kernel))
        dense[rows, channels + rows // (len(weight) // groups) * weight.shape[1]] = weight
        weight = dense
    return Linear(weight, bias, window, isinstance(layer, nn.ScaledWS), groups)
