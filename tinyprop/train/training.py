"""What a run trains: its data, network and optimizer, where it is, and what is measured of it."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import data as data_room
from .. import nn
from ..engine.arrays import Array, from_host, to_numpy, use_backend
from ..engine.errors import explain
from ..engine.random import generator, manual_seed, new_generator
from ..engine.tensor import Tensor
from ..nn.measured import has_refresh
from ..parallel.ranks import Ranks
from .average import AveragedWeights, measure_again
from .config import GIVEN, Config
from .network import network
from .own import describe, make_network, reference_to
from .samples import load_samples
from .schedule import Schedule, optimizer_for
from .step import TrainingStep, evaluate

REFRESH, FIXED_IMAGES = 10, 50  # unless the config says otherwise
SHOWN = 200  # test images whose signals are recorded after each epoch


class Training:
    """Everything that a config describes, ready to be trained."""

    def __init__(
        self,
        config: Config,
        model: nn.Module | None = None,
        data: Any = None,
        root: Path | None = None,
        ranks: Ranks | None = None,
    ):
        self.config = config = with_given(config, model, data)
        self.root = root
        self.ranks = ranks or Ranks()

        self.samples = load_samples(config, data, root)
        self.train, self.valid, self.test = (
            self.samples.train,
            self.samples.valid,
            self.samples.test,
        )
        self.fingerprint = self.samples.fingerprint

        manual_seed(config.seed)
        with use_backend(config.backend):
            own = own_network(config, model)
            self.description = [] if own is None else describe(own)
            self.model = self.build(config, own)
        self.optimizer = optimizer_for(self.model, config)
        self.schedule = Schedule(config)
        self.fixed = fixed_images(config, self.model, self.train)
        self.average = None if config.average is None else AveragedWeights(self.model)
        self.step = TrainingStep(
            self.model, self.optimizer, threads=config.threads, ranks=self.ranks
        )
        self.step.constrain = not config.unconstrained
        self.threads = self.step.threads
        self.random = generator().bit_generator.state

        self.history: list[dict[str, float]] = []  # a row for each finished epoch
        self.signals: list[dict[str, Any]] = []  # a row for each layer and finished epoch
        self.reset_epoch()

    def reset_epoch(self) -> None:
        """Nothing is done of the next epoch."""
        self.batch = 0  # how many are done in the present epoch
        self.loss: Any = 0.0  # the sum of their losses
        self.wrong = 0  # images of theirs that the network got wrong
        self.counted = 0  # images that it could get wrong

    def build(self, config: Config, own: nn.Module | None) -> nn.Sequential:
        """The network, with its data normalisation in front."""
        return network(config, self.train.images, len(self.train.classes), own)

    @property
    def epoch(self) -> int:
        """How many are done."""
        return len(self.history)

    @property
    def batches_per_epoch(self) -> int:
        return -(-len(self.train) // self.config.batch_size)

    @property
    def epochs_done(self) -> float:
        """With the part of the present one that is done."""
        return self.epoch + self.batch / self.batches_per_epoch

    @property
    def batches_counted(self) -> float:
        """Those that are done in the present epoch, as far as its loss is concerned: a last one
        that is smaller counts for less."""
        return min(self.batch, len(self.train) / self.config.batch_size)

    @property
    def mean_loss(self) -> float:
        """Of the present epoch so far."""
        return float(self.loss) / self.batches_counted

    def count_errors(self, labels: Array) -> None:
        """Add what the last step got wrong to the training error of the epoch. It is measured in
        training mode with the weights of that step, as the loss is, and so costs next to nothing;
        on a device, after the steps whose loss is read. Each rank counts those of its share."""
        outputs = self.step.last_outputs
        if outputs is None:
            return
        mine = labels[self.ranks.share(len(labels))]
        wrong = np.count_nonzero(to_numpy(outputs).argmax(axis=1) != mine)
        self.wrong += int(self.ranks.add_up(np.array(float(wrong))))
        self.counted += len(labels)

    def errors_of_steps(self) -> dict[str, float]:
        """The training error of the epoch; none if it was begun by a version that did not count."""
        return {"train_error": self.wrong / self.counted} if self.counted else {}

    @property
    def is_on_host(self) -> bool:
        return self.config.backend == "numpy"

    def reads_loss(self, batch: int) -> bool:
        """Whether the loss is read after this batch of the epoch. On a device, reading it waits for
        the device, so it is read now and then."""
        is_last = batch == self.batches_per_epoch
        return self.is_on_host or batch % self.config.read_every == 0 or is_last

    def refresh(self) -> None:
        """Let layers measure the fixed images anew, if it is time. All ranks do it alike."""
        if self.fixed is None:
            return
        done = self.epoch * self.batches_per_epoch + self.batch
        if done % (self.config.refresh or REFRESH) == 0:
            with self.step.threads_for_kernels():
                nn.refresh(self.model, self.fixed)

    def evaluate(self, name: str, images: data_room.Dataset) -> dict[str, float]:
        loss, error = evaluate(
            self.model, images.images, images.labels, self.config.threads, self.ranks
        )
        return {f"{name}_loss": loss, f"{name}_error": error}

    def averaged(self) -> nn.Module:
        """The network with averaged weights. What its layers measured is measured again."""
        assert self.average is not None
        network = self.average.network()
        like = next(network.parameters()).data
        batches = data_room.batches(self.train, self.config.batch_size)
        with self.step.threads_for_kernels():
            if self.fixed is not None:
                nn.refresh(network, self.fixed)
            measure_again(network, (from_host(images, like=like) for images, _ in batches))
        return network

    def measure(self) -> list[dict[str, Any]]:
        """What is recorded of each layer after an epoch, in evaluation mode: rows of the same
        columns."""
        few = from_host(self.test.images[:SHOWN], like=next(self.model.parameters()).data)
        found = [asdict(signal) for signal in self.layer_signals(Tensor(few))]
        return [{name: value for name, value in row.items() if value is not None} for row in found]

    def layer_signals(self, x: Tensor) -> list[nn.Signal]:
        """The signal after each layer; of a network of the user's own, after each that it calls."""
        signals = nn.signals(self.model, x)
        if self.config.net is None:
            return signals
        *before, own = self.model
        for layer in before:
            x = layer(x)
        inside = []
        for signal in nn.signals(own, x):
            joint = "." if " " in signal.layer else " "  # "a Linear" is inside, "Net" is the whole
            inside.append(replace(signal, layer=f"{len(before)}{joint}{signal.layer}"))
        return [*signals[:-1], *inside]


