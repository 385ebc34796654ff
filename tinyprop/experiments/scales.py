"""How large the experiments are: for CI, for a laptop, and as in the paper."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from ..train import Config


class Turn(IntEnum):
    """What is computed first."""

    FIRST_LOOK, ANCHOR, PAPER, LATER_LOOKS, EXPLORATORY, NOT_YET = range(6)


@dataclass(frozen=True)
class Setting:
    """A Config, and how many random seeds are planned for it. Its turn may come sooner, if a primary claim needs it."""

    config: Config
    seeds: int
    turn: Turn = Turn.EXPLORATORY


Settings = dict[str, Setting]  # by name


@dataclass(frozen=True)
class Scale:
    """The sizes that all experiments share."""

    name: str
    description: str
    protocol: Config  # NormProp in sections 5.1 to 5.4
    rows: Settings  # of the table in section 5.5
    larger: Settings  # closer to the paper, for a reader who wants to know whether the small scale tells the truth
    most_seeds: int
    rates: int  # how many of the learning rates that an experiment tries
    rate_epochs: int  # for how many epochs it tries them

    def setting(self, seeds: int, turn: Turn = Turn.EXPLORATORY, **changes: Any) -> Setting:
        """The protocol with changes, for so many seeds, or fewer at a smaller scale."""
        return Setting(replace(self.protocol, **changes), min(seeds, self.most_seeds), turn)

    def some(self, rates: Sequence[float]) -> Sequence[float]:
        """The middle ones of these rates, as many as are tried."""
        skip = max(0, len(rates) - self.rates)
        return rates[skip // 2 : len(rates) - (skip + 1) // 2]


def rows(base: Config, svhn: Config, seeds: tuple[int, ...]) -> Settings:
    """Those of the paper's table."""
    configs = {
        "CIFAR-10": base,
        "CIFAR-10 with flips": replace(base, flip=True),
        "CIFAR-100": replace(base, data="cifar100"),
        "CIFAR-100 with flips": replace(base, data="cifar100", flip=True),
        "SVHN": svhn,
    }
    return {name: Setting(config, n) for (name, config), n in zip(configs.items(), seeds, strict=True)}


TINY = Config(
    data="shapes", width=0.04, epochs=2, lr=0.05, schedule="linear", data_norm="batch", train_size=250, test_size=200,
    threads=1,
)  # fmt: skip
LAPTOP = replace(TINY, data="cifar10", width=0.25, epochs=5, validation=True, train_size=10_000, test_size=None)
ANCHOR = replace(LAPTOP, width=0.5, epochs=8, schedule="halve", halve_every=2, flip=True, train_size=None)
PAPER = Config(data="cifar10", width=1.0, epochs=50, lr=0.05, halve_every=10, data_norm="batch", threads=1)
PAPER_RUN = replace(PAPER, epochs=30)  # section 5.1
PAPER_TABLE = replace(PAPER, epochs=200, halve_every=25)
PAPER_SVHN = replace(PAPER, data="svhn", epochs=25, batch_size=100, lr=0.08, halve_every=5)

IMAGES = 45_000  # for training, in CIFAR-10
LARGER = {
    "half width, all images": Setting(ANCHOR, 4, Turn.ANCHOR),
    "the paper's scale": Setting(PAPER_RUN, 1, Turn.PAPER),
}

SCALES = {
    "tiny": Scale(
        "tiny",
        "a check that everything runs, on drawn shapes: its numbers mean nothing",
        TINY,
        {"shapes": Setting(TINY, 2), "shapes with flips": Setting(replace(TINY, flip=True), 2)},
        {"more epochs": Setting(replace(TINY, epochs=3), 2)},
        most_seeds=2, rates=2, rate_epochs=1,
    ),
    "laptop": Scale(
        "laptop",
        "a quarter of the paper's width, 10,000 random training images, 5 epochs with the rate annealed to 0, all test "
        "images",
        LAPTOP,
        rows(LAPTOP, replace(LAPTOP, data="svhn"), (24, 12, 16, 12, 12))
        | {"CIFAR-10 with flips, half width": Setting(ANCHOR, 4, Turn.ANCHOR)},
        LARGER,
        most_seeds=24, rates=6, rate_epochs=1,
    ),
    "paper": Scale(
        "paper",
        "the paper's protocol",
        PAPER,
        rows(PAPER_TABLE, PAPER_SVHN, (5, 5, 5, 5, 5)),
        LARGER,
        most_seeds=5, rates=6, rate_epochs=10,
    ),
}  # fmt: skip
