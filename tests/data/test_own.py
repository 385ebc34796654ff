"""Data of a user's own: .npz files, functions, and what is drawn of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinyprop as tp
from tests.helpers import assert_explained
from tinyprop.data import Dataset, load, splits


def numbered(count, classes=3, start=0):
    """Vectors of their own numbers, with labels in turn."""
    numbers = np.arange(start, start + count)
    return numbers[:, None].astype(np.float32), numbers % classes


def saved(path, **arrays):
    np.savez(path, **arrays)
    return path


@given(st.lists(st.integers(1, 40), min_size=2, max_size=5), st.integers(0, 1000))
def test_drawn_splits_have_every_sample_once_and_their_part_of_each_class(counts, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    images = np.arange(len(labels))[:, None].astype(np.float32)
    parts = splits(Dataset(images, labels), seed=seed)
    expected = {"test": [count // 5 for count in counts]}
    left = [count - count // 5 for count in counts]
    expected["valid"] = [count // 10 for count in left]
    expected["train"] = [count - count // 10 for count in left]
    seen = []
    for split, per_class in expected.items():
        if not any(per_class):
            assert_explained(
                tp.DataError, lambda s=split: parts[s], f"the split {split}", "too few"
            )
            continue
        part = parts[split]
        assert part.split == split
        assert np.bincount(part.labels, minlength=len(counts)).tolist() == per_class
        np.testing.assert_array_equal(labels[part.images[:, 0].astype(int)], part.labels)
        seen += part.images[:, 0].tolist()
    assert sorted(seen) == list(range(len(labels)))


def test_the_seed_decides_what_is_drawn_and_the_notes_say_so():
    dataset = Dataset(*numbered(100), name="mine")
    one, same, other = (splits(dataset, seed=seed)["test"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.images, same.images)
    assert not np.array_equal(one.images, other.images)
    assert one.notes == ("18 of 100 drawn with seed 1",)
    assert repr(splits(dataset, seed=1)["valid"]).endswith("; 6 of 82 drawn with seed 1>")


def test_an_npz_file_with_and_without_a_test_split(tmp_path):
    images, labels = numbered(60)
    path = saved(tmp_path / "mine.npz", images=images, labels=labels)
    parts = splits(path)
    assert [len(parts[split]) for split in ("train", "valid", "test")] == [45, 3, 12]
    assert repr(parts["train"]) == (
        "<mine train: 45 vectors of 1 float32, 3 classes; "
        "12 of 60 held out for test; 3 of 48 held out for valid>"
    )
    assert parts["valid"].notes == ("3 of 48 drawn with seed 0",)
    assert tp.data.found(path) == str(path)
    few, few_labels = numbered(5, start=60)
    path = saved(
        tmp_path / "both.npz",
        images=images,
        labels=labels,
        test_images=few[:1],
        test_labels=few_labels[:1],
        valid_images=few[1:],
        valid_labels=few_labels[1:],
    )
    assert len(load(str(path))) == 60
    test = load(path, split="test")
    assert (len(test), test.classes, test.notes) == (1, ("0", "1", "2"), ())
    assert len(load(path, split="valid")) == 4


def test_the_classes_of_an_npz_file(tmp_path):
    images, labels = numbered(60)
    names = np.array(["a", "b", "c"])
    path = saved(tmp_path / "mine.npz", images=images, labels=labels, classes=names)
    assert load(path, split="test").classes == ("a", "b", "c")


def broken(path):
    content = bytearray(path.read_bytes())
    content[60:120] = bytes(60)
    path.write_bytes(content)


def test_npz_files_that_are_not_as_they_should_be_are_refused(tmp_path):
    images, labels = numbered(60)
    cases = [
        ({"x_train": images, "y_train": labels}, ["'x_train'", "images, labels", "savez"]),
        ({"images": images}, ["only images for train", "images and labels"]),
        ({}, ["other arrays", "images and labels"]),
        ({"images": images, "labels": labels, "ids": labels}, ["an array 'ids'", "leave it out"]),
        ({"images": images, "labels": labels, "test_images": images[:2]}, ["only test_images"]),
        ({"images": images, "labels": labels[1:]}, ["bad.npz: 60 images and 59 labels"]),
        ({"images": np.array([{}] * 60), "labels": labels}, ["bad.npz", "allow_pickle"]),
    ]
    for arrays, words in cases:
        path = saved(tmp_path / "bad.npz", **arrays)
        assert_explained(tp.DataError, lambda path=path: load(path), *words)
    path = saved(tmp_path / "bad.npz", images=images, labels=labels)
    broken(path)
    assert_explained(tp.DataError, lambda: load(path), "bad.npz", "cannot be read")
    path.write_bytes(b"no zip file")
    assert_explained(tp.DataError, lambda: load(path), "bad.npz", "cannot be read")
    np.save(tmp_path / "one.npy", images)
    (tmp_path / "one.npy").rename(path)
    assert_explained(tp.DataError, lambda: load(path), "a single array")


def test_splits_of_another_kind_are_refused(tmp_path):
    images, labels = numbered(60)
    for other, words in [
        ({"test_images": images.repeat(2, axis=1), "test_labels": labels}, ["shape (2,)", "(1,)"]),
        (
            {"test_images": images.astype("uint8"), "test_labels": labels},
            ["dtype uint8", "float32"],
        ),
        ({"test_images": images, "test_labels": labels + 1}, ["the label 3 with 3 classes"]),
        ({"test_images": images, "test_labels": labels}, ["same 60 samples for train and test"]),
    ]:
        path = saved(tmp_path / "bad.npz", images=images, labels=labels, **other)
        assert_explained(
            tp.DataError, lambda path=path: load(path, split="test"), "bad.npz", *words
        )


OWN_FILE = """
import numpy as np
import tinyprop as tp

