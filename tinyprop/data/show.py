"""A data set in a notebook: an image of each class, or a few vectors."""

from typing import Any

import numpy as np

from ..engine.arrays import HostArray
from ..report.html import image_tag, png
from ..report.table import Table, element

CLASSES = 10  # that are shown
VALUES = 6  # of a vector
WIDTH = 64  # of an image on the page


def show(dataset: Any) -> str:
    """A page with the first sample of each class; of the first ones, if there are many."""
    title = element("p", repr(dataset)[1:-1])
    labels, firsts = np.unique(dataset.labels, return_index=True)
    samples = []
    for label, first in zip(labels[:CLASSES], firsts[:CLASSES], strict=True):
        samples.append((dataset.classes[label], dataset.images[first]))
    return title + (_vectors(samples) if dataset.has_vectors else _images(samples))


def _vectors(samples: list[tuple[str, HostArray]]) -> str:
    count = min(VALUES, len(samples[0][1]))
    header = ["class", *(str(i) for i in range(count))]
    rows = [[name, *(f"{value:.4g}" for value in vector[:count])] for name, vector in samples]
    omitted = len(samples[0][1]) - count
    return Table(header, rows, note=f"and {omitted:,} more values" if omitted else "").html()


def _images(samples: list[tuple[str, HostArray]]) -> str:
    low = min(float(image.min()) for _, image in samples)
    high = max(float(image.max()) for _, image in samples)
    cells = []
    for name, image in samples:
        picture = png(_pixels(image, low, high))
        tag = image_tag(picture, name, WIDTH, "image-rendering: pixelated")
        cells.append(f"<td>{tag}{element('div', name)}</td>")
    return f"<table><tr>{''.join(cells)}</tr></table>"


def _pixels(image: HostArray, low: float, high: float) -> HostArray:
    """Bytes (H, W, 3), or (H, W) of the first channel unless there are three. Floats are scaled so
    that their range is that of bytes."""
    if image.dtype != np.uint8:
        spread = (high - low) or 1.0
        image = ((image - low) * (255 / spread)).round().astype(np.uint8)
    if len(image) != 3:
        return image[0]
    return image.transpose(1, 2, 0)  # (C, H, W) -> (H, W, C)
