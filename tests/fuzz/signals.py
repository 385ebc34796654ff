"""nn.signals of random networks, against the same numbers from the outputs of one layer after the
other, and from a gradient of its own for each."""

import copy
import math
from typing import Any

import numpy as np

import tinyprop as tp
import tinyprop.functional as F
from tinyprop import nn

from .case import Array, Case, Random, chance, difference
from .networks import draw_model, one_line


def draw(rng: Random) -> Case:
    model = draw_model(rng)
    with_labels = chance(rng, 0.6)
    silenced = chance(rng, 0.5)
    words = f"signals of {model.x.shape}, {'with' if with_labels else 'without'} labels, "
    words += f"{'with dead units, ' if silenced else ''}of {one_line(model.make())}"

    def network() -> Any:
        net = model.make()
        if silenced:
            for layer in net.modules():
                if isinstance(layer, nn.Conv2d) and layer.bias is not None:
                    layer.weight.data[::2] = 0.0  # every second unit is constant
        return net.eval()

    def check() -> str | None:
        labels = model.labels if with_labels else None
        found = nn.signals(network(), tp.tensor(model.x), labels)
        expected = by_hand(network(), model.x, labels)
        if len(found) != len(expected):
            return f"{len(found)} signals, but should be {len(expected)}"
        for signal, row in zip(found, expected, strict=True):
            for name, want in row.items():
                got = getattr(signal, name)
                if (got is None) != (want is None):
                    return f"{name} of {signal.layer}: {got}, but should be {want}"
                if want is None:
                    continue
                allowed = 1e-5 * (1e-6 + abs(want) + (row["std"] if name == "mean" else 0.0))
                what = f"{name} of {signal.layer}"
                if complaint := difference(what, np.array(got), np.array(want), allowed):
                    return complaint
        return None

    return Case(words, check)


def by_hand(net: Any, x: Array, labels: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    layers = list(net)
    untouched = copy.deepcopy(layers)  # a user's module may count its calls
    out = tp.tensor(x)
    for number, layer in enumerate(layers):
        with tp.no_grad():
            out = layer(out)
        values = out.numpy().astype("float64")
        units = np.moveaxis(values, 1, 0).reshape(values.shape[1], -1)
        row = {
            "mean": units.mean(),
            "std": units.std(),
            "dead": np.mean([len(set(unit)) == 1 for unit in units]),
            "unit_mean_square": (units.mean(axis=1) ** 2).mean(),
            "gradient_std": None,
        }
        if labels is not None:
            row["gradient_std"] = gradient_size(
                copy.deepcopy(untouched[number + 1 :]), out.numpy(), labels
            )
        rows.append(row)
    return rows


def gradient_size(rest: list[Any], values: Array, labels: Any) -> float:
    """The root mean square of the gradient of the loss with respect to this output."""
    leaf = tp.tensor(values, requires_grad=True)
    out = leaf
    for layer in rest:
        out = layer(out)
    (gradient,) = tp.grad(F.cross_entropy(out, labels), [leaf])
    return math.sqrt((gradient.numpy().astype("float64") ** 2).mean())
