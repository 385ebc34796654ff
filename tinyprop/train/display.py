"""What a run shows while it trains: two bars in a terminal, bars and curves in a notebook, nothing
elsewhere.

A display is told of every step, and draws only now and then: so rarely that all drawings together
take less than a hundredth of the run."""

import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from tqdm.std import tqdm

from ..report.html import image_tag

INTERVAL = 0.2  # seconds between two drawings of the bars while an epoch runs
PART = 0.01  # of the run, which drawings may take
PART_IN_NOTEBOOK = 0.05  # where somebody is watching
NARROW = 60  # columns, below which texts are shortened
WIDEST = 100  # columns
SMALLEST_BAR = 6  # columns; with less, there is no bar
BLOCKS = " ▏▎▍▌▋▊▉█"  # nothing to all of a column
ASCII_BLOCKS = " #"
History = list[dict[str, float]]


class Display:
    """Shows nothing, and knows how far a run is; what shows something is a subclass.

    >>> with Display(epochs=4, batches=10) as display:
    ...     display.start_epoch(1, 0)
    ...     display.step(5, 0.7, 100.0)
    ...     round(display.fraction, 3)
    0.375
    """

    part = PART

    def __init__(self, epochs: int, batches: int):
        self.epochs = epochs
        self.batches = batches  # in an epoch
        self.epoch = 0  # epochs and batches that are done
        self.batch = 0
        self.loss: float | None = None
        self.rate = 0.0  # images per second
        self.task = ""  # what is done besides training
        self.pace: float | None = None  # seconds for an epoch and its evaluation, if known
        self.started: float | None = None  # when
        self.drawn = 0.0  # when, for the last time
        self.spent = 0.0  # seconds, for all drawings

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start_epoch(self, epoch: int, batch: int) -> None:
        """An epoch begins, or is resumed after so many batches."""
        self.epoch, self.batch = epoch, batch
        self.loss, self.rate, self.task = None, 0.0, ""
        if self.started is None:  # the time left is estimated from here
            self.started = time.perf_counter()
            self.epochs_before = self.epochs_done
        self._draw_if_there_is_time()

    def step(self, batch: int, loss: float, rate: float) -> None:
        """So many batches of the epoch are done, with this mean loss and images per second."""
        self.batch, self.loss, self.rate = batch, loss, rate
        if time.perf_counter() - self.drawn > INTERVAL:
            self._draw_if_there_is_time()

    def start_task(self, task: str) -> None:
        """Say what takes time after the batches of an epoch, such as an evaluation."""
        self.task = task
        self._draw_if_there_is_time()

    def finish_epoch(self, history: History) -> None:
        """An epoch is measured, and this is the history so far."""
        self.epoch, self.task = len(history), ""
        if self.epoch < self.epochs:  # at the end, the last epoch stays
            self.batch = 0
        epochs_done = self.epoch - self.epochs_before
        if epochs_done > 0:  # or it was resumed after the last batch of an epoch
            self.pace = self.seconds / epochs_done
        self._draw_if_there_is_time()

    def aside(self) -> AbstractContextManager[None]:
        """Inside the block, lines may be written."""
        return nullcontext()

    def close(self) -> None:
        """Nothing will be shown after this."""

    @property
    def seconds(self) -> float:
        """Since the first epoch of this display began."""
        return 0.0 if self.started is None else time.perf_counter() - self.started

    @property
    def epoch_fraction(self) -> float:
        return self.batch / self.batches

    @property
    def epochs_done(self) -> float:
        """With the part of the present one that is done."""
        return min(self.epoch + self.epoch_fraction, self.epochs)

    @property
    def fraction(self) -> float:
        """How much of the run is done."""
        return self.epochs_done / self.epochs

    @property
    def time_left(self) -> str:
        """Of the run, at the speed so far; unknown at its start."""
        pace = self.pace
        if pace is None and self.epochs_done > self.epochs_before:
            pace = self.seconds / (self.epochs_done - self.epochs_before)
        return "?" if pace is None else in_hours(pace * (self.epochs - self.epochs_done))

    def texts(self, short: bool) -> tuple[str, str]:
        """What is said beside the bars of the run and of the epoch."""
        of_run = f"{min(self.epoch + 1, self.epochs)}/{self.epochs}, {self.time_left} left"
        if self.task:
            of_epoch = self.task
        elif self.loss is None:
            of_epoch = f"{self.batch}/{self.batches}"
        else:
            of_epoch = f"{self.batch}/{self.batches}, loss {self.loss:.3f}"
        if short:
            return of_run, of_epoch
        if not self.task and self.rate:
            of_epoch += f", {self.rate:,.0f} images/s"
        return f"{self.fraction:4.0%}, epoch {of_run}", f"{self.epoch_fraction:4.0%}, {of_epoch}"

    def _draw_if_there_is_time(self) -> None:
        if self.spent <= self.part * self.seconds:
            self._draw_now()

    def _draw_now(self) -> None:
        start = time.perf_counter()
        self.draw()
        self.drawn = time.perf_counter()
        self.spent += self.drawn - start

    def draw(self) -> None:
        """Show how far the run is."""


