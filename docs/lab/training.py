"""A small network that trains live: points of two classes in the plane, and what it says of all
others."""

import time
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

import tinyprop as tp
from tinyprop import functional as F
from tinyprop.instruments.probes import samples_are_separate
from tinyprop.nn.module import observing

SPEC = "F(16)-F(16)-F(2)"
TRAINING = 256  # points
TEST = 512
NOISE = 0.05
SIDE = 48  # of the map
EDGE = 1.5  # it shows the square from -EDGE to EDGE
STEPS = 2000
REFRESH = 20  # steps between two looks of layers that measure fixed samples
FRAME = 0.06  # seconds between two answers

Points = tuple[np.ndarray, np.ndarray]  # places (count, 2), and classes 0 or 1
Answer = tuple[str, dict]
Note = dict[str, str] | None

# -- the points


def points(shape: str, count: int, random: np.random.Generator) -> Points:
    """Points of a shape, and noise."""
    if shape not in SHAPES:
        raise ValueError(f"shape is one of {', '.join(SHAPES)}, not {shape!r}")
    x, labels = SHAPES[shape](count, random)
    noise = NOISE * random.standard_normal(x.shape)
    return (x + noise).astype("float32"), labels


def circle(count: int, random: np.random.Generator) -> Points:
    """A disk, and a ring around it."""
    labels = alternating(count)
    angle = random.uniform(0.0, 2.0 * np.pi, count)
    inside = random.uniform(0.0, 0.5, count)
    radius = np.where(labels == 0, inside, 1.0)
    return beside(radius * np.cos(angle), radius * np.sin(angle)), labels


def spiral(count: int, random: np.random.Generator) -> Points:
    """Two arms."""
    labels = alternating(count)
    along = random.uniform(0.15, 1.0, count)
    angle = 3.0 * np.pi * along + np.pi * labels
    return 1.1 * beside(along * np.cos(angle), along * np.sin(angle)), labels


def checkers(count: int, random: np.random.Generator) -> Points:
    """Four squares; those across from each other are of one class."""
    x = random.uniform(-1.2, 1.2, (count, 2))
    is_same_sign = np.sign(x[:, 0]) * np.sign(x[:, 1]) > 0
    return x, is_same_sign.astype(int)


def moons(count: int, random: np.random.Generator) -> Points:
    """Two half circles, one open below and one above."""
    labels = alternating(count)
    angle = random.uniform(0.0, np.pi, count)
    side = 1.0 - 2.0 * labels
    x = 0.8 * beside(np.cos(angle) + 0.5 * (labels - 0.5), side * np.sin(angle))
    x[:, 0] -= 0.2 * side
    x[:, 1] -= 0.2 * side
    return x, labels


def alternating(count: int) -> np.ndarray:
    return np.arange(count) % 2


def beside(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.stack([first, second], axis=1)


SHAPES: dict[str, Callable[[int, np.random.Generator], Points]] = {
    "circle": circle,
    "spiral": spiral,
    "checkers": checkers,
    "moons": moons,
}

# -- training


def train(
    norm: str, init: str | None, activation: Any, shape: str, batch: int, rate: float, seed: int
) -> Generator[Answer, Note, None]:
    """Answers while it trains. It takes {"mode": "train"} or {"mode": "eval"} as a note: how the
    network is looked at."""
    random = np.random.default_rng(seed)
    x, labels = points(shape, TRAINING, random)
    yield "points", {"x": x, "labels": labels, "edge": EDGE, "side": SIDE}

    tp.manual_seed(seed)
    net: Any = tp.nn.build(SPEC, in_channels=2, norm=norm, activation=activation, init=init)
    optimizer = tp.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    view = View(net, points(shape, TEST, random), batch)
    losses: list[float] = []  # of the steps since the last answer
    began = time.perf_counter()
    for step in range(STEPS + 1):
        is_end = step in (0, STEPS)
        if is_end or time.perf_counter() - began > FRAME:
            view.follow(step, losses)
            losses = []
            yield from view.answers("frame")
            began = time.perf_counter()
        if step % REFRESH == 0:
            tp.nn.refresh(net, tp.tensor(x))  # layers that measure fixed samples
        some = random.choice(TRAINING, batch, replace=False)
        loss = one_step(net, optimizer, x[some], labels[some])
        losses.append(loss)
        if not np.isfinite(loss):
            yield "diverged", {"step": step}
            return
    while True:
        yield from view.answers("finished")


def one_step(
    net: tp.nn.Module, optimizer: tp.optim.SGD, x: np.ndarray, labels: np.ndarray
) -> float:
    """Learn from a batch; its loss was the one before."""
    net.train()
    loss = F.cross_entropy(net(tp.tensor(x)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tp.optim.normalize_weights(net)  # NormProp keeps its weight vectors at length 1
    return loss.item()


# -- what the page sees of it


class View:
    """How a network is looked at while it trains: its loss on new points in both modes, and what it
    says of all points in the mode that the reader has chosen."""

    def __init__(self, net: tp.nn.Module, new_points: Points, batch: int):
        self.net = net
        self.x, self.labels = new_points
        self.batch = batch
        self.mode = "train"
        self.curves: dict[str, list] = {"step": [], "training": [], "train": [], "eval": []}

    def follow(self, step: int, losses: list[float]) -> None:
        """Add to the curves: `losses` are those of training steps."""
        self.curves["step"].append(step)
        self.curves["training"].append(float(np.mean(losses)) if losses else None)
        for mode in ("train", "eval"):
            loss, _ = self.measured(mode)
            self.curves[mode].append(loss)

    def answers(self, name: str) -> Generator[Answer, Note, None]:
        """An answer, and one more for each note that it gets."""
        note = yield name, self.numbers()
        while note is not None:
            self.mode = note["mode"]
            note = yield name, self.numbers()

    def numbers(self) -> dict[str, Any]:
        _, accuracy = self.measured(self.mode)
        seen = {"mode": self.mode, "accuracy": accuracy, "map": self.map()}
        return self.curves | seen

    def measured(self, mode: str) -> tuple[float, float]:
        """Loss and accuracy on new points."""
        z = self.logits(mode, self.x)
        loss = F.cross_entropy(tp.tensor(z), self.labels).item()
        is_right = z.argmax(axis=1) == self.labels
        return loss, float(is_right.mean())

    def map(self) -> np.ndarray:
        """The chance of class 1 on a grid, in per cent, row by row from above: each batch is a
        piece of a row."""
        line = np.linspace(-EDGE, EDGE, SIDE)
        grid = np.stack(np.meshgrid(line, line[::-1]), axis=-1)  # (SIDE, SIDE, 2)
        z = self.logits(self.mode, grid.reshape(-1, 2).astype("float32"))
        difference = np.clip(z[:, 0] - z[:, 1], -30.0, 30.0)
        return np.round(100.0 / (1.0 + np.exp(difference))).astype(int)

    def logits(self, mode: str, x: np.ndarray) -> np.ndarray:
        """Without moving running statistics; in batches, if samples of a batch depend on each
        other."""
        self.net.train(mode == "train")
        size = len(x) if samples_are_separate(self.net) else self.batch
        with tp.no_grad(), observing():
            parts = [self.net(tp.tensor(x[i : i + size])).numpy() for i in range(0, len(x), size)]
        return np.concatenate(parts)
