"""What theory says of the gradient in a given network: its mean square, from layer to layer, if
gradients and weights are independent."""

import math
from typing import Any

import numpy as np

from .. import moments, nn
from ..engine.arrays import HostArray
from ..engine.tensor import Tensor
from .calls import Call, Moments, by_units

Predictions = dict[int, Moments]  # of calls, by their number


def predicted_gradients(calls: list[Call], predicted: Predictions) -> dict[int, float]:
    """The mean square of the gradient of the loss with respect to the output of each call, from
    that of the last one. There are rules for chains of layers, and for Residual blocks. Of a
    forward of someone's own it is not known who gets which tensor: with one, there is no
    prediction."""
    last = calls[-1].record.gradient
    is_open = any(call.has_layers and not is_plain_residual(call) for call in calls)
    if last is None or is_open:
        return {}
    squares = {calls[-1].number: float((last.numpy().astype("float64") ** 2).mean())}
    for call in reversed(calls):
        if call.number not in squares:
            continue
        square = squares[call.number]
        if is_plain_residual(call):
            alpha: Any = getattr(call.layer, "alpha", 1.0)
            squares[call.number - 1] = squares.get(call.number - 1, 0.0) + alpha**2 * square
            gain: float | None = 1.0
        else:
            gain = gain_of(call, predicted)
        if gain is None:
            break
        if call.source is not None:
            number = call.source.number
            squares[number] = squares.get(number, 0.0) + gain * square
    return squares


def is_plain_residual(call: Call) -> bool:
    layer: Any = call.layer
    return type(layer) is nn.Residual and layer.shortcut is None and layer.beta == 1.0


def gain_of(call: Call, predicted: Predictions) -> float | None:
    """What a layer makes of the mean square of the gradient, from its output to its input; None if
    there is no rule."""
    layer: Any = call.layer
    spread = positions(call.output) / positions(call.input)
    if isinstance(layer, (nn.Flatten, nn.Identity)):
        return 1.0
    if isinstance(layer, nn.Dropout):
        return 1.0 / (1.0 - layer.p) if layer.training else 1.0
    if isinstance(layer, nn.Scale):
        return float(layer.factor**2)
    if isinstance(layer, nn.MaxPool2d):
        return spread
    if isinstance(layer, (nn.AvgPool2d, nn.GlobalAvgPool2d)):
        window = 1.0 / spread  # as windows that neither overlap nor leave gaps
        return spread / window
    if call.rows is not None:
        inputs = call.input.shape[1]
        of_weights = float((call.rows**2).sum()) / inputs * spread
        if not call.is_normprop:
            return of_weights
        own = predicted.get(call.number)
        return None if own is None else of_weights * slope_of_normprop(layer, own)
    source = None if call.source is None else predicted.get(call.source.number)
    if source is None:
        return None
    if call.is_activation:
        return slope(layer, source)
    if call.is_normalizer:
        return of_normalizer(call, source)
    return None


def positions(values: HostArray) -> int:
    return by_units(values).shape[2]


def slope(activation: Any, seen: Moments, **params: Any) -> float:
    """E s'^2 for Gaussian inputs with these moments."""
    found = slopes(activation, seen, **params)
    return float(found.mean())


def slopes(activation: Any, seen: Moments, **params: Any) -> HostArray:
    std = np.sqrt(np.maximum(seen.variances, 1e-12))
    found = moments.gaussian(activation, Tensor(seen.means), Tensor(std), **params)
    return np.asarray(found.slope2.numpy())


def slope_of_normprop(layer: Any, seen: Moments) -> float:
    c1, _ = layer.constants()
    scale = c1.numpy() if isinstance(c1, Tensor) else c1
    found = slopes(layer.activation, seen, **layer.activation_parameters)
    return float((found / scale**2).mean())


def of_normalizer(call: Call, seen: Moments) -> float | None:
    """weight^2 / variance; the directions that it removes are few."""
    layer: Any = call.layer
    weight = getattr(layer, "weight", None)
    squares = 1.0 if weight is None else float((weight.numpy().astype("float64") ** 2).mean())
    over_batch = layer.statistics.over == "batch"
    if over_batch and not layer.training:
        if not hasattr(layer, "running_var"):
            return None
        variance = float(layer.running_var.numpy().mean()) + layer.eps
    elif over_batch:
        return squares * float((1.0 / (seen.variances + layer.eps)).mean())
    else:
        square = seen.square
        variance = square - float(seen.means.mean()) ** 2 if layer.statistics.center else square
    return squares / variance if variance > 0.0 and math.isfinite(variance) else None