class Terminal(Display):
    """Two lines at the bottom of a terminal, with a bar for the run and one for the epoch."""

    def __init__(self, epochs: int, batches: int, stream: Any):
        super().__init__(epochs, batches)
        self.has_unicode = _can_encode(BLOCKS, stream)
        self.columns = 0
        self.text_width = 0  # of the longest text so far, so that bars keep their width
        options: dict[str, Any] = {"bar_format": "{desc}", "leave": False, "file": stream}
        self.lines = [tqdm(total=1, position=position, **options) for position in (0, 1)]

    def draw(self) -> None:
        columns = min(shutil.get_terminal_size().columns, WIDEST) - 1
        texts = self.texts(short=columns < NARROW)
        if columns != self.columns:
            self.columns, self.text_width = columns, 0
        width = self.text_width = max(self.text_width, *map(len, texts))
        fractions = (self.fraction, self.epoch_fraction)
        for line, name, fraction, text in zip(
            self.lines, ("run  ", "epoch"), fractions, texts, strict=True
        ):
            bar = self.bar(fraction, columns - len(name) - width - 4)
            line.ncols = columns
            line.set_description_str(f"{name} {bar}{text}"[:columns])

    def aside(self) -> AbstractContextManager[None]:
        return tqdm.external_write_mode(file=self.lines[0].fp)

    def bar(self, fraction: float, columns: int) -> str:
        """A bar of so many columns between its ends; nothing if it would be too small to read."""
        if columns < SMALLEST_BAR:
            return ""
        return f"|{filled(fraction, columns, self.has_unicode)}| "

    def close(self) -> None:
        for line in reversed(self.lines):
            line.close()


class Notebook(Display):
    """The bars, and the learning curves so far, in the output of a notebook's cell."""

    part = PART_IN_NOTEBOOK

    def __init__(self, epochs: int, batches: int, curves: Callable[[], bytes | None]):
        """`curves` returns the newest picture of the curves, if there is one."""
        super().__init__(epochs, batches)
        self.curves = curves
        self.ipython: Any = import_module("IPython.display")
        self.picture: bytes | None = None  # that is shown
        self.place_of_bars = self.new_place()
        self.place_of_curves = self.new_place()

    def new_place(self) -> Any:
        """A place in the output of the cell, which can be filled again and again."""
        return self.ipython.display(self.ipython.HTML(""), display_id=True)

    def draw(self) -> None:
        self.place_of_bars.update(self.ipython.HTML(self.bars()))
        picture = self.curves()
        if picture is not None and picture is not self.picture:
            tag = image_tag(picture, "learning curves", width=640)
            self.place_of_curves.update(self.ipython.HTML(tag))
        self.picture = picture

    def bars(self) -> str:
        rows = []
        fractions = (self.fraction, self.epoch_fraction)
        for name, fraction, text in zip(
            ("run", "epoch"), fractions, self.texts(short=False), strict=True
        ):
            bar = f'<progress max="1" value="{fraction:.3f}"></progress>'
            rows.append(f"<tr><td>{name}</td><td>{bar}</td><td>{escape(text)}</td></tr>")
        return f"<table>{''.join(rows)}</table>"

    def close(self) -> None:
        self._draw_now()


class Curves:
    """The learning curves of a run in a file, drawn again after an epoch if there is time for it:
    drawing takes no more than a part of the run."""

    FIRST_GUESS = 0.5  # seconds that a drawing takes

    def __init__(self, path: Path):
        self.path = path
        self.part = PART_IN_NOTEBOOK if in_notebook() else PART
        self.seconds = self.FIRST_GUESS
        self.drawn = time.perf_counter()
        self.picture: bytes | None = None

    def redraw(self, history: History) -> None:
        """Draw the curves so far, if there is time for it."""
        if self.seconds <= self.part * (time.perf_counter() - self.drawn):
            self.draw(history)

    def draw(self, history: History) -> None:
        from ..report import plots  # only now: these load matplotlib
        from . import figures

        start = time.perf_counter()
        figure = figures.training_curves(history)
        plots.save(figure, self.path, figures.described(history))
        self.drawn = time.perf_counter()
        self.seconds = self.drawn - start
        if in_notebook():
            self.picture = self.path.read_bytes()


def choose_display(epochs: int, batches: int, curves: Curves, stream: Any = None) -> Display:
    """The display for where this process runs; for a terminal, its stream is stderr."""
    stream = stream or sys.stderr
    if in_notebook():
        return Notebook(epochs, batches, lambda: curves.picture)
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        return Terminal(epochs, batches, stream)
    return Display(epochs, batches)


def in_notebook() -> bool:
    """Whether this is a cell of a notebook, and not a terminal with IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in shell.config


def _can_encode(text: str, stream: Any) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def filled(fraction: float, columns: int, has_unicode: bool = True) -> str:
    """So many columns, of which a fraction is filled.

    >>> filled(0.5, 8), filled(0.3, 4), filled(0.5, 8, has_unicode=False)
    ('████    ', '█▏  ', '####    ')
    """
    blocks = BLOCKS if has_unicode else ASCII_BLOCKS
    steps = len(blocks) - 1
    whole, part = divmod(int(fraction * columns * steps), steps)
    bar = blocks[-1] * whole
    if whole < columns:
        bar += blocks[part]
    return bar.ljust(columns)


def in_hours(seconds: float) -> str:
    """A time in hours, minutes and seconds.

    >>> in_hours(59.6), in_hours(7265.0)
    ('1:00', '2:01:05')
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
