"""Data sets: their files, classes and splits."""

import numpy as np
import pytest

import tinyprop as tp
from tinyprop.data.sources import Svhn

from . import samples


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder of data; no other one has any, and nothing is downloaded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    monkeypatch.setattr(tp.data.sources, "download", lambda remote, folder: pytest.fail(f"download of {remote}"))
    return tmp_path / "data"


def whole(name, root):
    """Train and valid together, and test."""
    train, valid, test = (tp.data.load(name, root, split) for split in tp.data.SPLITS)
    for part in (train, valid, test):
        assert part.images.dtype == np.uint8
        assert part.labels.dtype == np.int64
        assert part.images.flags.c_contiguous
        assert len(part) == len(part.images) == len(part.labels)
    return train, valid, test


def test_cifar10_from_its_folder(root, rng):
    pictures, labels = samples.images(rng, 60, 3, 32, 32), rng.integers(0, 10, 60)
    parts = [samples.records(pictures[i : i + 10], labels[i : i + 10]) for i in range(0, 60, 10)]
    samples.write(
        root / "cifar-10-batches-bin", dict(zip([*samples.CIFAR10_TRAIN, "test_batch.bin"], parts, strict=True))
    )
    train, valid, test = whole("cifar10", root)
    np.testing.assert_array_equal(train.images, pictures[:45])
    np.testing.assert_array_equal(valid.images, pictures[45:50])
    np.testing.assert_array_equal(test.images, pictures[50:])
    np.testing.assert_array_equal(np.concatenate([train.labels, valid.labels, test.labels]), labels)
    assert train.classes[:3] == ("airplane", "automobile", "bird")
    np.testing.assert_array_equal(tp.data.load("cifar10", root / "cifar-10-batches-bin", "valid").images, valid.images)
    (root / "cifar-10-batches-bin/data_batch_3.bin").unlink()
    assert len(tp.data.load("cifar10", root, "test")) == 10
    assert not tp.data.found("cifar10", root)


@pytest.mark.parametrize("packed", [True, False])
def test_cifar100_takes_the_fine_labels(root, rng, packed):
    pictures, fine, coarse = samples.images(rng, 30, 3, 32, 32), rng.integers(0, 100, 30), rng.integers(0, 20, 30)
    content = {
        "cifar-100-binary/train.bin": samples.records(pictures[:20], coarse[:20], fine[:20]),
        "cifar-100-binary/test.bin": samples.records(pictures[20:], coarse[20:], fine[20:]),
    }
    if packed:
        content = {"cifar100/cifar-100-binary.tar.gz": samples.packed(samples.tar(content.items()))}
    samples.write(root, content)
    train, valid, test = whole("cifar100", root)
    assert (len(train), len(valid), len(test)) == (18, 2, 10)
    np.testing.assert_array_equal(np.concatenate([train.labels, valid.labels, test.labels]), fine)
    np.testing.assert_array_equal(np.concatenate([train.images, valid.images, test.images]), pictures)
    assert (len(train.classes), train.classes[0], train.classes[-1]) == (100, "apple", "worm")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("style", ["{}", "{}.gz", "dotted", "torchvision"])
def test_mnist_in_all_its_spellings(root, rng, name, style):
    pictures, labels = samples.images(rng, 30, 28, 28), rng.integers(0, 10, 30).astype(np.uint8)
    folder = {"mnist": "MNIST/raw", "fashion-mnist": "FashionMNIST/raw"}[name] if style == "torchvision" else name
    for part, rows in [("train", slice(20)), ("t10k", slice(20, 30))]:
        for kind, array in [("images-idx3-ubyte", pictures), ("labels-idx1-ubyte", labels)]:
            file = f"{part}-{kind.replace('-idx', '.idx') if style == 'dotted' else kind}"
            content = samples.idx(array[rows])
            packed = style == "{}.gz"
            samples.write(root / folder, {file + ".gz" * packed: samples.packed(content) if packed else content})
    train, valid, test = whole(name, root)
    assert (train.images.shape, len(valid), len(test)) == ((18, 1, 28, 28), 2, 10)
    np.testing.assert_array_equal(np.concatenate([train.images, valid.images, test.images])[:, 0], pictures)
    np.testing.assert_array_equal(np.concatenate([train.labels, valid.labels, test.labels]), labels)
    assert not tp.data.found("mnist" if name == "fashion-mnist" else "fashion-mnist", root)
    if style != "torchvision":
        assert len(tp.data.load(name, root / name, "test")) == 10


