"""The learning curves of a run."""

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from ..report.plots import COLORS, panels, styled


@styled
def training_curves(history: Sequence[dict[str, float]]) -> Figure:
    """Loss and error after each epoch: on training images, and on test images, or on validation
    images in a run that has them."""
    figure, (left, right) = panels(2, 8.0, 3.2)
    name = "validation" if "validation_loss" in history[0] else "test"
    epochs = [row["epoch"] for row in history]
    for part, color in (("train", COLORS[0]), (name, COLORS[1])):
        label = "training" if part == "train" else name
        style = {"markersize": 3, "color": color, "label": label}
        losses = [row[f"{part}_loss"] for row in history]
        # runs of earlier versions have no training error
        errors = [100 * row.get(f"{part}_error", math.nan) for row in history]
        left.plot(epochs, losses, "o-", **style)
        right.plot(epochs, errors, "o-", **style)
    for axes in (left, right):
        axes.set(xlabel="epoch", ylim=(0, None))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend()
    left.set(title="Cross-entropy")
    right.set(title="Error, %")
    return figure
