"""Data sets, data normalisation, mini-batches."""

from .dataset import Dataset, fingerprint
from .minibatches import batches
from .normalization import BatchNormalizer, GlobalNormalizer
from .prefetch import prefetched
from .sets import NAMES, SPLITS, Loader, Splits, as_loader, datasets, found, load, splits

__all__ = [
    "NAMES",
    "SPLITS",
    "BatchNormalizer",
    "Dataset",
    "GlobalNormalizer",
    "Loader",
    "Splits",
    "as_loader",
    "batches",
    "datasets",
    "fingerprint",
    "found",
    "load",
    "prefetched",
    "splits",
]
