"""The training loop: it can be stopped at any moment, and resumes to the same bits."""

import hashlib
import math
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from .. import data, nn, optim
from ..engine.arrays import Array, array_module, from_host, to_numpy, use_backend
from ..engine.errors import DivergenceError, StateError, explain
from ..engine.loading import same_reference
from ..engine.random import generator, manual_seed, new_generator
from ..engine.tensor import Tensor
from ..nn.measured import has_refresh
from ..parallel.executors import stop_on_signals
from ..parallel.ranks import Ranks
from ..report.environment import versions
from ..report.files import TEMPORARY, locked, remove, write_csv, write_json
from ..report.saving import save
from . import checkpoint
from .average import AveragedWeights, measure_again
from .check import SUMS, write_sums
from .config import FIXED, Config, network
from .step import TrainingStep, evaluate

REFRESH, FIXED_IMAGES = 10, 50  # unless the config says otherwise
SHOWN = 200  # test images whose signals are recorded after each epoch


class Run:
    """A training in a folder: its config, log, checkpoints, final weights and curves.

    The order of the images, and which are flipped, follow from the seed and the number of the epoch
    alone.

    >>> from pathlib import Path
    >>> run = tp.train.Run(tp.train.Config(epochs=1, train_size=100), Path("runs/first"))
    >>> len(run.train), run.epoch
    (100, 0)
    """

    SAVE_SECONDS = 60.0  # between checkpoints within an epoch

    # another reason to stop, asked after each step
    should_stop: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(
        self,
        config: Config,
        out: Path,
        root: Path | None = None,
        say: Callable[[str], None] = tqdm.write,
        ranks: Ranks | None = None,
    ):
        self.config, self.out, self.ranks = config, out, ranks or Ranks()
        self.say = say if self.ranks.first else lambda line: None
        self.train, self.test = (data.load(config.data, root, split) for split in ("train", "test"))
        self.valid = data.load(config.data, root, "valid") if config.validation else None
        if config.train_size is not None:
            if config.train_size > len(self.train):
                got, rule = (
                    f"train_size = {config.train_size}",
                    f"{config.data} has {len(self.train)} training images",
                )
                raise ValueError(explain(got, rule, f"train_size = {len(self.train)}, or none"))
            order = new_generator([config.seed, len(self.train)]).permutation(len(self.train))
            # the same for every network of this seed
            self.train = self.train.subset(order[: config.train_size])
        if config.data_norm == "batch" and (len(self.train) - 1) % config.batch_size == 0:
            got = (
                f"data_norm = 'batch' with {len(self.train)} images in batches of "
                f"{config.batch_size}"
            )
            rule = "the last batch would be one image, which has no standard deviation"
            raise ValueError(explain(got, rule, "another batch_size, or data_norm = 'global'"))
        if config.test_size is not None:
            self.test = self.test.first(config.test_size)
        if config.shrink > 1:
            self.train = self.train.shrunk(config.shrink)
            self.test = self.test.shrunk(config.shrink)
            if self.valid is not None:
                self.valid = self.valid.shrunk(config.shrink)
        manual_seed(config.seed)
        with use_backend(config.backend):
            self.model = network(config, self.train.images, len(self.train.classes))
        parameters = list(self.model.parameters())
        if config.optimizer == "sgd":
            self.optimizer: optim.Optimizer = optim.SGD(
                parameters, config.lr, config.momentum, config.weight_decay
            )
        else:
            self.optimizer = optim.RMSProp(
                parameters, config.lr, config.alpha, weight_decay=config.weight_decay
            )
        if config.decay_on == "weights":
            self.optimizer.decays = lambda p: p.ndim > 1
        self.fixed = self.fixed_images()
        # what has arrays of its own in a checkpoint
        self.parts: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}
        self.average = None
        if config.average is not None:
            self.average = self.parts["average"] = AveragedWeights(self.model)
        # "linear" sets the rate before each step
        self.schedule: optim.HalveEvery | optim.HalveOnPlateau | None = None
        if config.schedule != "linear":
            halve, plateau = (
                optim.HalveEvery(config.halve_every),
                optim.HalveOnPlateau(config.patience),
            )
            self.schedule = halve if config.schedule == "halve" else plateau
        self.step = TrainingStep(
            self.model, self.optimizer, threads=config.threads, ranks=self.ranks
        )
        self.step.constrain = not config.unconstrained
        self.threads = self.step.threads
        self.history: list[dict[str, float]] = []  # a row for each finished epoch
        self.signals: list[dict[str, Any]] = []  # a row for each layer and finished epoch
        # batches done in the present epoch, and the sum of their losses
        self.batch, self.loss = 0, 0.0
        sets = filter(None, (self.train, self.valid, self.test))
        self.random = generator().bit_generator.state
        self.fingerprint = digest(array for some in sets for array in (some.images, some.labels))

    def fixed_images(self) -> Array | None:
        """The images that layers measure every so many steps; None if none does."""
        config = self.config
        if not has_refresh(self.model):
            for name in ("refresh", "fixed_images"):
                if getattr(config, name) is not None:
                    got = f"{name} = {getattr(config, name)} with norm = {config.norm!r}"
                    rule = "it is for layers that measure fixed images, which this network has not"
                    raise ValueError(explain(got, rule, "norm = 'normprop-measured'"))
            return None
        count = config.fixed_images or min(FIXED_IMAGES, len(self.train))
        if count > len(self.train):
            got = f"fixed_images = {count}"
            rule = f"there are {len(self.train)} training images"
            raise ValueError(explain(got, rule, f"fixed_images = {len(self.train)}"))
        order = new_generator([config.seed, len(self.train), 1]).permutation(len(self.train))
        like = next(self.model.parameters()).data
        return from_host(self.train.images[order[:count]], like=like)

    def refresh(self) -> None:
        """Let layers measure the fixed images anew, if it is time. All ranks do it alike."""
        if self.fixed is None:
            return
        done = self.epoch * self.batches_per_epoch + self.batch
        if done % (self.config.refresh or REFRESH) == 0:
            with self.step.threads_for_kernels():
                nn.refresh(self.model, self.fixed)

    def set_rate(self) -> None:
        """The learning rate of the next step, where it changes within an epoch."""
        config = self.config
        progress = self.epoch + self.batch / self.batches_per_epoch  # in epochs
        if config.schedule == "linear":
            self.optimizer.lr = config.lr * (1.0 - progress / config.epochs)
        elif config.anneal is not None and self.epoch >= self.epochs_before_annealing:
            start = self.epochs_before_annealing
            rate = config.lr * 0.5 ** (start // config.halve_every)
            self.optimizer.lr = rate * (1.0 - (progress - start) / config.anneal)

    @property
    def epochs_before_annealing(self) -> int:
        """How many epochs there are before the rate is annealed."""
        return self.config.epochs - (self.config.anneal or 0)

    @property
    def is_averaging(self) -> bool:
        """Whether the weights of this epoch are averaged."""
        end = self.epochs_before_annealing
        return end - (self.config.average or 0) <= self.epoch < end

    @property
    def batches_per_epoch(self) -> int:
        return -(-len(self.train) // self.config.batch_size)

    @property
    def epoch(self) -> int:
        return len(self.history)

    @property
    def batches_done(self) -> float:
        """In the present epoch, as far as its loss is concerned: a last one that is smaller counts
        for less."""
        return min(self.batch, len(self.train) / self.config.batch_size)

    def run(self, resume: bool = False) -> bool:
        """Train to the last epoch, or until Ctrl-C or SIGTERM; whether the last epoch was
        reached."""
        with ExitStack() as stack, stop_on_signals() as signalled:
            self.ranks.from_first(lambda: stack.enter_context(locked(self.out)))
            self.ranks.check_same("images", self.fingerprint)
            # whatever was drawn since the run was made
            generator().bit_generator.state = self.random
            self.resume() if resume else self.ranks.from_first(self.refuse_to_overwrite)
            self.ranks.from_first(self.tidy_up)
            while self.epoch < self.config.epochs:
                if not self.run_epoch(signalled):
                    self.save()
                    return False
                self.finish_epoch()
            if "test_error" not in self.history[-1]:  # there were to be more epochs
                self.history[-1] |= self.evaluate("test", self.test)
                self.save()
                self.write_logs()
            self.finish()
        return True

    def tidy_up(self) -> None:
        """Make the directory ready for the run."""
        for path in self.out.iterdir():
            # left by a process that was killed while it wrote
            if path.name == SUMS or TEMPORARY.fullmatch(path.name):
                remove(path)
        write_json(self.out / "config.json", asdict(self.config) | versions())
        self.write_logs()  # they may be an epoch behind the checkpoint

    def run_epoch(self, signalled: Callable[[], bool]) -> bool:
        """The batches that are left of the present epoch; False if stopped before the end."""
        self.ranks.should_stop = lambda: signalled() or self.should_stop()
        config, number = self.config, self.batches_per_epoch
        random = new_generator([config.seed, self.epoch])
        batches = data.batches(self.train, config.batch_size, random, config.flip)
        title = f"epoch {self.epoch + 1}/{config.epochs}"
        on_host = config.backend == "numpy"
        self.started, self.images, saved = time.perf_counter(), 0, time.perf_counter()
        with tqdm(
            total=number, initial=self.batch, desc=title, unit="batch", disable=None, leave=False
        ) as bar:
            for images, labels in data.prefetched(
                islice(batches, self.batch, None), config.backend
            ):
                self.set_rate()
                self.refresh()
                try:
                    loss, part = self.step(images, labels), len(images) / config.batch_size
                    # in float64, as a float, or on the device
                    wide_loss = float(loss) if on_host else loss.astype("float64")
                    self.loss += wide_loss if part == 1.0 else wide_loss * part
                    look = (
                        on_host
                        or (self.batch + 1) % config.read_every == 0
                        or self.batch + 1 == number
                    )
                    if look and not math.isfinite(float(self.loss)):
                        raise DivergenceError(
                            "a loss that is not finite", "it must be", "a smaller learning rate"
                        )
                except DivergenceError as error:
                    where = f"step {self.batch + 1} of epoch {self.epoch + 1}"
                    raise DivergenceError(f"{error.args[0]}, at {where}", *error.args[1:]) from None
                if self.average is not None and self.is_averaging:
                    self.average.add()
                self.batch += 1
                self.images += len(images)
                if look:
                    rate = self.images / (time.perf_counter() - self.started)
                    mean = float(self.loss) / self.batches_done
                    bar.set_postfix(loss=f"{mean:.3f}", images=f"{rate:.0f}/s", refresh=False)
                bar.update()
                if (look or self.ranks.size == 1) and self.ranks.all_should_stop():
                    return False
                if time.perf_counter() - saved > self.SAVE_SECONDS:
                    self.save()
                    saved = time.perf_counter()
        return True

    def finish_epoch(self) -> None:
        """Measure, log, move on to the next epoch, and save."""
        seconds, loss = time.perf_counter() - self.started, float(self.loss) / self.batches_done
        row = {"epoch": self.epoch + 1, "lr": self.optimizer.lr, "train_loss": loss}
        with np.errstate(all="ignore"):  # if the numbers run away, the next step says so
            if self.valid is not None:
                row |= self.evaluate("validation", self.valid)
            if self.valid is None or row["epoch"] == self.config.epochs:
                row |= self.evaluate("test", self.test)
            if self.average is not None and row["epoch"] == self.config.epochs:
                row |= self.evaluate_average()
            with nn.evaluating():
                self.signals += [{"epoch": row["epoch"], **signal} for signal in self.measure()]
        self.history.append(row | {"images_per_second": self.images / seconds})
        if self.schedule is not None:
            self.schedule.epoch_ended(self.optimizer, loss)
        self.batch, self.loss = 0, 0.0
        self.ranks.check_same("weights", digest(self.model.state_dict().values()))
        self.save()
        self.write_logs()
        self.say(in_words(self.history[-1], self.config.epochs))

    def write_logs(self) -> None:
        if self.history and self.ranks.first:
            write_csv(self.out / "log.csv", self.history)
            write_csv(self.out / "signals.csv", self.signals)

    def evaluate(self, name: str, images: data.Dataset) -> dict[str, float]:
        loss, error = evaluate(
            self.model, images.images, images.labels, self.config.threads, self.ranks
        )
        return {f"{name}_loss": loss, f"{name}_error": error}

    def averaged(self) -> nn.Module:
        """The network with averaged weights. What its layers measured is measured again."""
        assert self.average is not None
        network = self.average.network()
        like = next(network.parameters()).data
        batches = data.batches(self.train, self.config.batch_size)
        with self.step.threads_for_kernels():
            if self.fixed is not None:
                nn.refresh(network, self.fixed)
            measure_again(network, (from_host(images, like=like) for images, _ in batches))
        return network

    def evaluate_average(self) -> dict[str, float]:
        """The test loss and error of the network with averaged weights, which is saved, too."""
        network = self.averaged()
        if self.ranks.first:
            save(self.out / "averaged.safetensors", network.state_dict())
        loss, error = evaluate(
            network, self.test.images, self.test.labels, self.config.threads, self.ranks
        )
        return {"averaged_test_loss": loss, "averaged_test_error": error}

    def measure(self) -> list[dict[str, Any]]:
        """What is recorded of each layer after an epoch, in evaluation mode: rows of the same
        columns."""
        few = from_host(self.test.images[:SHOWN], like=next(self.model.parameters()).data)
        found = [asdict(signal) for signal in nn.signals(self.model, Tensor(few))]
        return [{name: value for name, value in row.items() if value is not None} for row in found]

    def finish(self) -> None:
        """What a run leaves when it is done, besides its log."""
        if not self.ranks.first:
            return
        from ..report import plots  # only now: these load matplotlib
        from . import figures

        save(self.out / "model.safetensors", self.model.state_dict())
        for kind in ("png", "svg"):
            plots.save(figures.training_curves(self.history), self.out / f"curves.{kind}")
        write_sums(self.out)

    def save(self) -> None:
        """Everything that the rest of the run depends on; a state that is not finite is never
        saved."""
        arrays = {
            f"{owner}.{k}": v
            for owner, part in self.parts.items()
            for k, v in part.state_dict().items()
        }
        for name, value in arrays.items():
            if name.startswith("model.") and not array_module(value).isfinite(value).all():
                raise DivergenceError(
                    f"{name} that is not finite, after step {self.batch} of epoch {self.epoch + 1}",
                    "what is saved is finite; the checkpoint before is still there",
                    "a smaller learning rate",
                )
        if not self.ranks.first:
            return
        facts = {
            "config": asdict(self.config),
            "batch": self.batch,
            "loss": float(self.loss),
            "lr": float(self.optimizer.lr),
            "schedule": vars(self.schedule) if self.schedule else {},
            "generator": generator().bit_generator.state,
            "history": self.history,
            "signals": self.signals,
            "data": self.fingerprint,
            "versions": versions(),
            "threads": self.threads,
            "ranks": self.ranks.size,
            "averaged": self.average.count if self.average else 0,
        }
        checkpoint.write(self.out, arrays, facts)

    def resume(self) -> None:
        """Continue from the newest checkpoint that is whole; without any, from the start."""
        found = self.ranks.from_first(self.newest)
        if found is None:
            return
        facts = found.facts
        for owner, part in self.parts.items():
            named = {name.partition("."): array for name, array in found.arrays.items()}
            part.load_state_dict(
                {name: array for (whose, _, name), array in named.items() if whose == owner}
            )
        self.history, self.signals = facts["history"], facts["signals"]
        self.batch, self.loss, self.optimizer.lr = facts["batch"], facts["loss"], facts["lr"]
        if self.average is not None:
            self.average.count = facts["averaged"]
        if self.schedule is not None:
            vars(self.schedule).update(facts["schedule"])
        generator().bit_generator.state = facts["generator"]

    def newest(self) -> checkpoint.Checkpoint | None:
        """The newest checkpoint that is whole, if it is one of this run."""
        whole, complaints = checkpoint.read_all(self.out)
        for complaint in complaints:
            self.say(f"tinyprop: passed over {complaint}")
        if complaints and not whole:
            raise StateError(
                f"{self.out}, none of whose {len(complaints)} checkpoints can be used",
                "a run is resumed from a whole checkpoint; nothing was changed",
                "another output directory, or copy a checkpoint back",
            )
        if whole:
            self.compare(whole[-1].facts)
        return whole[-1] if whole else None

    def compare(self, facts: dict[str, Any]) -> None:
        """Refuse to continue another run; mention what may change the last bits."""
        now, then = asdict(self.config), facts["config"]
        config = self.config
        needs_end = config.schedule == "linear" or config.average or config.anneal
        for name in [*FIXED, "epochs"] if needs_end else FIXED:
            if not same_reference(now[name], then[name]):
                self.refuse(f"{name} = {now[name]!r}", f"{name} = {then[name]!r}")
        begun = len(facts["history"]) + (facts["batch"] > 0)
        if self.config.epochs < begun:
            self.refuse(f"epochs = {self.config.epochs}", f"epochs >= {begun}")
        if facts["data"] != self.fingerprint:
            self.refuse(
                "other images or labels", f"{self.config.data} with the digest {facts['data'][:8]}"
            )
        for name, here in (("versions", versions()), ("ranks", self.ranks.size)):
            there = facts[name]
            if here != there:
                self.say(
                    f"tinyprop: resumed with other {name}, so the last bits may differ: "
                    f"{here}, before {there}"
                )

    def refuse(self, now: str, then: str) -> None:
        got, rule = (
            f"{now} for the run in {self.out}, which has {then}",
            "a run is continued as it began",
        )
        raise StateError(got, rule, f"{then}, or another output directory")

    def refuse_to_overwrite(self) -> None:
        if checkpoint.paths(self.out):
            got, hint = (
                f"{self.out}, which holds a run",
                "--resume to continue it, or another --out",
            )
            raise StateError(got, "a run is not overwritten", hint)


def in_words(row: dict[str, float], epochs: int) -> str:
    """A line about an epoch."""
    errors = [
        f"{name} error {row[key]:.2%}"
        for name in ("validation", "test")
        if (key := f"{name}_error") in row
    ]
    rate = f"{row['images_per_second']:,.0f} images/s"
    return ", ".join(
        [f"epoch {row['epoch']}/{epochs}: loss {row['train_loss']:.3f}", *errors, rate]
    )


def digest(arrays: Iterable[Array]) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(to_numpy(array)).data)
    return found.hexdigest()
