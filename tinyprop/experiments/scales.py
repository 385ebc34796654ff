"""How large the experiments are: the scales of scales.toml, and that of plateau.toml."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ..train import Config
from .registration import PLATEAU, SHORT, Registration, table

IMAGES = 45_000  # for training, in CIFAR-10
DEFAULTS: dict[str, Any] = {setting.name: setting.default for setting in fields(Config)}
Settings = Mapping[str, Config]  # by name


@dataclass(frozen=True)
class Scale:
    """The sizes that all experiments share."""

    name: str
    description: str
    protocol: Config
    registration: Registration
    larger: Settings
    rows: Settings  # of the table in section 5.5
    most_seeds: int
    rate_epochs: int

    def config(self, short: bool = False, unset: Sequence[str] = (), **changes: Any) -> Config:
        """The protocol with some changes; a short run is as long as those that try learning
        rates, and what is unset has the default of `tinyprop train`."""
        protocol = self.protocol
        if short:
            protocol = replace(protocol, epochs=self.rate_epochs)
        defaults = {name: DEFAULTS[name] for name in unset}
        return replace(protocol, **defaults, **changes)


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
    return Scale(
        name,
        protocol=base,
        registration=SHORT,
        larger=larger_configs,
        rows=row_configs,
        **rest,
    )


def read_plateau() -> Scale:
    """From plateau.toml, which has its seeds beside the settings."""
    facts = PLATEAU.facts["scale"]
    protocol = Config(threads=1, **facts["protocol"])
    return Scale(
        name="plateau",
        description=facts["description"],
        protocol=protocol,
        registration=PLATEAU,
        larger={},
        rows={},
        most_seeds=max(PLATEAU.facts["rule"]["looks"]),
        rate_epochs=protocol.epochs,
    )


SCALES = {name: read(name, **facts) for name, facts in table("scales.toml").items()}
SCALES["plateau"] = read_plateau()
PAPER_RUN = SCALES["short"].larger["the paper's scale"]
