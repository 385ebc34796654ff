import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import tinyprop as tp
from tests.helpers import assert_explained
from tinyprop.data import batches


def numbered(n, shape=(2, 3, 4)):
    """Images whose first pixel tells their number, and no two columns of which are alike."""
    numbers = np.arange(n).reshape(-1, *[1] * len(shape))  # (N,) -> (N, 1, 1, 1)
    columns = 1000 * np.arange(shape[-1])
    images = numbers + columns + np.zeros(shape, int)
    return images.astype(np.int64), np.arange(n)


@given(st.integers(0, 60), st.integers(1, 70), st.booleans(), st.booleans())
def test_every_sample_comes_once_with_its_label(n, size, shuffled, flip):
    random = np.random.default_rng(0) if shuffled else None
    parts = list(batches(numbered(n), size, random, flip and shuffled))
    whole, rest = divmod(n, size)
    assert [len(labels) for _, labels in parts] == [size] * whole + [rest] * (rest > 0)
    seen = [label for _, labels in parts for label in labels]
    assert sorted(seen) == list(range(n))
    for images, labels in parts:
        upright = np.where((images[..., :1] >= 1000), images[..., ::-1], images)
        np.testing.assert_array_equal(upright, numbered(n)[0][labels])
    if not shuffled:
        assert seen == list(range(n))


def test_a_seed_fixes_the_order_and_the_flips_which_are_half():
    random, same = np.random.default_rng(3), np.random.default_rng(3)
    plain = [labels for _, labels in batches(numbered(1000), 100, random)]
    flipped = list(batches(numbered(1000), 100, same, flip=True))
    np.testing.assert_array_equal(plain, [labels for _, labels in flipped])
    fraction = np.mean([(images[:, 0, 0, 0] >= 1000).mean() for images, _ in flipped])
    assert abs(fraction - 0.5) < 5 * 0.5 / 1000**0.5  # five standard errors; the seed is fixed
    next_epoch = [labels for _, labels in batches(numbered(1000), 100, random)]
    assert not np.array_equal(plain, next_epoch)


def test_the_state_of_the_generator_does_not_depend_on_how_many_batches_are_taken():
    states = []
    for taken in (0, 1, 10):
        random = np.random.default_rng(0)
        epoch = batches(numbered(100), 10, random, flip=True)
        for _ in range(taken):
            next(epoch)
        states.append(random.bit_generator.state)
    assert states[0] == states[1] == states[2]


def test_bytes_stay_bytes_and_the_set_is_not_copied_or_changed(backend, rng):
    images = rng.integers(0, 256, (50, 3, 4, 4), dtype=np.uint8)
    labels = rng.integers(0, 10, 50)
    data = tp.tensor(images, backend=backend).data, tp.tensor(labels, backend=backend).data
    for batch, its_labels in batches(data, 20, np.random.default_rng(0), flip=True):
        assert batch.dtype == np.uint8
        assert tp.Tensor(batch).backend == tp.Tensor(its_labels).backend == backend
        batch[...] = 0
    np.testing.assert_array_equal(tp.Tensor(data[0]).numpy(), images)
    if backend == "numpy":
        assert np.shares_memory(next(batches(data, 20))[0], data[0])


def test_wrong_arguments_are_refused_at_once():
    images, labels = numbered(10)
    words = ("images of shape", "labels of shape", "(N,)")
    for data in [
        (images, labels[:9]),
        (images, labels[:, None]),
        (images.tolist(), labels),
        (images, labels.tolist()),
    ]:
        assert_explained(tp.ShapeError, lambda data=data: batches(data, 5), *words)
    random = np.random.default_rng(0)
    for arguments, word in [
        (((images, labels), 0), "batch_size=0"),
        (((images, labels), 5, None, True), "flip=True"),
        (((labels, labels), 5, random, True), "a width"),
    ]:
        assert_explained(ValueError, lambda arguments=arguments: batches(*arguments), word)


def test_a_seed_is_no_generator():
    assert_explained(TypeError, lambda: batches(numbered(5), 2, 0), "default_rng")


def test_vectors_are_shuffled_and_not_flipped():
    vectors, labels = numbered(10, shape=(5,))
    random = np.random.default_rng(0)
    ((shuffled, its_labels),) = batches((vectors, labels), 10, random)
    np.testing.assert_array_equal(shuffled, vectors[its_labels])
    words = ("samples of shape (5,)", "no left and right", "flip=False")
    assert_explained(ValueError, lambda: batches((vectors, labels), 5, random, flip=True), *words)