def test_mnist_with_another_number_of_labels_is_refused(root, rng):
    images, labels = samples.idx(samples.images(rng, 3, 28, 28)), samples.idx(np.zeros(4, np.uint8))
    samples.write(root / "mnist", {"t10k-images-idx3-ubyte": images, "t10k-labels-idx1-ubyte": labels})
    with pytest.raises(tp.DataError, match=r"(?s)t10k-labels.*4 labels, for 3 images"):
        tp.data.load("mnist", root, "test")
    samples.write(root / "mnist", {"t10k-labels-idx1-ubyte": samples.idx(np.array([0, 1, 10], np.uint8))})
    with pytest.raises(tp.DataError, match=r"(?s)t10k-labels.*label 10.*0 to 9"):
        tp.data.load("mnist", root, "test")


def test_svhn_holds_out_some_of_each_class(root, rng):
    counts = {"train": 200, "extra": 300, "test": 20}
    files = {}
    for part, count in counts.items():
        files[part] = samples.images(rng, count, 3, 32, 32), rng.permutation(np.arange(count) % 10)
        content = samples.svhn(files[part][0], np.where(files[part][1] == 0, 10, files[part][1]))
        samples.write(root / "svhn", {f"{part}_32x32.mat": content})
    train, valid, test = whole("svhn", root)
    np.testing.assert_array_equal(test.images, files["test"][0])
    np.testing.assert_array_equal(test.labels, files["test"][1])
    assert (np.bincount(valid.labels) == 2 + 3).all()
    assert (np.bincount(train.labels) == 18 + 27).all()
    label_of = {i.tobytes(): n for part in ("train", "extra") for i, n in zip(*files[part], strict=True)}
    both = {i.tobytes(): n for part in (train, valid) for i, n in zip(part.images, part.labels, strict=True)}
    assert both == label_of


def test_svhn_holds_out_as_many_as_the_paper(rng):
    labels = rng.integers(0, 10, 73_257)
    source: Svhn = tp.data.sets.SOURCES["svhn"]
    for count in source.held_out:
        marks = source.validation(labels, count)
        assert (np.bincount(labels[marks]) == count).all()
        for label in range(10):  # the last ones
            assert marks[labels == label][-count:].all()
    assert source.held_out == (400, 200)


@pytest.mark.parametrize(("published", "train"), [(50_000, 45_000), (60_000, 55_000), (20_000, 18_000), (9, 9)])
def test_validation_images_are_the_last_5000_or_a_tenth(published, train):
    samples_ = np.arange(published), np.arange(published)
    parts = [tp.data.sources._part(samples_, split)[1] for split in tp.data.SPLITS]
    assert [len(p) for p in parts] == [train, published - train, published]
    np.testing.assert_array_equal(np.concatenate(parts[:2]), parts[2])


def test_unknown_names_and_splits_are_refused_with_the_allowed_ones():
    with pytest.raises(ValueError, match=r"(?s)'cifar'.*shapes, cifar10, cifar100, svhn, mnist, fashion-mnist"):
        tp.data.load("cifar")
    with pytest.raises(ValueError, match=r"(?s)'dev'.*train, valid, test"):
        tp.data.load("shapes", split="dev")


def test_a_dataset_says_what_it_is_and_gives_its_first_images():
    dataset = tp.data.load("shapes", split="test")
    assert repr(dataset) == "Dataset(shapes: 2,000 images (3, 32, 32), 10 classes)"
    few = dataset.first(10)
    assert len(few) == 10
    assert few.images.base is not None
    np.testing.assert_array_equal(few.images, dataset.images[:10])
    assert len(dataset.first(10**6)) == 2_000
    with pytest.raises(ValueError, match=r"(?s)first\(0\).*at least 1"):
        dataset.first(0)
    with pytest.raises(AttributeError):
        dataset.name = "other"
