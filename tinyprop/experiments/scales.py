"""How large the experiments are: for CI, for a laptop, and as in the paper."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..train import Config


@dataclass(frozen=True)
class Setting:
    """A named Config, and how many random seeds are planned for it."""

    label: str
    config: Config
    seeds: int


@dataclass(frozen=True)
class Row(Setting):
    """A row of the table in section 5.5."""

    paper: str = ""  # which of the paper's rows it stands for, if any


@dataclass(frozen=True)
class Scale:
    """The sizes that all experiments share."""

    name: str
    description: str
    protocol: Config  # NormProp in sections 5.1 to 5.4
    rows: tuple[Row, ...]
    most_seeds: int
    rates: int  # how many of the learning rates that an experiment tries
    rate_epochs: int  # for how many epochs it tries them
    speed_width: float  # of the networks whose steps are timed

    def setting(self, label: str, seeds: int, **changes: Any) -> Setting:
        """The protocol with changes, for so many seeds, or fewer at a smaller scale."""
        return Setting(label, replace(self.protocol, **changes), min(seeds, self.most_seeds))

    def some(self, rates: Sequence[float]) -> Sequence[float]:
        """The middle ones of these rates, as many as are tried."""
        skip = max(0, len(rates) - self.rates)
        return rates[skip // 2 : len(rates) - (skip + 1) // 2]


def rows(base: Config, svhn: Config, seeds: tuple[int, ...]) -> tuple[Row, ...]:
    """The paper's rows."""
    configs = {
        "CIFAR-10": base,
        "CIFAR-10 with flips": replace(base, flip=True),
        "CIFAR-100": replace(base, data="cifar100"),
        "CIFAR-100 with flips": replace(base, data="cifar100", flip=True),
        "SVHN": svhn,
    }
    return tuple(Row(title, config, n, title) for (title, config), n in zip(configs.items(), seeds, strict=True))


TINY = Config(
    data="shapes", width=0.04, epochs=2, lr=0.05, schedule="linear", data_norm="batch", train_size=250, test_size=200,
    threads=1,
)  # fmt: skip
LAPTOP = replace(TINY, data="cifar10", width=0.25, epochs=5, validation=True, train_size=10_000, test_size=None)
ANCHOR = replace(
    LAPTOP, width=0.5, epochs=8, schedule="halve", halve_every=2, flip=True, train_size=None
)  # where a reader wants to know whether the small scale tells the truth
PAPER = Config(data="cifar10", width=1.0, epochs=50, lr=0.05, halve_every=10, data_norm="batch", threads=1)
PAPER_TABLE = replace(PAPER, epochs=200, halve_every=25)
PAPER_SVHN = replace(PAPER, data="svhn", epochs=25, batch_size=100, lr=0.08, halve_every=5)

SCALES = {
    "tiny": Scale(
        "tiny",
        "a check that everything runs, on drawn shapes: its numbers mean nothing",
        TINY,
        (Row("shapes", TINY, 2), Row("shapes with flips", replace(TINY, flip=True), 2)),
        most_seeds=2, rates=2, rate_epochs=1, speed_width=0.04,
    ),
    "laptop": Scale(
        "laptop",
        "a quarter of the paper's width, 10,000 random training images, 5 epochs with the rate annealed to 0, all test "
        "images",
        LAPTOP,
        (
            *rows(LAPTOP, replace(LAPTOP, data="svhn"), (24, 12, 16, 12, 12)),
            Row("CIFAR-10 with flips, half width", ANCHOR, 4, "CIFAR-10 with flips"),
        ),
        most_seeds=24, rates=6, rate_epochs=1, speed_width=1.0,
    ),
    "paper": Scale(
        "paper",
        "the paper's protocol",
        PAPER,
        rows(PAPER_TABLE, PAPER_SVHN, (5, 5, 5, 5, 5)),
        most_seeds=5, rates=6, rate_epochs=10, speed_width=1.0,
    ),
}  # fmt: skip
