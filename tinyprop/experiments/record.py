"""What is kept of a finished run: everything that the statistics need, in about 20 kB of JSON."""

import base64
import hashlib
import json
import math
import zlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import functional as F
from .. import nn
from ..data import Dataset
from ..engine.arrays import Array, HostArray, from_host, to_numpy
from ..engine.errors import DivergenceError
from ..engine.graph import no_grad
from ..engine.overrides import overrides
from ..engine.random import generator
from ..engine.tensor import Tensor
from ..report.environment import machine, sources, versions
from ..report.files import write_whole
from ..train import Config, Run, TrainingStep

FORMAT = "tinyprop run 1"
CHUNK = 100  # images that go through a network together when it is evaluated
WINDOW = 2500  # images over which training losses are averaged, but at least 50 steps
# losses of single images are saved as SMALLEST * exp(STEP * a whole number below 256)
SMALLEST, STEP = 1e-4, 0.2


@dataclass(frozen=True)
class Layer:
    """The means, over images and places, of the features that arrive at a layer: section 5.2's
    "input of a unit".

    A number for each epoch, from epoch 0, before training, where batch statistics stand in for
    running ones."""

    layer: int
    size: list[float]  # |mean| of a feature, averaged over all features
    moved: list[float]  # |change of the mean| since the epoch before, averaged likewise


@dataclass(frozen=True)
class Evaluation:
    """The final network on a set of images. A scaled loss is that of the outputs divided by the
    temperature."""

    error: float
    loss: float
    scaled_loss: float
    correct: str  # a bit for each image
    scaled_losses: str  # a byte for each image

    @classmethod
    def of(cls, outputs: HostArray, labels: HostArray, temperature: float) -> "Evaluation":
        correct, scaled = (
            outputs.argmax(axis=1) == labels,
            image_losses(outputs, labels, temperature),
        )
        codes = (
            np.round(np.log(np.maximum(scaled, SMALLEST) / SMALLEST) / STEP)
            .clip(0, 255)
            .astype(np.uint8)
        )
        return cls(
            error=float(1.0 - correct.mean()),
            loss=float(image_losses(outputs, labels).mean()),
            scaled_loss=float(scaled.mean()),
            correct=base64.b64encode(np.packbits(correct).tobytes()).decode(),
            scaled_losses=base64.b64encode(zlib.compress(codes.tobytes(), 9)).decode(),
        )

    def image_correct(self) -> HostArray:
        bits = np.unpackbits(np.frombuffer(base64.b64decode(self.correct), np.uint8))
        return bits[: len(self._codes())].astype(bool)

    def image_losses(self) -> HostArray:
        """Rounded to steps of 20 % (and not below 0.0001), then rescaled, so that their mean is
        exact: each is within 23 %, and typically within 6 %."""
        found = SMALLEST * np.exp(STEP * self._codes())
        return found * (self.scaled_loss / found.mean())

    def _codes(self) -> HostArray:
        return np.frombuffer(zlib.decompress(base64.b64decode(self.scaled_losses)), np.uint8)


@dataclass(frozen=True)
class Record:
    """A finished run. One that diverged has no evaluation."""

    config: Config
    versions: dict[str, str]
    machine: dict[str, Any]
    overrides: list[str]  # those that were used
    images: dict[str, int]
    history: list[dict[str, float]]  # the training log: a row for each epoch
    losses: list[float]  # training loss, averaged over windows
    layers: list[Layer]
    diverged: dict[str, Any] | None  # epoch, step and what
    # the best on the validation images; 1 in a run without validation
    temperature: float | None = None
    validation: Evaluation | None = None
    test: Evaluation | None = None

    def accuracies(self) -> list[float]:
        """After each epoch, on validation images if there are any, else on test images, in %."""
        name = "validation_error" if self.config.validation else "test_error"
        return [100.0 * (1.0 - row[name]) for row in self.history]

    def to_json(self) -> dict[str, Any]:
        facts = rounded(asdict(self))
        return {"format": FORMAT, "sha256": digest(facts), **facts}

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> "Record":
        """ValueError, TypeError or KeyError if `to_json` did not make it."""
        facts = dict(facts)
        if facts.pop("format") != FORMAT or facts.pop("sha256") != digest(facts):
            raise ValueError("it does not hold what was written")
        facts["config"] = Config(**facts["config"])
        facts["layers"] = [Layer(**layer) for layer in facts["layers"]]
        for name in ("validation", "test"):
            facts[name] = facts[name] and Evaluation(**facts[name])
        return cls(**facts)


