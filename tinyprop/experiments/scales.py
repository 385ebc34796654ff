"""How large an experiment is: for CI, for a laptop, and as in the paper."""

from dataclasses import dataclass, replace

from ..train import Config


@dataclass(frozen=True)
class Scale:
    """The sizes that all experiments share."""

    name: str
    protocol: Config  # of sections 5.1 to 5.4
    table: Config  # of section 5.5
    sets: tuple[tuple[str, Config], ...]  # of that table: titles, and what differs for each
    seeds: tuple[int, ...]
    side_epochs: int  # of dropout, activations and jacobian-factor
    many_epochs: int  # of batch-size and optimizers, which have many settings
    depth: int  # of the networks whose start is measured, fully connected and as wide as this
    depth_width: int
    speed_width: float
    speed_rounds: int


def _sets(table: Config, *names: str, svhn: Config | None = None) -> tuple[tuple[str, Config], ...]:
    titles = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "shapes": "shapes"}
    found = []
    for name in names:
        found.append((titles[name], replace(table, data=name)))
        found.append((f"{titles[name]} with flips", replace(table, data=name, flip=True)))
    return (*found, ("SVHN", svhn)) if svhn else tuple(found)


TINY = Config(
    lr=0.05, data="shapes", width=0.04, epochs=2, batch_size=50, halve_every=1, train_size=250, test_size=100, threads=1
)
LAPTOP = Config(
    lr=0.05,
    data="cifar10",
    width=0.25,
    epochs=5,
    batch_size=50,
    halve_every=2,
    train_size=10_000,
    test_size=2_000,
    threads=1,
)
PAPER = Config(
    lr=0.05, data="cifar10", width=1.0, epochs=50, batch_size=50, halve_every=10, data_norm="batch", threads=1
)
PAPER_TABLE = replace(PAPER, epochs=200, halve_every=25)
PAPER_SVHN = replace(PAPER, data="svhn", epochs=25, batch_size=100, lr=0.08, halve_every=5)

SCALES = {
    scale.name: scale
    for scale in (
        Scale("tiny", TINY, TINY, _sets(TINY, "shapes"), (0, 1), 2, 1, 12, 64, 0.04, 6),
        Scale(
            "laptop",
            LAPTOP,
            LAPTOP,
            _sets(LAPTOP, "cifar10", "cifar100", svhn=replace(LAPTOP, data="svhn")),
            seeds=(0, 1, 2),
            side_epochs=3,
            many_epochs=2,
            depth=50,
            depth_width=256,
            speed_width=1.0,
            speed_rounds=15,
        ),
        Scale(
            "paper",
            PAPER,
            PAPER_TABLE,
            _sets(PAPER_TABLE, "cifar10", "cifar100", svhn=PAPER_SVHN),
            seeds=(0, 1, 2, 3, 4),
            side_epochs=50,
            many_epochs=50,
            depth=50,
            depth_width=512,
            speed_width=1.0,
            speed_rounds=51,
        ),
    )
}