def with_given(config: Config, model: nn.Module | None, data: Any) -> Config:
    """The config with what was given in place of a network or data that it describes. What it says
    of these must not be ignored."""
    if model is not None:
        if not isinstance(model, nn.Module):
            hint = "Net(), an object" if isinstance(model, type) else "a subclass of tp.nn.Module"
            got = f"Run with model={model!r}"
            raise TypeError(explain(got, "it is a network, a tp.nn.Module", hint))
        if config.net is not None:
            got = f"net = {config.net!r}, and a network that is given"
            raise ValueError(explain(got, "there is one network", "leave out one of them"))
        config = replace(config, net=reference_to(model))
    if data is not None:
        is_default = config.data in (Config().data, GIVEN)
        if not is_default:
            got = f"data = {config.data!r}, and data that are given"
            raise ValueError(explain(got, "there is one data set", "leave out one of them"))
        config = replace(config, data=GIVEN)
    return config


def own_network(config: Config, model: nn.Module | None) -> nn.Module | None:
    """The network that was given, or that the config names; None if the settings describe it."""
    if model is not None:
        return model.to(config.backend)
    return None if config.net is None else make_network(config.net)


def fixed_images(config: Config, model: nn.Module, train: data_room.Dataset) -> Array | None:
    """The images that layers measure every so many steps; None if none does."""
    if not has_refresh(model):
        for name in ("refresh", "fixed_images"):
            if getattr(config, name) is not None:
                got = f"{name} = {getattr(config, name)} with norm = {config.norm!r}"
                rule = "it is for layers that measure fixed images, which this network has not"
                raise ValueError(explain(got, rule, "norm = 'normprop-measured'"))
        return None
    count = config.fixed_images or min(FIXED_IMAGES, len(train))
    if count > len(train):
        got = f"fixed_images = {count}"
        rule = f"there are {len(train)} training images"
        raise ValueError(explain(got, rule, f"fixed_images = {len(train)}"))
    order = new_generator([config.seed, len(train), 1]).permutation(len(train))
    like = next(model.parameters()).data
    return from_host(train.images[order[:count]], like=like)
