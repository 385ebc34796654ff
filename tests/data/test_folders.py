"""Folders of class folders of images."""

import sys
from pathlib import Path

import numpy as np
import pytest

import tinyprop as tp
from tests.helpers import assert_explained
from tinyprop.data import load

Image = pytest.importorskip("PIL.Image")


def drawn(rng, height, width, *channels):
    return rng.integers(0, 256, (height, width, *channels), dtype=np.uint8)


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return pixels


@pytest.fixture
def zoo(tmp_path, rng):
    """Three classes of 20 images of one size, and what is in them by class."""
    folder = tmp_path / "zoo"
    pixels = {}
    for name in ("dog", "bee", "cat"):
        pixels[name] = [save(folder / name / f"{i:02}.png", drawn(rng, 6, 5, 3)) for i in range(20)]
    return folder, pixels


def test_the_classes_are_the_folders_in_alphabetical_order(zoo):
    folder, pixels = zoo
    parts = [load(folder, split=split) for split in tp.data.SPLITS]
    assert [len(part) for part in parts] == [45, 3, 12]
    assert parts[2].notes == ("12 of 60 drawn with seed 0",)
    for part in parts:
        assert part.classes == ("bee", "cat", "dog")
        assert part.images.shape[1:] == (3, 6, 5)
        for image, label in zip(part.images, part.labels, strict=True):
            its_class = pixels[part.classes[label]]
            same = [np.array_equal(image, one.transpose(2, 0, 1)) for one in its_class]
            assert same.count(True) == 1


def test_folders_of_splits(tmp_path, rng):
    for split, count in {"train": 10, "test": 3}.items():
        for name in ("a", "b"):
            for i in range(count):
                save(tmp_path / split / name / f"{i}.png", drawn(rng, 4, 4))
    parts = [load(tmp_path, split=split) for split in tp.data.SPLITS]
    assert [len(part) for part in parts] == [18, 2, 6]
    assert parts[0].images.shape == (18, 1, 4, 4)
    save(tmp_path / "test" / "c" / "1.png", drawn(rng, 4, 4))
    assert_explained(tp.DataError, lambda: load(tmp_path), "a class 'c'", "those of train: a, b")


def test_train_is_a_class_among_other_names(tmp_path, rng):
    for name in ("train", "ship"):
        for i in range(5):
            save(tmp_path / name / f"{i}.png", drawn(rng, 4, 4))
    assert load(tmp_path).classes == ("ship", "train")


def test_images_of_different_sizes_are_refused_or_resized(tmp_path, rng):
    for i in range(30):
        name = "abc"[i % 3]
        save(tmp_path / name / f"{i}.png", np.full((8 + i, 20 - i // 2, 3), 7 * i, np.uint8))
    words = [
        "30 sizes",
        "8x20 (a",
        "37x6 (c",
        "one size",
        "--image-size 32,",
        "image_size=(32, 32)",
    ]
    assert_explained(tp.DataError, lambda: load(tmp_path), *words)
    resized = load(tmp_path, image_size=(12, 10))
    assert resized.images.shape[1:] == (3, 12, 10)
    assert load(tmp_path, image_size=9).images.shape[1:] == (3, 9, 9)
    assert resized.notes[0] == "resized to 12x10 from 30 sizes between 8x20 and 37x6"
    for image in resized.images:  # of one color each
        assert (image == image[0, 0, 0]).all()
    for wrong in [(12,), (12, 0), (12, 10.5), "12x10", 0]:
        with pytest.raises(tp.DataError, match=r"(?s)image_size.*a height and a width"):
            load(tmp_path, image_size=wrong)


def test_resizing_keeps_height_and_width_apart(tmp_path):
    bright_top = np.zeros((40, 20), np.uint8)
    bright_top[:20] = 255
    for i in range(5):
        save(tmp_path / "a" / f"{i}.png", bright_top)
        save(tmp_path / "b" / f"{i}.png", bright_top.T[:20, :40])
    images = load(tmp_path, image_size=(4, 8)).images
    np.testing.assert_array_equal(images[0, 0, 0], [255] * 8)
    np.testing.assert_array_equal(images[0, 0, -1], [0] * 8)
    np.testing.assert_array_equal(images[-1, 0, :, 0], [255] * 4)


def test_gray_and_color_together_become_color(tmp_path, rng):
    for i in range(5):
        gray = save(tmp_path / "a" / f"{i}.png", drawn(rng, 4, 4))
        save(tmp_path / "b" / f"{i}.png", drawn(rng, 4, 4, 3))
    dataset = load(tmp_path)
    assert dataset.images.shape[1] == 3
    assert (dataset.images[0] == dataset.images[0, :1]).all()
    assert gray.shape == (4, 4)


def test_a_photograph_stands_upright(tmp_path, rng):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned
    lying = save(tmp_path / "train" / "a" / "0.png", drawn(rng, 4, 6), exif=exif)
    upright = save(tmp_path / "train" / "b" / "0.png", drawn(rng, 6, 4))
    save(tmp_path / "test" / "a" / "0.png", drawn(rng, 6, 4))
    images = load(tmp_path).images[:, 0]
    np.testing.assert_array_equal(images, [np.rot90(lying, -1), upright])


def with_alpha(rng, alpha):
    pixels = drawn(rng, 4, 4, 4)
    pixels[..., 3] = alpha
    return pixels


def test_transparency_is_refused_unless_there_is_none(tmp_path, rng):
    for i in range(5):
        save(tmp_path / "a" / f"{i}.png", with_alpha(rng, 255))
        save(tmp_path / "b" / f"{i}.png", drawn(rng, 4, 4, 3))
    assert load(tmp_path).images.shape[1] == 3
    save(tmp_path / "a" / "0.png", with_alpha(rng, 128))
    words = [str(Path("a", "0.png")), "transparent", "background"]
    assert_explained(tp.DataError, lambda: load(tmp_path), *words)


def test_files_that_are_no_images_are_noted_and_hidden_ones_are_not(zoo):
    folder, _ = zoo
    (folder / "cat" / ".DS_Store").write_text("hidden")
    (folder / ".git").mkdir()
    held_out = ("12 of 60 held out for test", "3 of 48 held out for valid")
    assert load(folder).notes == held_out
    (folder / "cat" / "notes.txt").write_text("not hidden")
    expected = f"passed over 1 that are no images, such as {Path('cat', 'notes.txt')}"
    assert load(folder).notes == (expected, *held_out)


def test_what_cannot_be_read_is_refused_by_name(zoo, tmp_path, rng):
    folder, _ = zoo

    def refused(*words):
        assert_explained(tp.DataError, lambda: load(folder), *words)

    bad = folder / "cat" / "bad.png"
    whole = (folder / "cat" / "00.png").read_bytes()
    for content in (b"", b"no image", whole[:-40]):
        bad.write_bytes(content)
        refused("bad.png", "cannot be read", "delete it")
    save(bad, rng.integers(0, 2**16, (6, 5), dtype=np.uint16))
    refused("bad.png", "I;16", "8 bits")
    bad.unlink()
    (folder / "loose.png").write_bytes(whole)
    refused("a file loose.png", "a folder for each class")
    (folder / "loose.png").unlink()
    (folder / "empty").mkdir()
    refused("empty", "has images", "delete it")
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    assert_explained(
        tp.DataError, lambda: load(nothing), "nothing, which is empty", "cat/ and dog/"
    )


def test_without_pillow_we_say_what_to_install(zoo, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    words = ["no Pillow", "optional", "pip install 'tinyprop[images]'"]
    assert_explained(tp.DataError, lambda: load(zoo[0]), *words)
