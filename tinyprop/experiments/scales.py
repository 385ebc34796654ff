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
        protocol = self.protocol
        if short:
            protocol = replace(protocol, epochs=self.rate_epochs)
        return replace(protocol, **changes)


def read(name: str, protocol: Any, larger: Any, rows: Any, **rest: Any) -> Scale:
    """From scales.toml."""
    base = Config(threads=1, **protocol)
    larger_configs = {label: Config(threads=1, **facts) for label, facts in larger.items()}
    row_configs = {}
    for row, facts in rows.items():
        if isinstance(facts, str):  # the name of a larger protocol
            row_configs[row] = larger_configs[facts]
        else:  # changes to the protocol
            row_configs[row] = replace(base, **facts)
    return Scale(name, protocol=base, larger=larger_configs, rows=row_configs, **rest)


SCALES = {name: read(name, **facts) for name, facts in table("scales.toml").items()}
PAPER_RUN = SCALES["laptop"].larger["the paper's scale"]
