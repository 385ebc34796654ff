"""The learning curves of a run."""

from matplotlib.figure import Figure

from ..report.plots import COLORS, panels, styled


@styled
def training_curves(history: list[dict[str, float]]) -> Figure:
    """Loss and error after each epoch: on test images, or on validation images in a run that has
    them."""
    figure, (left, right) = panels(2, 8.0, 3.2)
    name = "validation" if "validation_loss" in history[0] else "test"
    epochs = [row["epoch"] for row in history]
    left.plot(
        epochs,
        [row["train_loss"] for row in history],
        "o-",
        markersize=3,
        color=COLORS[0],
        label="training",
    )
    left.plot(
        epochs,
        [row[f"{name}_loss"] for row in history],
        "o-",
        markersize=3,
        color=COLORS[1],
        label=name,
    )
    right.plot(
        epochs, [100 * row[f"{name}_error"] for row in history], "o-", markersize=3, color=COLORS[1]
    )
    for axes in (left, right):
        axes.set(xlabel="epoch", ylim=(0, None))
        axes.xaxis.get_major_locator().set_params(integer=True)
    left.set(title="Cross-entropy")
    left.legend()
    right.set(title=f"{name.capitalize()} error, %")
    return figure
