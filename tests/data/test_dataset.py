"""A data set checks itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinyprop as tp
from tests.helpers import assert_explained
from tinyprop.data import Dataset, fingerprint

IMAGES = np.zeros((6, 3, 8, 8), np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def refused(words, images=IMAGES, labels=LABELS, **others):
    assert_explained(tp.DataError, lambda: Dataset(images, labels, **others), *words)


def test_a_dataset_holds_bytes_and_float32_as_they_are():
    for dtype in ("uint8", "float32"):
        images = IMAGES.astype(dtype)
        dataset = Dataset(images, LABELS)
        assert np.shares_memory(dataset.images, images)
        assert dataset.images.dtype == dtype
        assert dataset.labels.dtype == np.int64
        assert dataset.classes == ("0", "1", "2")
        assert dataset.notes == ()
    assert repr(dataset) == "<data: 6 images 3x8x8 float32, 3 classes>"


def test_vectors_and_lists():
    dataset = Dataset([[1.0, 2.0], [3.0, 4.0]], [0, 1], classes=["no", "yes"], name="mine")
    assert dataset.images.dtype == np.float32
    assert dataset.has_vectors
    assert repr(dataset) == "<mine: 2 vectors of 2 float32, 2 classes>"
    assert repr(dataset.subset([1])) == "<mine: 1 vectors of 2 float32, 2 classes>"
    assert_explained(ValueError, lambda: dataset.shrunk(2), "shrunk(2)", "vectors")


def test_float64_becomes_float32_and_says_whether_it_was_rounded():
    exact = Dataset(np.array([[0.5], [3.0]]), [0, 1])
    assert exact.notes == ()
    rounded = Dataset(np.array([[0.1], [3.0]]), [0, 1])
    assert rounded.notes == ("rounded from float64 to float32",)
    assert "rounded from float64" in repr(rounded)
    again = rounded.first(1)
    assert again.notes == rounded.notes


def test_float64_that_float32_cannot_tell_apart_is_refused():
    seconds = np.array([[1.7e9], [1.7e9 + 1], [1.7e9 + 2]])
    refused(["1700000000.0", "7 digits", "mean"], seconds, [0, 1, 2])
    Dataset(seconds - seconds.mean(axis=0), [0, 1, 2])
    refused(["not finite", "3.4e38", "leave out"], np.array([[1e300], [0.0]]), [0, 1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_not_finite_is_refused_with_its_place(bad, dtype):
    images = IMAGES.astype(dtype)
    images[4, 1, 2, 3] = bad
    refused([f"1 values that are not finite: {bad} at (4, 1, 2, 3)", "finite"], images)


@pytest.mark.parametrize(
    ("dtype", "hint"),
    [("int64", "uint8"), ("bool", "uint8"), ("float16", "float32"), ("complex64", "float32")],
)
def test_other_dtypes_are_refused(dtype, hint):
    refused(
        [f"dtype {dtype}", "bytes (uint8) or float32", f'astype("{hint}")'], IMAGES.astype(dtype)
    )


def test_integers_that_are_no_bytes_are_not_sent_to_uint8():
    images = IMAGES.astype(int)
    images[0] = -1
    refused(["int64", 'astype("float32")', "-1 to 0"], images)


@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        ((6, 8, 8), "images[:, None]"),
        ((6,), "images[:, None]"),
        ((6, 2, 3, 8, 8), "reshape(len(images), -1)"),
        ((6, 32, 32, 3), "transpose(0, 3, 1, 2)"),
        ((6, 48, 64, 3), "transpose(0, 3, 1, 2)"),
        ((6, 28, 28, 1), "transpose(0, 3, 1, 2)"),
        ((0, 3, 8, 8), "at least one sample"),
        ((6, 0), "no axis is empty"),
    ],
)
def test_other_shapes_are_refused(shape, hint):
    refused([f"shape {shape}", hint], np.zeros(shape, np.uint8))


@pytest.mark.parametrize("shape", [(6, 16, 4, 4), (6, 6, 100, 1), (6, 3, 5, 3), (6, 1, 28, 28)])
def test_small_maps_and_series_are_not_mistaken_for_channels_last(shape):
    assert Dataset(np.zeros(shape, np.uint8), LABELS).images.shape == shape


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (LABELS[:5], ["6 images and 5 labels"]),
        (LABELS[:, None], ["shape (6, 1)", "reshape(-1)"]),
        (np.eye(6)[:, :3], ["shape (6, 3)", "argmax"]),
        (LABELS * 1.0, ["float64", "astype(int)"]),
        (LABELS == 0, ["bool", "astype(int)"]),
        (LABELS.astype(str), ["<U21", "return_inverse"]),
        (LABELS - 1, ["a label of -1", "labels.min()"]),
        (LABELS + 1, ["3 different labels, from 1 to 3", "count from 0"]),
        (LABELS * 1000, ["3 different labels, from 0 to 2000", "return_inverse"]),
    ],
)
def test_wrong_labels_are_refused(labels, words):
    refused(words, labels=labels)


def test_classes_are_names_of_all_labels():
    assert Dataset(IMAGES, LABELS * 0, classes=("a", "b")).classes == ("a", "b")
    refused(["the label 2 with 2 classes", "0 to 1"], classes=("a", "b"))
    refused(["two classes 'a'", "of its own"], classes=("a", "b", "a"))
    refused(["'a b c'", "tuple of names", "('a', 'b', 'c')"], classes="a b c")


def test_tensors_and_ragged_lists_are_refused():
    refused(["tensor", "NumPy array", "images.numpy()"], tp.zeros(6, 3))
    refused(["cannot make an array", "same shape"], [[1.0, 2.0], [3.0]], [0, 1])


@given(st.sampled_from(["images", "labels"]), st.integers(0, 5))
def test_a_fingerprint_changes_with_every_value(array, place):
    images, labels = IMAGES.copy(), LABELS.copy()
    before = fingerprint(Dataset(images, labels, classes=("a", "b", "c", "d")))
    (images if array == "images" else labels)[place] += 1
    changed = Dataset(images, labels, classes=("a", "b", "c", "d"))
    assert fingerprint(changed) != before
    assert fingerprint(changed) == fingerprint(changed.subset(range(6)))