def rounded(facts: Any) -> Any:
    """Plain data with floats to 5 digits."""
    return json.loads(json.dumps(facts), parse_float=lambda text: float(f"{float(text):.5g}"))


def digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def image_losses(outputs: HostArray, labels: HostArray, temperature: float = 1.0) -> HostArray:
    """The cross-entropy of each image."""
    return F.cross_entropy(Tensor(outputs.astype("float64") / temperature), labels, "none").numpy()


def best_temperature(outputs: HostArray, labels: HostArray) -> float:
    """The temperature with the least loss, between 0.01 and 100: a bisection, as the loss is convex
    in its inverse.

    >>> import numpy as np
    >>> logits, labels = np.array([[np.log(9.0), 0.0]] * 4), np.array([0, 0, 0, 1])
    >>> round(best_temperature(logits, labels), 6)  # log 9 / log 3
    2.0
    """
    truth = outputs[np.arange(len(labels)), labels].astype("float64")
    low, high = math.log(0.01), math.log(100.0)
    for _ in range(50):
        middle = (low + high) / 2
        weights = np.exp((outputs - outputs.max(axis=1, keepdims=True)) / math.exp(middle))
        expected = (weights * outputs).sum(axis=1) / weights.sum(axis=1)
        low, high = (middle, high) if (expected - truth).mean() > 0 else (low, middle)
    return math.exp(middle)


@no_grad()
def passed_through(model: nn.Sequential, images: HostArray) -> tuple[HostArray, list[HostArray]]:
    """The outputs for images, and the mean of each feature that arrives at each convolution."""
    home = next(model.parameters()).data
    outputs: list[HostArray] = []
    sums: dict[int, Array] = {}
    for start in range(0, len(images), CHUNK):
        x = Tensor(from_host(images[start : start + CHUNK], like=home))
        for i, layer in enumerate(model):
            if isinstance(layer, nn.Conv2d | nn.NormPropConv2d):  # (N, C, H, W) -> (C,)
                sums[i] = sums.get(i, 0.0) + x.data.mean(axis=(2, 3), dtype="float64").sum(axis=0)
            x = layer(x)
        outputs.append(to_numpy(x.data))
    return np.concatenate(outputs), [to_numpy(total) / len(images) for total in sums.values()]


class StepWithLosses(TrainingStep):
    """A step that remembers the loss of each batch."""

    losses: list[Array]

    def __call__(self, x: Any, labels: Any) -> Array:
        self.losses.append(super().__call__(x, labels))
        return self.losses[-1]


