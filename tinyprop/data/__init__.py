"""Data sets, data normalisation, mini-batches."""

from .minibatches import batches
from .normalization import BatchNormalizer, GlobalNormalizer
from .prefetch import prefetched
from .sets import NAMES, SPLITS, Dataset, found, load

__all__ = [
    "NAMES",
    "SPLITS",
    "BatchNormalizer",
    "Dataset",
    "GlobalNormalizer",
    "batches",
    "found",
    "load",
    "prefetched",
]