def clouds(split):
    count, seed = {"train": (30, 0), "valid": (10, 1), "test": (20, 2)}[split]
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    vectors = rng.normal(size=(count, 4)) + labels[:, None]
    return vectors.astype("float32"), labels

def no_test(split):
    return clouds(split) if split == "train" else None

def named(split):
    images, labels = clouds(split)
    return tp.data.Dataset(images, labels, classes=("left", "right"), name="two clouds")

def swapped(split):
    images, labels = clouds(split)
    classes = ("left", "right") if split == "train" else ("right", "left")
    return tp.data.Dataset(images, labels, classes=classes)

def careless(split):
    return clouds("train")

def failing(split):
    raise KeyError("no luck")

def three(split):
    return 1, 2, 3

def nothing(split):
    pass

def where(split, root):
    return np.load(root / f"{split}.npy"), [0, 1] * 5 if split == "train" else [0, 1]

def sized(split, image_size):
    rng = np.random.default_rng(ord(split[1]))
    return rng.integers(0, 256, (30, 1, *(image_size or (4, 4))), dtype="uint8"), [0, 1] * 15

loader = tp.data.Loader("registered clouds", clouds, splits=tp.data.SPLITS)
tp.data.datasets.register(loader)
"""


@pytest.fixture
def own_file(tmp_path):
    path = tmp_path / "own_data.py"
    path.write_text(OWN_FILE)
    yield path
    if "registered clouds" in tp.data.datasets:
        tp.data.datasets.unregister("registered clouds")


def test_a_function_in_a_file_gives_each_split(own_file):
    parts = [load(f"{own_file}:clouds", split=split) for split in tp.data.SPLITS]
    assert [len(part) for part in parts] == [30, 10, 20]
    assert repr(parts[2]) == "<clouds test: 20 vectors of 4 float32, 2 classes>"
    drawn = load(f"{own_file}:no_test", split="test", seed=3)
    assert drawn.notes == ("6 of 30 drawn with seed 3",)
    named = load(f"{own_file}:named", split="test")
    assert (named.name, named.classes) == ("two clouds", ("left", "right"))
    assert load(f"{own_file}:sized", image_size=(5, 6)).images.shape == (30, 1, 5, 6)
    assert len(load("registered clouds", split="valid")) == 10


def test_a_function_is_given_the_data_directory(own_file, tmp_path):
    for split, count in {"train": 10, "valid": 2, "test": 2}.items():
        np.save(
            tmp_path / f"{split}.npy",
            np.random.default_rng(count).random((count, 3), "f4") + len(split),
        )
    assert len(load(f"{own_file}:where", tmp_path)) == 10


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("careless", ["same 30 samples for train and valid", "give no valid"]),
        ("failing", ["raises KeyError: 'no luck'", "returns samples"]),
        ("three", ["returns tuple", "images and labels"]),
        ("nothing", ["nothing('train')", "returns NoneType"]),
        ("swapped", ["classes right, left", "those of train: left, right"]),
    ],
)
def test_functions_that_give_something_else_are_refused(own_file, name, words):
    assert_explained(tp.DataError, lambda: load(f"{own_file}:{name}"), *words)


def test_what_is_no_source_of_data_is_refused(own_file, tmp_path):
    sized = f"{own_file}:clouds"
    assert_explained(
        ValueError, lambda: load(sized, image_size=(8, 8)), "image_size", "leave it out"
    )
    assert_explained(tp.DataError, lambda: load(own_file), "own_data.py", ".npz")
    missing = tmp_path / "missing.npz"
    assert_explained(
        tp.UnknownNameError, lambda: load(missing), "missing.npz", "an .npz file", "a path from"
    )
    assert_explained(tp.UnknownNameError, lambda: load("cifar11"), "cifar11", "'cifar10'")
    assert_explained(TypeError, lambda: load(3), "data of type int", "Dataset(")
    assert_explained(ValueError, lambda: load({"dev": 1}), "'dev'", "train, valid, test")


def test_a_dictionary_of_splits():
    train, test = numbered(30), numbered(10, start=30)
    parts = splits({"train": train, "test": Dataset(*test, classes=("0", "1", "2"))})
    assert [len(parts[split]) for split in tp.data.SPLITS] == [27, 3, 10]


def test_our_data_sets_are_in_the_table():
    assert tuple(tp.data.datasets)[:6] == tp.data.NAMES
    assert tp.data.as_loader("mnist") is tp.data.datasets["mnist"]
