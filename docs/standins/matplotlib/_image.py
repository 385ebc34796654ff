"""What matplotlib's compiled module of images does: the nearest pixel, and for all other filters
the mean of the four around."""

import numpy as np

NEAREST, BILINEAR, BICUBIC, SPLINE16, SPLINE36, HANNING, HAMMING, HERMITE, KAISER = range(9)
QUADRIC, CATROM, GAUSSIAN, BESSEL, MITCHELL, SINC, LANCZOS, BLACKMAN = range(9, 17)


def resample(
    input, output, transform, interpolation=0, resample=False, alpha=1.0, norm=False, radius=1.0
):
    """Write the transformed image into `output`. Pixels outside of it stay as they were."""
    rows, columns = np.indices(output.shape[:2]) + 0.5
    places = np.stack([columns.ravel(), rows.ravel()], axis=1)
    x, y = transform.inverted().transform(places).T
    height, width = input.shape[:2]
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    x, y = x[inside], y[inside]
    if interpolation == NEAREST:
        values = input[y.astype(int), x.astype(int)]
    else:
        values = _mean_of_four(input, x - 0.5, y - 0.5)
    if output.ndim == 3 and alpha != 1:
        values = values * np.array([1, 1, 1, alpha])
    flat = output.reshape(-1, *output.shape[2:])
    flat[inside] = np.round(values) if output.dtype.kind == "u" else values


def _mean_of_four(image, x, y):
    height, width = image.shape[:2]
    column, row = np.floor(x).astype(int), np.floor(y).astype(int)
    total = 0.0
    for i, u in ((0, 1 - (x - column)), (1, x - column)):
        for j, v in ((0, 1 - (y - row)), (1, y - row)):
            pixels = image[np.clip(row + j, 0, height - 1), np.clip(column + i, 0, width - 1)]
            weight = (u * v).reshape(-1, *[1] * (image.ndim - 2))
            total = total + weight * pixels
    return total
