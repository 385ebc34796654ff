"""Data sets in a notebook."""

import base64
import io
import re

import numpy as np
import pytest

from tinyprop.data import Dataset, load
from tinyprop.report.html import png

Image = pytest.importorskip("PIL.Image")


def decoded(content):
    return np.asarray(Image.open(io.BytesIO(content)))


def pictures(page):
    return [decoded(base64.b64decode(data)) for data in re.findall(r"base64,([^\"]+)", page)]


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (7, 4, 3)])
def test_a_png_file_has_its_pixels(rng, shape):
    pixels = rng.integers(0, 256, shape, dtype=np.uint8)
    np.testing.assert_array_equal(decoded(png(pixels)), pixels)


def test_an_image_of_each_class_with_its_name():
    shapes = load("shapes", split="test")
    page = shapes._repr_html_()
    shown = pictures(page)
    assert len(shown) == 10
    for picture, name in zip(shown, shapes.classes, strict=True):
        label = shapes.classes.index(name)
        first = shapes.images[np.flatnonzero(shapes.labels == label)[0]]
        np.testing.assert_array_equal(picture, first.transpose(1, 2, 0))
        assert f"<div>{name}</div>" in page
    assert len(page) < 50_000
    assert "http" not in page


def test_floats_are_scaled_and_other_numbers_of_channels_are_gray(rng):
    images = rng.normal(size=(4, 2, 5, 6)).astype("float32")
    shown = pictures(Dataset(images, [0, 1, 0, 1])._repr_html_())
    together = images[:2]
    low, high = together.min(), together.max()
    expected = (together[:, 0] - low) * (255 / (high - low))
    assert abs(np.array(shown) - expected).max() <= 0.51


def test_vectors_are_numbers_and_names_are_escaped():
    dataset = Dataset(np.arange(20.0).reshape(2, 10), [0, 1], ("<b>", "a&b"), name="<script>")
    page = dataset._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "&lt;b&gt;" in page
    assert "a&amp;b" in page
    assert "and 4 more values" in page


def test_one_color_and_many_classes():
    images = np.zeros((30, 1, 2, 2), np.float32)
    shown = pictures(Dataset(images, np.arange(30))._repr_html_())
    assert len(shown) == 10
    assert not np.any(shown)
