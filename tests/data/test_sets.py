import numpy as np
import pytest

import tinyprop as tp
from tinyprop.data import sources
from tinyprop.data.sets import held_out

from . import samples


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder of data; no other one has any, and nothing is downloaded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    monkeypatch.setattr(
        sources, "download", lambda remote, folder: pytest.fail(f"download of {remote}")
    )
    return tmp_path / "data"


def loaded(name, root, images, labels):
    """Train, valid and test, which together must be these images in this order."""
    assert tp.data.found(name, root).startswith(str(root))
    parts = [tp.data.load(name, root, split) for split in tp.data.SPLITS]
    for part in parts:
        assert (part.images.dtype, part.labels.dtype) == (np.uint8, np.int64)
        assert part.images.flags.c_contiguous
    np.testing.assert_array_equal(np.concatenate([part.images for part in parts]), images)
    np.testing.assert_array_equal(np.concatenate([part.labels for part in parts]), labels)
    return parts


def test_cifar10_from_its_folder(root, rng):
    images = samples.images(rng, 60, 3, 32, 32)
    labels = rng.integers(0, 10, 60)
    parts = [samples.records(images[i : i + 10], labels[i : i + 10]) for i in range(0, 60, 10)]
    samples.write(root, dict(zip(samples.CIFAR10, parts, strict=True)))
    train, valid, test = loaded("cifar10", root, images, labels)
    assert (len(train), len(valid), len(test)) == (45, 5, 10)
    assert train.classes[:3] == ("airplane", "automobile", "bird")
    assert len(tp.data.load("cifar10", root / "cifar-10-batches-bin", "valid")) == 5
    for missing, here in [(2, "test"), (5, "train")]:
        (root / samples.CIFAR10[missing]).unlink()
        assert len(tp.data.load("cifar10", root, here)) in (10, 45)
        assert tp.data.found("cifar10", root, here) == str(root / "cifar-10-batches-bin")
        assert tp.data.found("cifar10", root) is None
        samples.write(root, {samples.CIFAR10[missing]: parts[missing]})


@pytest.mark.parametrize("folder", ["", "cifar100/", None])
def test_cifar100_takes_the_fine_labels(root, rng, folder):
    images = samples.images(rng, 30, 3, 32, 32)
    fine = rng.integers(0, 100, 30)
    coarse = rng.integers(0, 20, 30)
    content = {
        "cifar-100-binary/train.bin": samples.records(images[:20], coarse[:20], fine[:20]),
        "cifar-100-binary/test.bin": samples.records(images[20:], coarse[20:], fine[20:]),
    }
    if folder is not None:
        content = {f"{folder}cifar-100-binary.tar.gz": samples.packed(samples.tar(content.items()))}
    samples.write(root, content)
    train, valid, test = loaded("cifar100", root, images, fine)
    assert (len(train), len(valid), len(test)) == (18, 2, 10)
    assert (len(train.classes), train.classes[0], train.classes[-1]) == (100, "apple", "worm")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("style", ["raw", "packed", "dotted", "torchvision"])
