"""How large the experiments are: the scales of scales.toml."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from ..train import Config

IMAGES = 45_000  # for training, in CIFAR-10
Settings = Mapping[str, Config]  # by name


def text(name: str) -> str:
    """A file of this room."""
    return files(__package__).joinpath(name).read_text("utf-8")


def table(name: str) -> dict[str, Any]:
    return tomllib.loads(text(name))


@dataclass(frozen=True)
class Scale:
    """The sizes that all experiments share."""

    name: str
    description: str
    protocol: Config
    larger: Settings
    rows: Settings  # of the table in section 5.5
    most_seeds: int
    rate_epochs: int

    def config(self, short: bool = False, **changes: Any) -> Config:
        """The protocol with some changes; a short run is as long as those that try learning
        rates."""
        return replace(self.protocol, **({"epochs": self.rate_epochs} if short else {}) | changes)


def read(name: str, protocol: Any, larger: Any, rows: Any, **rest: Any) -> Scale:
    base, large = (
        Config(threads=1, **protocol),
        {label: Config(threads=1, **c) for label, c in larger.items()},
    )
    found = {
        row: large[what] if isinstance(what, str) else replace(base, **what)
        for row, what in rows.items()
    }
    return Scale(name, protocol=base, larger=large, rows=found, **rest)


SCALES = {name: read(name, **facts) for name, facts in table("scales.toml").items()}
PAPER_RUN = SCALES["laptop"].larger["the paper's scale"]
