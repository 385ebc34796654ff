"""Does tinyprop train as PyTorch does? The same network, weights and order of batches in both, for
several seeds.

The paper's network at quarter width, 10,000 training images, batch 50, learning rate 0.05, momentum
0.9, weight decay 0.001. Rounding errors grow from step to step, so the runs of a seed drift apart;
their means over seeds should not. About a minute an epoch and seed on two cores."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tinyprop import data, nn
from tinyprop.data import GlobalNormalizer, batches
from tinyprop.engine.arrays import HostArray
from tinyprop.engine.random import manual_seed
from tinyprop.engine.tensor import Tensor
from tinyprop.engine.threads import cores
from tinyprop.report.arguments import whole_number
from tinyprop.report.estimate import Estimate
from tinyprop.report.table import Table
from tinyprop.train import evaluate

from .peers import PEERS, Peer

LEARNING = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.001}
Split = tuple[HostArray, HostArray]  # images and labels


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", choices=data.NAMES, default="cifar10", help="data set (default cifar10)"
    )
    parser.add_argument("--root", type=Path, help="directory of the data set")
    parser.add_argument("--epochs", type=whole_number(1), default=5, help="default 5")
    parser.add_argument(
        "--seeds", type=whole_number(2), default=3, help="runs of each peer (default 3)"
    )
    parser.add_argument(
        "--images", type=whole_number(50), default=10_000, help="training images (default 10,000)"
    )


def run(options: argparse.Namespace) -> int:
    images = data.load(options.data, options.root, "train").first(options.images)
    others = data.load(options.data, options.root, "test")
    normalize = GlobalNormalizer(images.images.shape[1:]).fit(images.images)
    train = normalize(Tensor(images.images)).data, images.labels
    test = normalize(Tensor(others.images)).data, others.labels
    histories = {}  # by peer: (seeds, epochs, loss and error)
    for name in ("tinyprop", "torch"):
        peer = PEERS[name](cores())
        runs = []
        with peer.limited():
            for seed in range(options.seeds):
                runs.append(list(history(peer, seed, options.epochs, train, test)))
        histories[name] = np.array(runs)
    histories["difference"] = histories["tinyprop"] - histories["torch"]
    print(table(histories).text())
    return 0


def table(histories: dict[str, HostArray]) -> Table:
    """A row for each epoch and peer, from (seeds, epochs, loss and error)."""
    seeds, epochs, _ = histories["difference"].shape
    rows = []
    for epoch in range(epochs):
        for name, runs in histories.items():
            losses, errors = runs[:, epoch].T  # (seeds, 2) -> (2, seeds)
            loss = Estimate.of(losses.tolist())
            error = Estimate.of(errors.tolist())
            rows.append([str(epoch + 1), name, f"{loss:.3f}", f"{error:.2f}"])
    header = ["epoch", "peer", "training loss", "test error, %"]
    note = f"Means over {seeds} seeds, with 95 % confidence intervals."
    return Table(header, rows, note=note, align="rlrr")


def history(
    peer: Peer, seed: int, epochs: int, train: Split, test: Split
) -> Iterator[tuple[float, float]]:
    """Training loss and test error in % after each epoch; a step trains the arrays of the network
    itself."""
    peer.learning = LEARNING
    manual_seed(seed)
    net = nn.build(nn.NIN, train[0].shape[1], width=0.25)
    step = peer.trainer(net)
    random = np.random.default_rng(seed)
    for _ in range(epochs):
        losses = [step(x, labels) for x, labels in batches(train, 50, random)]
        _, error = evaluate(net, *test)
        yield float(np.mean(losses)), 100 * error
