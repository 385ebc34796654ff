"""The shapes are the same everywhere, and as hard as they should be."""

import hashlib
import os

import numpy as np
import pytest

import tinyprop as tp
from tinyprop.data import shapes


def test_the_first_pictures_have_known_bytes():
    """All arithmetic is on integers: the digest holds on every machine and for every version of NumPy."""
    images, labels = shapes.draw(100)
    assert hashlib.md5(images.tobytes()).hexdigest() == "5ed25d48e9d07d05ce12428e4929d58f"
    assert hashlib.md5(labels.astype("<i8").tobytes()).hexdigest() == "53acf63e4a4b147ec96ab0ad563237b4"


def test_no_direction_is_near_a_tie():
    exact = np.cos(np.arange(shapes.TURN) * (2 * np.pi / shapes.TURN)) * 2**14
    assert abs(exact - np.floor(exact) - 0.5).min() > 0.001
    angles = np.arange(shapes.TURN) * (2 * np.pi / shapes.TURN)
    np.testing.assert_allclose(shapes.COSINE, np.cos(angles) * 2**14, atol=0.51)
    np.testing.assert_allclose(shapes.SINE, np.sin(angles) * 2**14, atol=0.51)


def test_seeds_and_splits_give_other_pictures():
    first, second = shapes.draw(50, 1)[0], shapes.draw(50, 2)[0]
    assert not (first == second).all(axis=(1, 2, 3)).any()
    train, valid, test = (tp.data.load("shapes", split=split) for split in tp.data.SPLITS)
    assert (len(train), len(valid), len(test)) == (9_000, 1_000, 2_000)
    assert tp.data.found("shapes")  # kept with the digest that is written down
    assert tp.data.found("shapes", split="test")
    pictures = {image.tobytes() for part in (train, valid, test) for image in part.images}
    assert len(pictures) == 12_000
    assert (np.bincount(np.concatenate([train.labels, valid.labels])) == 1_000).all()
    assert (np.bincount(test.labels) == 200).all()


def test_files_are_kept_used_and_drawn_anew_when_they_change(tmp_path, monkeypatch):
    monkeypatch.setitem(shapes.DRAWINGS, "test", shapes.Drawing("small.bin", 30, 2, "MD5"))
    images, labels = shapes.draw(30, 2)
    path = tmp_path / "shapes" / "small.bin"
    first = tp.data.load("shapes", tmp_path, "test")
    digest = hashlib.md5(path.read_bytes()).hexdigest()
    monkeypatch.setitem(shapes.DRAWINGS, "test", shapes.Drawing("small.bin", 30, 2, digest))
    drawn = []
    monkeypatch.setattr(shapes, "draw", lambda *args: drawn.append(args) or (images, labels))
    for content, times in [(path.read_bytes(), 0), (b"torn", 1), (path.read_bytes()[:-1] + b"\0", 2)]:
        path.write_bytes(content)
        again = tp.data.load("shapes", tmp_path, "test")
        for dataset in (first, again):
            np.testing.assert_array_equal(dataset.images, images)
            np.testing.assert_array_equal(dataset.labels, labels)
        assert len(drawn) == times
        assert os.listdir(path.parent) == ["small.bin"]


def test_a_folder_that_cannot_be_written_to_only_costs_time(tmp_path, monkeypatch):
    monkeypatch.setitem(shapes.DRAWINGS, "test", shapes.Drawing("small.bin", 30, 2, "MD5"))
    (tmp_path / "file").write_bytes(b"")
    assert len(tp.data.load("shapes", tmp_path / "file", "test")) == 30


@pytest.mark.parametrize("label", range(10), ids=shapes.CLASSES)
def test_every_shape_is_its_own_mirror_image_and_fills_its_circle(label):
    side = np.arange(-1200, 1201, 10, dtype=np.int32)
    inside = shapes.SHAPES[shapes.CLASSES[label]](side[None, :] + 0 * side[:, None], side[:, None] + 0 * side[None, :])
    assert (inside == inside[:, ::-1]).mean() > 0.999
    far = abs(side[None, :] + 1j * side[:, None])
    assert not inside[far > 1180].any()
    assert far[inside].max() > 850


def test_a_linear_classifier_is_not_enough():
    """Ridge regression, with the best of a few penalties, stays far below 60 %."""
    train, test = tp.data.load("shapes"), tp.data.load("shapes", split="test")
    layer = tp.data.GlobalNormalizer((3, 32, 32)).fit(train.images)
    x, xt = (layer(tp.tensor(d.images)).numpy().reshape(len(d), -1)[:, ::3] for d in (train, test))
    targets = np.eye(10, dtype=np.float32)[train.labels] - 0.1
    gram, right = x.T @ x, x.T @ targets
    best = 0.0
    for penalty in (1e3, 1e4, 1e5):
        weight = np.linalg.solve(gram + penalty * np.eye(len(gram), dtype=np.float32), right)
        best = max(best, ((xt @ weight).argmax(axis=1) == test.labels).mean())
    assert 0.2 < best < 0.5
