"""How large the experiments are: for CI, for a laptop, and as in the paper."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..train import Config

Settings = Mapping[str, Config]  # by name


@dataclass(frozen=True)
class Scale:
    """The sizes that all experiments share."""

    name: str
    description: str
    protocol: Config  # NormProp in sections 5.1 to 5.4
    rows: Settings  # of the table in section 5.5
    larger: Settings  # closer to the paper, for a reader who wants to know whether the small scale tells the truth
    most_seeds: int
    rate_epochs: int  # for how many epochs an experiment tries learning rates


def rows(base: Config, svhn: Config) -> Settings:
    """Those of the paper's table."""
    return {
        "CIFAR-10": base,
        "CIFAR-10 with flips": replace(base, flip=True),
        "CIFAR-100": replace(base, data="cifar100"),
        "CIFAR-100 with flips": replace(base, data="cifar100", flip=True),
        "SVHN": svhn,
    }


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
LARGER = {"half width, all images": ANCHOR, "the paper's scale": PAPER_RUN}

SCALES = {
    "tiny": Scale(
        "tiny",
        "a check that everything runs, on drawn shapes: its numbers mean nothing",
        TINY,
        {"shapes": TINY, "shapes with flips": replace(TINY, flip=True)},
        {"more epochs": replace(TINY, epochs=3)},
        most_seeds=2,
        rate_epochs=1,
    ),
    "laptop": Scale(
        "laptop",
        "a quarter of the paper's width, 10,000 random training images, 5 epochs with the learning rate annealed to 0, "
        "evaluated on all test images",
        LAPTOP,
        {**rows(LAPTOP, replace(LAPTOP, data="svhn")), "CIFAR-10 with flips, half width": ANCHOR},
        LARGER,
        most_seeds=24,
        rate_epochs=1,
    ),
    "paper": Scale(
        "paper", "the paper's protocol", PAPER, rows(PAPER_TABLE, PAPER_SVHN), LARGER, most_seeds=5, rate_epochs=10
    ),
}
