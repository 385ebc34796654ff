"""The training loop: it can be stopped at any moment, and goes on from there to the same bits."""

import csv
import io
import json
import math
import platform
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from . import checkpoint, data, nn, optim, plots
from .engine.arrays import HostArray, from_host, use_backend
from .engine.errors import explain
from .engine.tensor import Tensor
from .errors import DivergenceError, StateError
from .nn.module import Module
from .random import generator, manual_seed, new_generator
from .saving import save, write_whole
from .step import TrainingStep, evaluate
from .step import keep_freed_memory as keep_freed_memory  # offered here as tp.train.keep_freed_memory

CHOICES = {
    "norm": ("normprop", "batch", "none"),
    "activation": tuple(nn.layers.ACTIVATIONS),
    "mode": ("paper", "exact"),
    "data_norm": ("global", "batch"),
    "optimizer": ("sgd", "rmsprop"),
    "backend": ("numpy", "cupy"),
    "data": data.NAMES,
}
RANGES = {"width": (0, 100), "lr": (0, 100), "momentum": (0, 1), "weight_decay": (0, 1), "dropout": (0, 1)}
WHOLE = ("epochs", "batch_size", "halve_every", "patience", "train_size", "test_size", "threads", "read_every")
SHOWN = 200  # test images whose signals are recorded after each epoch
MAY_CHANGE = ("epochs", "threads", "read_every")  # between a run and its continuation


@dataclass(frozen=True)
class Config:
    """Everything that decides how a run goes; wrong values are refused when it is made.

    >>> tp.train.Config(data="cifar10", epochs=2).lr
    0.05
    """

    data: str = "shapes"
    norm: str = "normprop"
    activation: str = "relu"
    mode: str = "paper"
    gamma: float | None = None  # where gamma starts; None is the paper's Jacobian factor
    beta: float | None = None  # where beta starts; None is 0, or 1 for a rectifier in exact mode
    data_norm: str = "global"
    width: float = 0.25
    dropout: float = 0.0  # after each pooling of a hidden layer
    epochs: int = 10
    batch_size: int = 50
    lr: float = 0.05
    optimizer: str = "sgd"
    momentum: float = 0.9
    weight_decay: float = 0.001
    halve_every: int = 10  # epochs after which the learning rate is halved
    patience: int | None = None  # or epochs without a smaller training loss, after which it is
    flip: bool = False
    train_size: int | None = None  # the first so many training images; None is all
    test_size: int | None = None
    seed: int = 0
    backend: str = "numpy"
    threads: int | None = None
    read_every: int = 50  # on a GPU, steps between looks at the loss, each of which has to wait; and after each epoch

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                self.refuse(name, f"it is one of {', '.join(allowed)}")
        for name, (low, high) in RANGES.items():
            if not low <= getattr(self, name) <= high:
                self.refuse(name, f"it is a number from {low} to {high}")
        for name in WHOLE:
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and value >= 1):
                self.refuse(name, "it is a whole number of at least 1")

    def refuse(self, name: str, rule: str) -> None:
        usual = next(f.default for f in fields(self) if f.name == name)
        raise ValueError(explain(f"{name} = {getattr(self, name)!r}", rule, f"{name} = {usual!r}"))


def network(config: Config, images: HostArray, classes: int) -> nn.Sequential:
    """The paper's network with its data normalisation in front, for images like these (N, C, H, W).

    >>> images = tp.data.load("shapes", split="test").images
    >>> net = tp.train.network(tp.train.Config(width=0.1), images, classes=10)
    >>> net(tp.tensor(images[:2])).shape
    (2, 10)
    """
    _, channels, height, width = images.shape
    spec = nn.NIN.replace("P(8,8,0,avg)", f"P({height // 4},{height // 4},0,avg)")  # all that is left of the image
    gamma = "jacobian" if config.gamma is None else config.gamma
    layers = nn.build(spec, channels, config.norm, config.activation, config.width, classes, config.mode, gamma)
    for layer in layers:
        if config.beta is not None and isinstance(layer, nn.NormPropConv2d):
            layer.beta.data[...] = config.beta
    shape = (channels, height, width)
    first = data.GlobalNormalizer(shape).fit(images) if config.data_norm == "global" else data.BatchNormalizer(shape)
    every: list[Module] = [first]
    for layer in layers:
        every.append(layer)
        if config.dropout and isinstance(layer, nn.MaxPool2d | nn.AvgPool2d) and layer is not layers[-2]:
            every.append(nn.Dropout(config.dropout))
    return nn.Sequential(*every)


