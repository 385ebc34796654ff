"""The data of a run: the splits that it uses, as its settings say."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import data
from ..engine.errors import explain
from ..engine.random import new_generator
from .config import GIVEN, Config


@dataclass(frozen=True)
class Samples:
    """What a network is trained, validated and tested on."""

    train: data.Dataset
    valid: data.Dataset | None
    test: data.Dataset

    @property
    def sets(self) -> dict[str, data.Dataset]:
        """Those that there are, by name."""
        sets = {"train": self.train, "valid": self.valid, "test": self.test}
        return {name: some for name, some in sets.items() if some is not None}

    @property
    def notes(self) -> list[str]:
        """What a user should know about the data, such as which splits were drawn."""
        found = []
        for some in self.sets.values():
            found += [f"{some.name} {some.split}: {note}" for note in some.notes]
        return found

    @property
    def fingerprint(self) -> str:
        return data.fingerprint(*self.sets.values())

    def facts(self) -> dict[str, Any]:
        """What a network must know of them to be built again, and how many there are."""
        counts = {name: len(some) for name, some in self.sets.items()}
        shape = list(self.train.images.shape[1:])
        return {"shape": shape, "classes": list(self.train.classes), "counts": counts}


def load_samples(config: Config, given: Any = None, root: Path | None = None) -> Samples:
    """The splits of the data set that a config names, or of one that is given."""
    if given is None and config.data == GIVEN:
        got = "a run whose data were given as arrays"
        rule = "arrays are in no file: they are given again"
        raise ValueError(explain(got, rule, "Run(..., data=...), or save them in an .npz file"))
    source = config.data if given is None else given
    size = None if config.image_size is None else (config.image_size, config.image_size)
    splits = data.splits(source, root, config.seed, size)
    train = chosen(splits["train"], config)
    valid = splits["valid"] if config.validation else None
    test = splits["test"]
    if config.test_size is not None:
        test = test.first(config.test_size)
    if config.shrink > 1:
        train = train.shrunk(config.shrink)
        valid = None if valid is None else valid.shrunk(config.shrink)
        test = test.shrunk(config.shrink)
    check_for(config, train)
    return Samples(train, valid, test)


def chosen(train: data.Dataset, config: Config) -> data.Dataset:
    """As many random training images as the settings say: the same for every network of a seed."""
    if config.train_size is None:
        return train
    if config.train_size > len(train):
        got = f"train_size = {config.train_size}"
        rule = f"{train.name} has {len(train)} training images"
        raise ValueError(explain(got, rule, f"train_size = {len(train)}, or none"))
    order = new_generator([config.seed, len(train)]).permutation(len(train))
    return train.subset(order[: config.train_size])


def check_for(config: Config, train: data.Dataset) -> None:
    """Refuse settings that these data do not allow."""
    if config.flip and train.has_vectors:
        got = f"flip with {train.contents}"
        raise ValueError(explain(got, "only images can be mirrored", "leave it out"))
    if config.data_norm == "channel" and train.has_vectors:
        got = f"data_norm = 'channel' with {train.contents}"
        raise ValueError(explain(got, "only images have channels", "data_norm = 'global'"))
    if config.data_norm == "batch" and (len(train) - 1) % config.batch_size == 0:
        got = f"data_norm = 'batch' with {len(train)} images in batches of {config.batch_size}"
        rule = "the last batch would be one image, which has no standard deviation"
        raise ValueError(explain(got, rule, "another batch_size, or data_norm = 'global'"))
