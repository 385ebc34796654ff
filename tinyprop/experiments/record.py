"""What is kept of a finished run: everything that the statistics need, in 20 to 50 kB of JSON."""

import base64
import hashlib
import json
import math
import zlib
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

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
from ..nn.spec import with_outputs
from ..report.environment import commit, machine, sources, versions
from ..report.files import write_whole
from ..train import Config, Run, TrainingStep

FORMAT = "tinyprop run 1"
CHUNK = 100  # images that go through a network together when it is evaluated
WINDOW = 2500  # images over which training losses are averaged, but at least 50 steps
# losses of single images are saved as SMALLEST * exp(STEP * a whole number below 256)
SMALLEST = 1e-4
STEP = 0.2
CLASSES = {"cifar100": 100}  # of data sets that have not 10
AT_CHANCE = 0.01  # how much more than by chance is still chance, as a fraction of the images


@dataclass(frozen=True)
class Layer:
    """The means, over images and places, of the features that arrive at a layer: section 5.2's
    "input of a unit".

    A number for each epoch, from epoch 0, before training, where batch statistics stand in for
    running ones."""

    layer: int
    size: list[float]  # |mean| of a feature, averaged over all features
    moved: list[float]  # |change of the mean| since the epoch before, averaged likewise
    # standard deviation of a feature, averaged likewise; older runs have none
    spread: list[float] = field(default_factory=list)


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
        correct = outputs.argmax(axis=1) == labels
        losses = image_losses(outputs, labels)
        scaled_losses = image_losses(outputs, labels, temperature)
        steps = np.log(np.maximum(scaled_losses, SMALLEST) / SMALLEST) / STEP
        codes = np.round(steps).clip(0, 255).astype(np.uint8)
        return cls(
            error=float(1.0 - correct.mean()),
            loss=float(losses.mean()),
            scaled_loss=float(scaled_losses.mean()),
            correct=base64.b64encode(np.packbits(correct).tobytes()).decode(),
            scaled_losses=base64.b64encode(zlib.compress(codes.tobytes(), 9)).decode(),
        )

    def image_correct(self) -> HostArray:
        packed = np.frombuffer(base64.b64decode(self.correct), np.uint8)
        bits = np.unpackbits(packed)  # up to 7 more than there are images
        images = len(self._codes())
        return bits[:images].astype(bool)

    def image_losses(self) -> HostArray:
        """Rounded to steps of 20 % (and not below 0.0001), then rescaled, so that their mean is
        exact: each is within 23 %, and typically within 6 %."""
        losses = SMALLEST * np.exp(STEP * self._codes())
        return losses * (self.scaled_loss / losses.mean())

    def _codes(self) -> HostArray:
        compressed = base64.b64decode(self.scaled_losses)
        return np.frombuffer(zlib.decompress(compressed), np.uint8)


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
    # the network with averaged weights, on the test images, at a temperature of its own
    averaged: Evaluation | None = None
    # when, from which commit and by which registered plan; older runs do not say
    started: str | None = field(default=None, compare=False)
    ended: str | None = field(default=None, compare=False)
    commit: str | None = None
    registration: str | None = None

    @property
    def has_diverged(self) -> bool:
        """Whether a number was not finite, or the network ends at chance with a loss above that of
        chance."""
        if self.diverged or self.test is None:
            return True
        classes = CLASSES.get(self.config.data, 10)
        is_at_chance = 1.0 - self.test.error <= 1.0 / classes + AT_CHANCE
        return is_at_chance and self.test.loss > math.log(classes)

    @property
    def seconds(self) -> float:
        """The time that training took, without evaluation; 0 if it was not measured."""
        images = self.images["train"]
        speeds = [row["images_per_second"] for row in self.history]
        return sum(images / speed for speed in speeds if speed)

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
        written_format = facts.pop("format")
        if written_format != FORMAT:
            raise ValueError(f"its format is {written_format!r}, not {FORMAT!r}")
        written_digest = facts.pop("sha256")
        if written_digest != digest(facts):
            raise ValueError("its digest is not that of its content")
        facts["config"] = Config(**facts["config"])
        facts["layers"] = [Layer(**layer) for layer in facts["layers"]]
        for name in ("validation", "test", "averaged"):
            if facts.get(name):
                facts[name] = Evaluation(**facts[name])
        return cls(**facts)