class RecordedRun(Run):
    """A run whose result is a record."""

    def __init__(self, config: Config, out: Path, root: Path | None = None):
        super().__init__(config, out, root, say=lambda line: None)
        for entry in overrides():
            entry.used = False
        self.step: StepWithLosses = StepWithLosses(
            self.model, self.optimizer, threads=config.threads
        )
        self.step.losses = []
        self.sets = (
            {"validation": self.valid, "test": self.test} if self.valid else {"test": self.test}
        )
        self.first = next(iter(self.sets))  # the set on which mean inputs are measured
        # outputs and means, at the last evaluation
        self.passed: dict[str, tuple[HostArray, list[HostArray]]] = {}

    def save(self) -> None:
        """The losses first: `resume` drops those that a checkpoint does not know of."""
        write_whole(
            self.out / "losses.f4",
            np.array([float(loss) for loss in self.step.losses], "<f4").tobytes(),
        )
        super().save()

    def resume(self) -> None:
        super().resume()
        if not self.signals:
            self.measure_start()
        steps = self.epoch * -(-len(self.train) // self.config.batch_size) + self.batch
        if steps:
            self.step.losses = list(
                np.frombuffer((self.out / "losses.f4").read_bytes(), "<f4")[:steps]
            )

    def measure_start(self) -> None:
        """The rows of epoch 0, in training mode, as running statistics have seen nothing yet; then
        restore them."""
        state = {name: array.copy() for name, array in self.model.state_dict().items()}
        random = generator().bit_generator.state
        images = self.sets[self.first].images
        self.passed[self.first] = passed_through(
            self.model, images[: len(images) // CHUNK * CHUNK or None]
        )
        self.signals = [{"epoch": 0, **row} for row in self.measure()]
        self.model.load_state_dict(state)
        generator().bit_generator.state = random

    def evaluate(self, name: str, images: Dataset) -> dict[str, float]:
        with nn.evaluating():
            outputs, _ = self.passed[name] = passed_through(self.model, images.images)
        # NaN is not a class
        wrong = (outputs.argmax(axis=1) != images.labels) | ~np.isfinite(outputs).all(axis=1)
        error = float(wrong.mean())
        return {
            f"{name}_loss": float(image_losses(outputs, images.labels).mean()),
            f"{name}_error": error,
        }

    def measure(self) -> list[dict[str, Any]]:
        before = {
            row["layer"]: np.array(row.pop("means")) for row in self.signals if "means" in row
        }
        return [
            {
                "layer": i,
                "size": float(abs(means).mean()),
                "moved": float(abs(means - before.get(i, means)).mean()),
                "means": means.tolist(),  # for the next epoch alone
                "sources": sources(),  # another version may resume the run
            }
            for i, means in enumerate(self.passed[self.first][1], start=1)
        ]

    def finish(self) -> None:
        for name, images in self.sets.items():
            if name not in self.passed:  # it was stopped between the last epoch and here
                self.evaluate(name, images)
            if not np.isfinite(self.passed[name][0]).all():
                raise DivergenceError(
                    "outputs that are not finite", "they are numbers", "a smaller learning rate"
                )

    def record(self, diverged: dict[str, Any] | None) -> Record:
        window = max(50, WINDOW // self.config.batch_size)
        losses = np.array([float(loss) for loss in self.step.losses])
        history = [row for row in self.history if all(map(math.isfinite, row.values()))]
        rows = [row for row in self.signals if row["epoch"] <= len(history)]
        by_layer = [
            [row for row in rows if row["layer"] == i]
            for i in sorted({row["layer"] for row in rows})
        ]
        record = Record(
            config=self.config,
            versions=versions()
            | {"sources": " ".join(dict.fromkeys(row.get("sources", "?") for row in self.signals))},
            machine=machine(),
            overrides=[str(entry) for entry in overrides() if entry.used],
            images={
                name: len(images) for name, images in {"train": self.train, **self.sets}.items()
            },
            history=history,
            losses=[float(losses[i : i + window].mean()) for i in range(0, len(losses), window)],
            layers=[
                Layer(r[0]["layer"], [row["size"] for row in r], [row["moved"] for row in r])
                for r in by_layer
            ],
            diverged=diverged,
        )
        if diverged:
            return record
        temperature = (
            best_temperature(self.passed["validation"][0], self.valid.labels) if self.valid else 1.0
        )
        found = {
            name: Evaluation.of(self.passed[name][0], s.labels, temperature)
            for name, s in self.sets.items()
        }
        return replace(
            record, temperature=temperature, validation=found.get("validation"), test=found["test"]
        )
