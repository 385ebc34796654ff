"""The training loop: it can be stopped at any moment, and resumes to the same bits."""

import hashlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.std import tqdm

from .. import data as data_room
from .. import nn
from ..engine.arrays import Array, array_module, to_numpy
from ..engine.errors import DivergenceError, StateError
from ..engine.loading import is_importing
from ..engine.random import generator, new_generator
from ..nn.summary import counted
from ..parallel.executors import stop_on_signals
from ..parallel.ranks import Ranks
from ..report.environment import versions
from ..report.files import TEMPORARY, locked, remove, write_json
from ..report.saving import save
from . import checkpoint
from .check import SUMS, write_sums
from .config import Config
from .display import Curves, Display, choose_display
from .log import Log
from .network import check_last_batch
from .show import show_run
from .step import evaluate
from .training import Training


class Run(Training):
    """A training in a folder: its config, log, checkpoints, final weights and curves.

    `model` is a network of your own; it is trained in place of the one that the settings describe.
    `data` is a `tp.data.Dataset`, or a dictionary of them by split, in place of the data set that
    the config names. The order of the images, and which are flipped, follow from the seed and the
    number of the epoch alone.

    The log has train_loss and train_error of the steps of each epoch, in training mode, and errors
    on other images after it. curves.png is drawn again after an epoch if that takes less than 1 %
    of the time since the last drawing (5 % in a notebook), and always at the end.

    >>> run = tp.train.Run(tp.train.Config(epochs=1, train_size=100), "runs/first")
    >>> len(run.train), run.epoch
    (100, 0)
    >>> net = tp.nn.Sequential(tp.nn.Flatten(), tp.nn.Linear(3 * 32 * 32, 10))
    >>> run = tp.train.Run(tp.train.Config(epochs=1, train_size=100), "runs/own", model=net)
    >>> [type(layer).__name__ for layer in run.model]
    ['GlobalNormalizer', 'Sequential']
    """

    SAVE_SECONDS = 60.0  # between checkpoints within an epoch

    # another reason to stop, asked after each step
    should_stop: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(
        self,
        config: Config,
        out: str | Path,
        model: nn.Module | None = None,
        data: Any = None,
        *,
        root: Path | None = None,
        say: Callable[[str], None] = tqdm.write,
        ranks: Ranks | None = None,
    ):
        super().__init__(config, model, data, root, ranks)
        check_last_batch(self.config, self.model, self.train.images)
        self.out = Path(out)
        self.say = say if self.ranks.first else lambda line: None
        self.is_quiet = not self.ranks.first
        self.log = Log(self.out)
        self.curves = Curves(self.out / "curves.png")
        self.display = Display(config.epochs, self.batches_per_epoch)

    # -- the loop

    def run(self, resume: bool = False) -> bool:
        """Train to the last epoch, or until Ctrl-C or SIGTERM; whether the last epoch was
        reached."""
        refuse_while_importing(self.out)
        with ExitStack() as stack, stop_on_signals() as signalled:
            self.ranks.from_first(lambda: stack.enter_context(locked(self.out)))
            self.start(resume)
            stack.enter_context(self.ranks.asking(lambda: signalled() or self.should_stop()))
            self.display = stack.enter_context(self.new_display())
            while self.epoch < self.config.epochs:
                if not self.run_epoch():
                    self.stop()
                    return False
                self.finish_epoch()
            self.finish_run()
        return True

    def start(self, resume: bool) -> None:
        """From the newest checkpoint, or in an empty folder."""
        self.ranks.check_same("images", self.fingerprint)
        generator().bit_generator.state = self.random  # whatever was drawn since the run was made
        if resume:
            self.resume()
        else:
            self.ranks.from_first(lambda: self.check_folder(resume))
        self.ranks.from_first(self.tidy_up)
        for note in self.samples.notes:
            self.say(note)

    def run_epoch(self) -> bool:
        """The batches that are left of the present epoch; False if stopped before the end."""
        self.started = self.saved = time.perf_counter()
        self.images = 0
        self.display.start_epoch(self.epoch, self.batch)
        for images, labels in self.batches_left():
            self.schedule.before_step(self.optimizer, self.epochs_done)
            self.refresh()
            self.train_on(images, labels)
            if self.average is not None and self.schedule.is_averaging(self.epoch):
                self.average.add()
            if self.reads_loss(self.batch):
                self.display.step(self.batch, self.mean_loss, self.images_per_second)
            if self.is_stopped():
                return False
            if time.perf_counter() - self.saved > self.SAVE_SECONDS:
                self.save()
        return True

    def batches_left(self) -> Iterator[tuple[Array, Array]]:
        """The mini-batches of the present epoch that are still to come."""
        random = new_generator([self.config.seed, self.epoch])
        batches = data_room.batches(self.train, self.config.batch_size, random, self.config.flip)
        return data_room.prefetched(islice(batches, self.batch, None), self.config.backend)

    def train_on(self, images: Array, labels: Array) -> None:
        """One step (forward, backward, update), whose loss and errors are added to those of the
        epoch."""
        try:
            loss = self.step(images, labels)
            # in float64: as a float, or on the device
            wide_loss = float(loss) if self.is_on_host else loss.astype("float64")
            part = len(images) / self.config.batch_size
            self.loss += wide_loss if part == 1.0 else wide_loss * part
            if self.reads_loss(self.batch + 1) and not math.isfinite(float(self.loss)):
                raise DivergenceError(
                    "a loss that is not finite", "it must be", "a smaller learning rate"
                )
        except DivergenceError as error:
            got, rule, hint = error.args
            if self.config.net is not None:
                hint = hint.partition("; for norm=")[0]  # its layers are not chosen by a setting
            where = f"step {self.batch + 1} of epoch {self.epoch + 1}"
            raise DivergenceError(f"{got}, at {where}", rule, hint) from None
        self.batch += 1
        self.images += len(images)
        if self.reads_loss(self.batch):
            self.count_errors(labels)

    def finish_epoch(self) -> None:
        """Measure, log, move on to the next epoch, and save."""
        loss, rate = self.mean_loss, self.images_per_second
        row = {"epoch": self.epoch + 1, "lr": self.optimizer.lr, "train_loss": loss}
        row |= self.errors_of_steps()
        row |= self.measured() | {"images_per_second": rate}
        self.history.append(row)
        self.schedule.epoch_ended(self.optimizer, loss)
        self.reset_epoch()
        self.ranks.check_same("weights", digest(self.model.state_dict().values()))
        self.save()
        self.log.seconds[self.epoch] = time.perf_counter() - self.started
        self.write_logs()
        self.show_epoch()

    def measured(self) -> dict[str, float]:
        """What the log has of the network after an epoch; signals are recorded, too."""
        is_last = self.epoch + 1 == self.config.epochs
        found: dict[str, float] = {}
        with np.errstate(all="ignore"):  # if the numbers run away, the next step says so
            if self.valid is not None:
                self.display.start_task("validation error")
                found |= self.evaluate("validation", self.valid)
            if self.valid is None or is_last:
                self.display.start_task("test error")
                found |= self.evaluate("test", self.test)
            if self.average is not None and is_last:
                self.display.start_task("averaged weights")
                found |= self.evaluate_average()
            with nn.evaluating():
                rows = self.measure()
        self.signals += [{"epoch": self.epoch + 1, **row} for row in rows]
        return found

    def finish_run(self) -> None:
        """After the last epoch: the files that a finished run has."""
        if "test_error" not in self.history[-1]:  # there were to be more epochs
            self.history[-1] |= self.evaluate("test", self.test)
            self.save()
        self.write_logs(durable=True)
        self.finish()

    def stop(self) -> None:
        """Before the last epoch: what continues the run, and its log and curves so far."""
        self.save()
        self.write_logs(durable=True)
        self.draw_curves()

    @property
    def images_per_second(self) -> float:
        """In the present epoch, since it was begun or resumed."""
        return self.images / (time.perf_counter() - self.started)

    def is_stopped(self) -> bool:
        """Whether this run, on all ranks, was asked to stop."""
        knows = self.ranks.size == 1 or self.reads_loss(self.batch)
        return knows and self.ranks.all_should_stop()

    # -- what it shows

    def summary(self) -> str:
        """The data, the network, and what computes: for people, before the training."""
        lines = []
        for some in self.samples.sets.values():
            title = f"{some.name} {some.split}"
            lines.append(f"{title}: {some.contents}, {len(some.classes)} classes")
        lines += ["", repr(nn.summary(self.model, self.train.images[:1])), ""]
        place = "a GPU" if not self.is_on_host else counted(self.threads, "thread")
        if self.ranks.size > 1:
            place += f" on each of {self.ranks.size} processes"
        steps = counted(self.batches_per_epoch, "step")
        lines.append(f"{counted(self.config.epochs, 'epoch')} of {steps}, {place}")
        return "\n".join(lines)

    def new_display(self) -> Display:
        """Bars in a terminal or a notebook; elsewhere, nothing."""
        size = (self.config.epochs, self.batches_per_epoch)
        return Display(*size) if self.is_quiet else choose_display(*size, self.curves)

    def show_epoch(self) -> None:
        """The epoch that has ended: a line, and the curves up to here."""
        if self.ranks.first:
            self.curves.redraw(self.history)
        self.display.finish_epoch(self.history)
        with self.display.aside():
            self.say(self.log.in_words(self.history[-1], self.config.epochs))

    def _repr_html_(self) -> str:
        return show_run(self.out, self.config, self.history)

    def be_quiet(self) -> None:
        """Show nothing but what goes wrong."""
        self.say = lambda line: None
        self.is_quiet = True

    def warn(self, line: str) -> None:
        """Say what went wrong, even if quiet."""
        if self.is_quiet and self.ranks.first:
            print(line, file=sys.stderr)
        else:
            self.say(line)

    # -- files

    def evaluate_average(self) -> dict[str, float]:
        """The test loss and error of the network with averaged weights, which is saved, too."""
        network = self.averaged()
        if self.ranks.first:
            save(self.out / "averaged.safetensors", network.state_dict())
        loss, error = evaluate(
            network, self.test.images, self.test.labels, self.config.threads, self.ranks
        )
        return {"averaged_test_loss": loss, "averaged_test_error": error}

    def tidy_up(self) -> None:
        """Make the directory ready for the run."""
        for path in self.out.iterdir():
            # left by a process that was killed while it wrote
            if path.name == SUMS or TEMPORARY.fullmatch(path.name):
                remove(path)
        write_json(self.out / "config.json", asdict(self.config) | versions())
        self.log.read(self.epoch)
        self.write_logs()  # they may be an epoch behind the checkpoint

    def write_logs(self, durable: bool = False) -> None:
        if self.history and self.ranks.first:
            self.log.write(self.history, self.signals, durable)

    def draw_curves(self) -> None:
        if self.history and self.ranks.first:
            self.curves.draw(self.history)

    def finish(self) -> None:
        """What a run leaves when it is done, besides its log."""
        if not self.ranks.first:
            return
        save(self.out / "model.safetensors", self.model.state_dict())
        self.curves.draw(self.history)
        Curves(self.out / "curves.svg").draw(self.history)
        write_sums(self.out)

    # -- saving and resuming

    @property
    def parts(self) -> dict[str, Any]:
        """What has arrays of its own in a checkpoint."""
        parts = {"model": self.model, "optimizer": self.optimizer}
        return parts if self.average is None else parts | {"average": self.average}

    def save(self) -> None:
        """Everything that the rest of the run depends on; a state that is not finite is never
        saved."""
        arrays = {
            f"{owner}.{name}": array
            for owner, part in self.parts.items()
            for name, array in part.state_dict().items()
        }
        for name, value in arrays.items():
            if name.startswith("model.") and not array_module(value).isfinite(value).all():
                raise DivergenceError(
                    f"{name} that is not finite, after step {self.batch} of epoch {self.epoch + 1}",
                    "what is saved is finite; the checkpoint before is still there",
                    "a smaller learning rate",
                )
        if self.ranks.first:
            checkpoint.write(self.out, arrays, self.facts())
        self.saved = time.perf_counter()

    def facts(self) -> dict[str, Any]:
        """What a checkpoint holds besides arrays."""
        return {
            "config": asdict(self.config),
            "batch": self.batch,
            "loss": float(self.loss),
            "wrong": self.wrong,
            "counted": self.counted,
            "lr": float(self.optimizer.lr),
            "schedule": self.schedule.state_dict(),
            "generator": generator().bit_generator.state,
            "history": self.history,
            "signals": self.signals,
            "data": self.fingerprint,
            "samples": self.samples.facts() | {"root": str(self.root or "")},
            "network": self.description,
            "versions": versions(),
            "threads": self.threads,
            "ranks": self.ranks.size,
            "averaged": self.average.count if self.average else 0,
        }

    def resume(self) -> None:
        """Continue from the newest checkpoint that is whole; without any, from the start."""
        found = self.ranks.from_first(self.newest)
        if found is None:
            return
        facts = found.facts
        for owner, part in self.parts.items():
            part.load_state_dict(found.arrays_of(owner))
        self.history, self.signals = facts["history"], facts["signals"]
        self.batch, self.loss = facts["batch"], facts["loss"]
        self.wrong, self.counted = facts["wrong"], facts["counted"]
        self.optimizer.lr = facts["lr"]
        self.schedule.load_state_dict(facts["schedule"])
        if self.average is not None:
            self.average.count = facts["averaged"]
        generator().bit_generator.state = facts["generator"]

    def newest(self) -> checkpoint.Checkpoint | None:
        """The newest checkpoint that is whole, if it is one of this run."""
        found, complaints = checkpoint.newest(self.out)
        for complaint in complaints:
            self.warn(f"tinyprop: passed over {complaint}")
        if found is not None:
            checkpoint.refuse_other_run(found, self.facts())
            for line in checkpoint.last_bits(found, self.facts()):
                self.say(f"tinyprop: {line}")
        return found

    def check_folder(self, resume: bool) -> None:
        """Refuse a folder with a run that would be overwritten, or that this one does not
        continue."""
        if resume:
            found, _ = checkpoint.newest(self.out)
            if found is not None:
                checkpoint.refuse_other_run(found, self.facts())
        elif checkpoint.paths(self.out):
            got = f"{self.out}, which holds a run"
            hint = "--resume to continue it, or another --out"
            raise StateError(got, "a run is not overwritten", hint)


def refuse_while_importing(out: Path) -> None:
    """Refuse a run of a file that is being imported for something that it defines."""
    if is_importing():
        got = f"a run in {out}, started by a file that is being imported"
        rule = "what is imported defines networks, activations or data, and trains nothing"
        hint = "if __name__ == '__main__': in front of what the file does as a program"
        raise StateError(got, rule, hint)


def digest(arrays: Iterable[Array]) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(to_numpy(array)).data)
    return found.hexdigest()