def test_mnist_in_all_its_spellings(root, rng, name, style):
    images = samples.images(rng, 30, 28, 28)
    labels = rng.integers(0, 10, 30).astype(np.uint8)
    folder = name
    if style == "torchvision":
        folder = {"mnist": "MNIST/raw", "fashion-mnist": "FashionMNIST/raw"}[name]
    for part, rows in [("train", slice(20)), ("t10k", slice(20, 30))]:
        for kind, array in [("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)]:
            file = f"{part}-{kind}"
            content = samples.idx(array[rows])
            if style == "packed":
                file = f"{file}.gz"
                content = samples.packed(content)
            elif style == "dotted":
                file = file.replace("-idx", ".idx")
            samples.write(root / folder, {file: content})
    train, valid, test = loaded(name, root, images[:, None], labels)
    assert (train.images.shape, len(valid), len(test)) == ((18, 1, 28, 28), 2, 10)
    assert tp.data.found("mnist" if name == "fashion-mnist" else "fashion-mnist", root) is None
    if style != "torchvision":
        assert len(tp.data.load(name, root / name, "test")) == 10


@pytest.mark.parametrize(
    ("labels", "message"), [([0] * 4, "4 labels for 3 images"), ([0, 1, 10], "label 10.*0 to 9")]
)
def test_mnist_with_wrong_labels_is_refused(root, rng, labels, message):
    files = {
        "t10k-images-idx3-ubyte": samples.idx(samples.images(rng, 3, 28, 28)),
        "t10k-labels-idx1-ubyte": samples.idx(np.array(labels, np.uint8)),
    }
    samples.write(root / "mnist", files)
    with pytest.raises(tp.DataError, match=rf"(?s)t10k-labels.*{message}"):
        tp.data.load("mnist", root, "test")


def test_svhn_holds_out_some_of_each_class(root, rng):
    files = {}
    for part, count in {"train": 200, "extra": 300, "test": 20}.items():
        images = samples.images(rng, count, 3, 32, 32)
        labels = rng.permutation(np.arange(count) % 10)
        files[part] = images, labels
        content = samples.svhn(images, np.where(labels == 0, 10, labels))
        samples.write(root / "svhn", {f"{part}_32x32.mat": content})
    train, valid, test = (tp.data.load("svhn", root, split) for split in tp.data.SPLITS)
    assert (np.bincount(valid.labels) == 2 + 3).all()
    assert (np.bincount(train.labels) == 18 + 27).all()
    for loaded, published in [((train, valid), ("train", "extra")), ((test,), ("test",))]:
        got, expected = {}, {}  # the label of each image
        for part in loaded:
            for image, label in zip(part.images, part.labels, strict=True):
                got[image.tobytes()] = label
        for name in published:
            for image, label in zip(*files[name], strict=True):
                expected[image.tobytes()] = label
        assert got == expected


def test_validation_images_are_the_last_ones_as_many_as_the_paper_says(rng):
    for published, count in [(50_000, 5_000), (60_000, 5_000), (20_000, 2_000), (9, 0)]:
        marks = held_out(np.zeros(published, int), None)
        assert marks.sum() == marks[published - count :].sum() == count
    labels = rng.integers(0, 10, 73_257)
    assert tp.data.catalog.SOURCES["svhn"].per_class == (400, 200)
    marks = held_out(labels, 400)
    assert (np.bincount(labels[marks]) == 400).all()
    assert all(marks[labels == label][-400:].all() for label in range(10))


def test_unknown_names_and_splits_are_refused_with_the_allowed_ones():
    for call in (tp.data.load, tp.data.found):
        with pytest.raises(
            ValueError, match=r"(?s)'cifar'.*shapes, cifar10, cifar100, svhn, mnist, fashion-mnist"
        ):
            call("cifar")
        with pytest.raises(ValueError, match=r"(?s)'dev'.*train, valid, test"):
            call("shapes", split="dev")


def test_a_dataset_gives_its_first_images_and_subsets():
    dataset = tp.data.load("shapes", split="test")
    few = dataset.first(10)
    assert repr(few) == "<shapes test: 10 images 3x32x32 uint8, 10 classes>"
    assert np.shares_memory(few.images, dataset.images)
    np.testing.assert_array_equal(few.images, dataset.images[:10])
    assert len(dataset.first(10**6)) == 2_000
    order = np.random.default_rng(0).permutation(len(dataset))
    one = dataset.subset(order[:500])
    other = dataset.subset(order[500:].tolist())
    assert (len(one), len(other), one.classes, one.split) == (500, 1_500, dataset.classes, "test")
    assert not np.shares_memory(one.images, dataset.images)
    back = np.argsort(order)
    images = np.concatenate([one.images, other.images])
    labels = np.concatenate([one.labels, other.labels])
    np.testing.assert_array_equal(images[back], dataset.images)
    np.testing.assert_array_equal(labels[back], dataset.labels)
    with pytest.raises(ValueError, match=r"(?s)first\(0\).*at least 1"):
        dataset.first(0)
    for wrong in ([-1], [2_000], [0.5], [[0, 1]], 3, np.ones(2_000, bool)):
        with pytest.raises(IndexError, match=r"(?s)got: .*subset.*0 to 1,999.*try: .*permutation"):
            dataset.subset(wrong)
    with pytest.raises(AttributeError):
        dataset.name = "other"