class Run:
    """A training in a folder: its config, log, checkpoints, final weights and curves.

    The order of the images, and which are flipped, follow from the seed and the number of the epoch alone.

    >>> from pathlib import Path
    >>> run = tp.train.Run(tp.train.Config(epochs=1, train_size=100), Path("runs/first"))
    >>> len(run.train), run.epoch
    (100, 0)
    """

    SAVE_SECONDS = 60.0  # between checkpoints within an epoch

    def __init__(self, config: Config, out: Path, root: Path | None = None):
        self.config, self.out = config, out
        self.train, self.test = data.load(config.data, root, "train"), data.load(config.data, root, "test")
        if config.train_size is not None:
            self.train = self.train.first(config.train_size)
        if config.test_size is not None:
            self.test = self.test.first(config.test_size)
        manual_seed(config.seed)
        with use_backend(config.backend):
            self.model = network(config, self.train.images, len(self.train.classes))
        parameters = list(self.model.parameters())
        if config.optimizer == "sgd":
            self.optimizer: optim.Optimizer = optim.SGD(parameters, config.lr, config.momentum, config.weight_decay)
        else:
            self.optimizer = optim.RMSProp(parameters, config.lr, weight_decay=config.weight_decay)
        self.schedule = (
            optim.HalveOnPlateau(config.patience) if config.patience else optim.HalveEvery(config.halve_every)
        )
        self.step = TrainingStep(self.model, self.optimizer, threads=config.threads)
        self.history: list[dict[str, float]] = []  # a row for each finished epoch
        self.signals: list[dict[str, Any]] = []  # a row for each layer and finished epoch
        self.batch, self.loss = 0, 0.0  # batches done in the present epoch, and the sum of their losses

    @property
    def epoch(self) -> int:
        return len(self.history)

    def run(self, resume: bool = False) -> bool:
        """Train to the last epoch, or until Ctrl-C; whether the last epoch was reached."""
        self.out.mkdir(parents=True, exist_ok=True)
        for left_over in self.out.glob(".*.part"):  # by a run that was killed while it wrote
            left_over.unlink(missing_ok=True)
        self.resume() if resume else self.refuse_to_overwrite()
        write_whole(self.out / "config.json", json.dumps(asdict(self.config) | versions(), indent=1).encode())
        with stop_on_ctrl_c() as stop:
            while self.epoch < self.config.epochs:
                if not self.run_epoch(stop):
                    self.save()
                    return False
                self.finish_epoch()
        self.finish()
        return True

    def run_epoch(self, stop: list[bool]) -> bool:
        """The batches that are left of the present epoch; False if stopped before the end."""
        config, number = self.config, -(-len(self.train) // self.config.batch_size)
        random = new_generator([config.seed, self.epoch])
        batches = data.batches(self.train, config.batch_size, random, config.flip)
        title = f"epoch {self.epoch + 1}/{config.epochs}"
        on_host = config.backend == "numpy"
        self.started, self.images, saved = time.perf_counter(), 0, time.perf_counter()
        with tqdm(total=number, initial=self.batch, desc=title, unit="batch", disable=None, leave=False) as bar:
            for images, labels in data.prefetched(islice(batches, self.batch, None), config.backend):
                try:
                    self.loss += float(self.step(images, labels)) if on_host else self.step(images, labels)
                    look = on_host or (self.batch + 1) % config.read_every == 0 or self.batch + 1 == number
                    if look and not math.isfinite(float(self.loss)):
                        raise DivergenceError("a loss that is not finite", "it must be", "a smaller learning rate")
                except DivergenceError as error:
                    where = f"step {self.batch + 1} of epoch {self.epoch + 1}"
                    raise DivergenceError(f"{error.args[0]}, at {where}", *error.args[1:]) from None
                self.batch += 1
                self.images += len(images)
                if look:
                    rate = self.images / (time.perf_counter() - self.started)
                    bar.set_postfix(loss=f"{float(self.loss) / self.batch:.3f}", images=f"{rate:.0f}/s", refresh=False)
                bar.update()
                if stop[0]:
                    return False
                if time.perf_counter() - saved > self.SAVE_SECONDS:
                    self.save()
                    saved = time.perf_counter()
        return True

    def finish_epoch(self) -> None:
        """Measure, log, move on to the next epoch, and save."""
        seconds, loss = time.perf_counter() - self.started, float(self.loss) / self.batch
        with np.errstate(all="ignore"):  # if the numbers run away, the next step says so
            test_loss, test_error = evaluate(self.model, self.test.images, self.test.labels, self.config.threads)
            with nn.evaluating():
                self.signals += [{"epoch": self.epoch + 1, **row} for row in self.measure()]
        self.history.append(
            {
                "epoch": self.epoch + 1,
                "lr": self.optimizer.lr,
                "train_loss": loss,
                "test_loss": test_loss,
                "test_error": test_error,
                "images_per_second": self.images / seconds,
            }
        )
        self.schedule.epoch_ended(self.optimizer, loss)
        self.batch, self.loss = 0, 0.0
        write_csv(self.out / "log.csv", self.history)
        write_csv(self.out / "signals.csv", self.signals)
        self.save()

    def measure(self) -> list[dict[str, Any]]:
        """What is recorded of each layer after an epoch, in evaluation mode: rows of the same columns."""
        few = from_host(self.test.images[:SHOWN], like=next(self.model.parameters()).data)
        found = [asdict(signal) for signal in nn.signals(self.model, Tensor(few))]
        return [{name: value for name, value in row.items() if value is not None} for row in found]

    def finish(self) -> None:
        """What a run leaves when it is done, besides its log."""
        save(self.out / "model.safetensors", self.model.state_dict())
        for kind in ("png", "svg"):
            plots.save(plots.training_curves(self.history), self.out / f"curves.{kind}")

    def save(self) -> None:
        """Everything that the rest of the run depends on."""
        state = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        state |= {f"optimizer.{k}": v for k, v in self.optimizer.state_dict().items()}
        facts = {
            "config": asdict(self.config),
            "batch": self.batch,
            "loss": float(self.loss),
            "lr": self.optimizer.lr,
            "schedule": vars(self.schedule),
            "generator": generator().bit_generator.state,
            "history": self.history,
            "signals": self.signals,
        }
        number = self.epoch * (len(self.train) + 1) + self.batch
        checkpoint.write(self.out, number, state, facts)

    def resume(self) -> None:
        """Go on from the newest checkpoint that is whole; without any, from the start."""
        found, complaints = checkpoint.newest(self.out)
        for complaint in complaints:
            tqdm.write(f"tinyprop: passed over {complaint}")
        if found is None:
            return
        now, then = asdict(self.config), found.facts["config"]
        for name in now:
            if now[name] != then.get(name) and name not in MAY_CHANGE:
                raise StateError(
                    f"{name} = {now[name]!r} for the run in {self.out}, which has {then.get(name)!r}",
                    "a run goes on as it began",
                    f"{name} = {then.get(name)!r}, or another folder",
                )
        facts = found.facts
        self.model.load_state_dict(_under("model.", found.arrays))
        self.optimizer.load_state_dict(_under("optimizer.", found.arrays))
        self.history, self.signals = facts["history"], facts["signals"]
        self.batch, self.loss, self.optimizer.lr = facts["batch"], facts["loss"], facts["lr"]
        vars(self.schedule).update(facts["schedule"])
        generator().bit_generator.state = facts["generator"]

    def refuse_to_overwrite(self) -> None:
        if checkpoint.numbered(self.out):
            raise StateError(
                f"{self.out}, which holds a run",
                "a run is not overwritten",
                "--resume to go on with it, or another --out",
            )


def versions() -> dict[str, str]:
    """What a result may depend on besides its config."""
    tinyprop = sys.modules[__name__.partition(".")[0]]
    return {"tinyprop": tinyprop.__version__, "numpy": version("numpy"), "python": platform.python_version()}


def _under(prefix: str, arrays: Mapping[str, HostArray]) -> dict[str, HostArray]:
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue().encode())


@contextmanager
def stop_on_ctrl_c() -> Iterator[list[bool]]:
    """A flag that the first Ctrl-C sets, so that a step can be finished; a second one interrupts as usual."""
    stop = [False]

    def set_flag(number: int, frame: Any) -> None:
        stop[0] = True
        signal.signal(signal.SIGINT, previous)

    try:
        previous = signal.signal(signal.SIGINT, set_flag)
    except ValueError:  # only the main thread may
        yield stop
        return
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)
