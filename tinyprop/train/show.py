"""A run in a notebook: its settings, its last epochs and its curves."""

import io
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from ..report.html import image_tag
from ..report.table import Table, element
from .config import Config

EPOCHS = 10  # that are shown as numbers
COLUMNS = {
    "epoch": ("epoch", "d"),
    "lr": ("learning rate", ".3g"),
    "train_loss": ("training loss", ".3f"),
    "train_error": ("training error", ".2%"),
    "validation_error": ("validation error", ".2%"),
    "test_error": ("test error", ".2%"),
}


def show_run(folder: Path, config: Config, history: Sequence[dict[str, float]]) -> str:
    """A page about a run, or about what was read from its directory."""
    changed = [f for f in fields(config) if getattr(config, f.name) != f.default]
    settings = ", ".join(f"{f.name} = {getattr(config, f.name)!r}" for f in changed)
    title = f"{folder}: {len(history)} of {config.epochs} epochs"
    page = element("p", title) + element("p", settings or "default settings")
    if history:
        page += history_table(history).html() + _curves(history)
    return page


def history_table(history: Sequence[dict[str, float]]) -> Table:
    """The last epochs of a run.

    >>> print(history_table([{"epoch": 1, "train_loss": 2.3, "test_error": 0.5}]).text())
    epoch  training loss  test error
        1          2.300      50.00%
    """
    names = [name for name in COLUMNS if any(name in row for row in history)]
    rows = []
    for row in history[-EPOCHS:]:
        rows.append([format(row[n], COLUMNS[n][1]) if n in row else "" for n in names])
    return Table([COLUMNS[name][0] for name in names], rows, align="r" * len(names))


def _curves(history: Sequence[dict[str, float]]) -> str:
    from .figures import described, training_curves  # loads matplotlib

    picture = io.BytesIO()
    training_curves(history).savefig(picture, format="png")
    return image_tag(picture.getvalue(), described(history), width=640)
