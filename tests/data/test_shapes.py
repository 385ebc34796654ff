import hashlib

import numpy as np
import pytest

import tinyprop as tp
from tinyprop.data import shapes


@pytest.mark.slow
def test_all_images_have_known_bytes():
    """All arithmetic is on integers: the digests hold on every machine and for every version of
    NumPy."""
    train, valid, test = (tp.data.load("shapes", split=split) for split in tp.data.SPLITS)
    assert (len(train), len(valid), len(test)) == (9_000, 1_000, 2_000)
    labels = np.concatenate([train.labels, valid.labels])
    assert (np.bincount(labels) == 1_000).all()
    assert (np.bincount(test.labels) == 200).all()
    for parts, digest in [
        ((train, valid), "413b95849e8d5b61bcf9d883cdbfb714"),
        ((test,), "3c42e46791fed717d3ed835fc9d58f60"),
    ]:
        records = [np.insert(p.images.reshape(len(p), -1), 0, p.labels, axis=1) for p in parts]
        assert hashlib.md5(np.concatenate(records).tobytes()).hexdigest() == digest
    images = np.concatenate([train.images, valid.images, test.images])
    assert len({image.tobytes() for image in images}) == 12_000


def test_no_direction_is_near_a_tie():
    exact = np.cos(np.arange(shapes.TURN) * (2 * np.pi / shapes.TURN)) * 2**14
    assert abs(exact - np.floor(exact) - 0.5).min() > 0.001


def test_an_edit_of_loaded_images_stays_with_the_one_who_made_it():
    for split in ("train", "test"):
        first = tp.data.load("shapes", split=split)
        before = first.images[0].copy(), first.labels[0]
        first.images[0], first.labels[0] = 7, 9 - first.labels[0]
        again = tp.data.load("shapes", split=split)
        np.testing.assert_array_equal(again.images[0], before[0])
        assert again.labels[0] == before[1]


@pytest.mark.parametrize("name", shapes.CLASSES)
def test_every_shape_is_its_own_mirror_image_and_fills_its_circle(name):
    side = np.arange(-1200, 1201, 10, dtype=np.int32)
    inside = shapes.SHAPES[name](
        side[None, :] + 0 * side[:, None], side[:, None] + 0 * side[None, :]
    )
    assert (inside == inside[:, ::-1]).mean() > 0.999
    far = abs(side[None, :] + 1j * side[:, None])
    assert not inside[far > 1180].any()
    assert far[inside].max() > 850
