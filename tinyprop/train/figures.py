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


def described(history: Sequence[dict[str, float]]) -> str:
    """The learning curves in words.

    >>> described([{"train_loss": 2.3, "test_loss": 2.4, "test_error": 0.9}])
    'Learning curves, 1 epoch. Training loss: from 2.3 to 2.3. Test loss: from 2.4 to 2.4. Test \
error: from 90.0% to 90.0%.'
    """
    name = "validation" if "validation_loss" in history[0] else "test"
    sentences = [f"Learning curves, {len(history)} epoch{'s' * (len(history) > 1)}."]
    for kind, form in (("loss", ".3g"), ("error", ".1%")):
        for title, part in (("Training", "train"), (name.capitalize(), name)):
            column = f"{part}_{kind}"
            values = [row[column] for row in history if column in row]  # older logs have fewer
            if values:
                start, end = format(values[0], form), format(values[-1], form)
                sentences.append(f"{title} {kind}: from {start} to {end}.")
    return " ".join(sentences)
