"""Data sets, data normalisation, mini-batches."""

from .normalization import BatchNormalizer, GlobalNormalizer

__all__ = ["BatchNormalizer", "GlobalNormalizer"]
