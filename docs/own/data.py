"""A data set of your own: points on two spirals, as vectors of two numbers."""

import numpy as np

import tinyprop as tp

SEEDS = {"train": 0, "test": 1}


def spirals(split):
    """Images or vectors, and their labels. None for a split that there is not: it is drawn."""
    if split not in SEEDS:
        return None
    rng = np.random.default_rng(SEEDS[split])
    labels = np.arange(400) % 2
    turn = 3.0 * np.sqrt(rng.random(400))
    angle = 2.0 * turn + np.pi * labels
    points = turn[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    points += rng.normal(0.0, 0.1, points.shape)
    return points.astype("float32"), labels


tp.data.datasets.register(tp.data.Loader("spirals", spirals))

if __name__ == "__main__":
    for split in tp.data.SPLITS:
        print(tp.data.load("spirals", split=split))
    whole = tp.data.Dataset(*spirals("train"), classes=("one", "other"), name="one spiral")
    print(tp.data.splits(whole, seed=3)["test"])