def now() -> str:
    """The time, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def rounded(facts: Any) -> Any:
    """Plain data with floats to 5 digits."""

    def to_five_digits(text: str) -> float:
        return float(f"{float(text):.5g}")

    return json.loads(json.dumps(facts), parse_float=to_five_digits)


def digest(facts: Any) -> str:
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def image_losses(outputs: HostArray, labels: HostArray, temperature: float = 1.0) -> HostArray:
    """The cross-entropy of each image."""
    scaled = Tensor(outputs.astype("float64") / temperature)
    return F.cross_entropy(scaled, labels, "none").numpy()


def best_temperature(outputs: HostArray, labels: HostArray) -> float:
    """The temperature with the least loss, between 0.01 and 100: a bisection, as the loss is convex
    in its inverse.

    >>> import numpy as np
    >>> logits, labels = np.array([[np.log(9.0), 0.0]] * 4), np.array([0, 0, 0, 1])
    >>> round(best_temperature(logits, labels), 6)  # log 9 / log 3
    2.0
    """
    of_label = outputs[np.arange(len(labels)), labels].astype("float64")
    below_largest = outputs - outputs.max(axis=1, keepdims=True)  # so that exp cannot overflow
    low, high = math.log(0.01), math.log(100.0)
    for _ in range(50):
        middle = (low + high) / 2
        weights = np.exp(below_largest / math.exp(middle))
        expected = (weights * outputs).sum(axis=1) / weights.sum(axis=1)
        # the derivative of the loss with respect to the inverse temperature
        slope = (expected - of_label).mean()
        if slope > 0:
            low = middle
        else:
            high = middle
    return math.exp(middle)


class Passed(NamedTuple):
    """What a pass of images through a network gives."""

    outputs: HostArray  # (N, classes)
    # for each convolution, those of the features that arrive at it: (C,)
    means: list[HostArray]
    deviations: list[HostArray]


@no_grad()
def passed_through(model: nn.Sequential, images: HostArray) -> Passed:
    """The outputs for images, and the mean and the standard deviation of each feature that arrives
    at each convolution."""
    home = next(model.parameters()).data
    outputs: list[HostArray] = []
    sums: dict[int, Array] = {}
    squares: dict[int, Array] = {}
    for start in range(0, len(images), CHUNK):
        x = Tensor(from_host(images[start : start + CHUNK], like=home))
        for i, layer in enumerate(model):
            if isinstance(layer, nn.Conv2d | nn.NormPropConv2d):
                of_images = x.data.mean(axis=(2, 3), dtype="float64")  # (N, C, H, W) -> (N, C)
                sums[i] = sums.get(i, 0.0) + of_images.sum(axis=0)  # (N, C) -> (C,)
                of_squares = (x.data * x.data).mean(axis=(2, 3), dtype="float64")
                squares[i] = squares.get(i, 0.0) + of_squares.sum(axis=0)
            x = layer(x)
        outputs.append(to_numpy(x.data))
    means = [to_numpy(total) / len(images) for total in sums.values()]
    deviations = []
    for mean, total in zip(means, squares.values(), strict=True):
        variance = to_numpy(total) / len(images) - mean**2
        deviations.append(np.sqrt(variance.clip(0.0)))
    return Passed(np.concatenate(outputs), means, deviations)


class StepWithLosses(TrainingStep):
    """A step that remembers the loss of each batch."""

    losses: list[Array]

    def __call__(self, x: Any, labels: Any) -> Array:
        loss = super().__call__(x, labels)
        self.losses.append(loss)
        return loss


class RecordedRun(Run):
    """A run whose result is a record."""

    def __init__(self, config: Config, out: Path, root: Path | None = None):
        super().__init__(config, out, root=root, say=lambda line: None)
        for entry in overrides():
            entry.used = False
        self.step: StepWithLosses = StepWithLosses(
            self.model, self.optimizer, threads=config.threads
        )
        self.step.losses = []
        self.step.constrain = not config.unconstrained
        self.sets = {"test": self.test}
        if self.valid:
            self.sets = {"validation": self.valid, "test": self.test}
        self.first = next(iter(self.sets))  # the set on which mean inputs are measured
        self.passed: dict[str, Passed] = {}  # at the last evaluation
        self.averaged_outputs: dict[str, HostArray] = {}  # of averaged weights, on each set

    def build(self, config: Config, own: nn.Module | None) -> nn.Sequential:
        """A registered spec is one for all data sets: it has as many outputs as the data need."""
        if config.spec is not None:
            spec = with_outputs(config.spec, len(self.train.classes))
            config = replace(config, spec=spec)
        return super().build(config, own)

    def save(self) -> None:
        """The losses first: `resume` drops those that a checkpoint does not know of."""
        losses = np.array(self.losses(), "<f4")
        write_whole(self.out / "losses.f4", losses.tobytes())
        super().save()

    def losses(self) -> list[float]:
        """Of all steps so far."""
        return [float(loss) for loss in self.step.losses]

    def resume(self) -> None:
        super().resume()
        if not self.signals:
            self.measure_start()
        steps_per_epoch = math.ceil(len(self.train) / self.config.batch_size)
        steps = self.epoch * steps_per_epoch + self.batch
        if steps:
            losses = np.frombuffer((self.out / "losses.f4").read_bytes(), "<f4")
            self.step.losses = list(losses[:steps])

    def measure_start(self) -> None:
        """The rows of epoch 0, in training mode, as running statistics have seen nothing yet. The
        network and the random generator are restored."""
        state = {name: array.copy() for name, array in self.model.state_dict().items()}
        random_state = generator().bit_generator.state
        images = self.sets[self.first].images
        whole_chunks = len(images) // CHUNK * CHUNK
        if whole_chunks:  # batch statistics are then all of CHUNK images
            images = images[:whole_chunks]
        self.passed[self.first] = passed_through(self.model, images)
        self.signals = [{"epoch": 0, **row} for row in self.measure()]
        self.model.load_state_dict(state)
        generator().bit_generator.state = random_state

    def show_epoch(self) -> None:
        """Nothing: there may be many runs side by side."""

    def draw_curves(self) -> None:
        """None: the pages about the experiments have theirs."""

    def evaluate(self, name: str, images: Dataset) -> dict[str, float]:
        with nn.evaluating():
            self.passed[name] = passed_through(self.model, images.images)
        outputs = self.passed[name].outputs
        wrong_class = outputs.argmax(axis=1) != images.labels
        not_finite = ~np.isfinite(outputs).all(axis=1)  # NaN is not a class
        wrong = wrong_class | not_finite
        losses = image_losses(outputs, images.labels)
        return {f"{name}_loss": float(losses.mean()), f"{name}_error": float(wrong.mean())}

    def measure(self) -> list[dict[str, Any]]:
        """A row for each convolution. Those of the epoch before lose their means, which only this
        epoch needs."""
        means_before = {}
        for row in self.signals:
            if "means" in row:
                means_before[row["layer"]] = np.array(row.pop("means"))
        rows = []
        passed = self.passed[self.first]
        measured = zip(passed.means, passed.deviations, strict=True)
        for layer, (means, deviations) in enumerate(measured, start=1):
            change = means - means_before.get(layer, means)
            rows.append(
                {
                    "layer": layer,
                    "size": float(abs(means).mean()),
                    "moved": float(abs(change).mean()),
                    "spread": float(deviations.mean()),
                    "means": means.tolist(),
                    "sources": sources(),  # another version may resume the run
                    "at": now(),
                }
            )
        return rows

    def finish(self) -> None:
        for name, images in self.sets.items():
            if name not in self.passed:  # it was stopped between the last epoch and here
                self.evaluate(name, images)
            if not np.isfinite(self.passed[name].outputs).all():
                raise DivergenceError(
                    "outputs that are not finite", "they are numbers", "a smaller learning rate"
                )

    def evaluate_average(self) -> dict[str, float]:
        """Of the network with averaged weights. Its temperature is its own, so that it is judged as
        the other is."""
        self.averaged_outputs = {}
        network = self.averaged()
        assert isinstance(network, nn.Sequential)
        with nn.evaluating():
            for name, images in self.sets.items():
                self.averaged_outputs[name] = passed_through(network, images.images).outputs
        outputs = self.averaged_outputs["test"]
        losses = image_losses(outputs, self.test.labels)
        wrong = outputs.argmax(axis=1) != self.test.labels
        return {
            "averaged_test_loss": float(losses.mean()),
            "averaged_test_error": float(wrong.mean()),
        }

    def averaged_evaluation(self) -> Evaluation | None:
        """None in a run that does not average."""
        if self.average is None:
            return None
        if not self.averaged_outputs:  # it was stopped between the last epoch and here
            self.evaluate_average()
        temperature = 1.0
        if self.valid:
            outputs = self.averaged_outputs["validation"]
            temperature = best_temperature(outputs, self.valid.labels)
        return Evaluation.of(self.averaged_outputs["test"], self.test.labels, temperature)

    def record(self, diverged: dict[str, Any] | None, registration: str | None = None) -> Record:
        history = [row for row in self.history if all(map(math.isfinite, row.values()))]
        all_sources = dict.fromkeys(row.get("sources", "?") for row in self.signals)  # each once
        sets = {"train": self.train, **self.sets}
        record = Record(
            config=self.config,
            versions=versions() | {"sources": " ".join(all_sources)},
            machine=machine(),
            overrides=[str(entry) for entry in overrides() if entry.used],
            images={name: len(images) for name, images in sets.items()},
            history=history,
            losses=self.averaged_losses(),
            layers=self.layers(epochs=len(history)),
            diverged=diverged,
            started=self.signals[0].get("at") if self.signals else None,
            ended=now(),
            commit=commit(),
            registration=registration,
        )
        if diverged:
            return record
        temperature = 1.0
        if self.valid:
            temperature = best_temperature(self.passed["validation"].outputs, self.valid.labels)
        evaluations = {}
        for name, images in self.sets.items():
            outputs = self.passed[name].outputs
            evaluations[name] = Evaluation.of(outputs, images.labels, temperature)
        return replace(
            record,
            temperature=temperature,
            validation=evaluations.get("validation"),
            test=evaluations["test"],
            averaged=self.averaged_evaluation(),
        )

    def averaged_losses(self) -> list[float]:
        """The training losses, averaged over windows of steps."""
        losses = np.array(self.losses())
        window = max(50, WINDOW // self.config.batch_size)
        starts = range(0, len(losses), window)
        return [float(losses[start : start + window].mean()) for start in starts]

    def layers(self, epochs: int) -> list[Layer]:
        """The signals up to this epoch, layer by layer."""
        layers: dict[int, Layer] = {}
        for row in self.signals:
            if row["epoch"] > epochs:
                continue
            layer = layers.setdefault(row["layer"], Layer(row["layer"], [], [], []))
            layer.size.append(row["size"])
            layer.moved.append(row["moved"])
            if "spread" in row:
                layer.spread.append(row["spread"])
        return [layers[i] for i in sorted(layers)]
