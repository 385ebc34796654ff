"""The ledger: a directory with one JSON file for each finished run, which is never computed twice.

The name of a file follows from the settings of its run, so ledgers of several machines can be
copied together. Runs in progress live elsewhere, and leave nothing when they are done."""

import hashlib
import json
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from ..engine.errors import DivergenceError
from ..engine.threads import blas_threads
from ..report.files import write_json
from ..train import Config
from .record import Record, RecordedRun

PAUSE_POLL = 0.5  # seconds between two looks at the pause file
ALONE = threading.Lock()  # held by a run: its record says which overrides the process used


def run_name(config: Config) -> str:
    """A readable name, and a hash of the settings that are not the default. (A new setting changes
    no old name.)

    >>> run_name(Config(data="cifar10", seed=3, threads=1))
    'cifar10-normprop-seed3-9a58570982'
    """
    config, defaults = canonical(config), canonical(Config())
    changed = {}
    for setting in fields(config):
        value = getattr(config, setting.name)
        if value != getattr(defaults, setting.name):
            changed[setting.name] = value
    text = json.dumps(changed, sort_keys=True)
    short_hash = hashlib.sha256(text.encode()).hexdigest()[:10]
    # of a file, not its folder
    data, norm = (
        Path(name).name.replace(":", "-").replace("#", "-") for name in (config.data, config.norm)
    )
    return f"{data}-{norm}-seed{config.seed}-{short_hash}"


def canonical(config: Config) -> Config:
    """Without the settings that do not change the result, and with the width that is meant."""
    return replace(config, threads=None, read_every=50, width=config.width_used)


@dataclass(frozen=True)
class Ledger:
    folder: Path

    def path(self, config: Config) -> Path:
        return self.folder / f"{run_name(config)}.json"

    def find(self, config: Config, log: Callable[[str], None] = lambda line: None) -> Record | None:
        """The record of a run, or None if it is not finished. A damaged file counts as not
        finished, and `log` is called with its name."""
        path = self.path(config)
        try:
            record = Record.from_json(json.loads(path.read_bytes()))
            if canonical(record.config) != canonical(config):
                raise ValueError("it holds another run")
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            log(f"{path} is damaged, so its run counts as not finished: {error}")
            return None
        return record

    def add(self, record: Record) -> None:
        write_json(self.path(record.config), record.to_json())


def compute(
    config: Config,
    ledger: Ledger,
    runs: Path,
    root: Path | None,
    should_stop: Callable[[], bool] = lambda: False,
    registration: str | None = None,
    pause_file: Path | None = None,
) -> bool:
    """Train, or resume, a run and add it to the ledger; False if it was stopped, or told to stop,
    before the end. It waits between two steps while the pause file exists."""

    def should_stop_after_pause() -> bool:
        while pause_file is not None and pause_file.exists() and not should_stop():
            time.sleep(PAUSE_POLL)
        return should_stop()

    # one thread, so that the result does not depend on how many runs there are side by side
    with ALONE, blas_threads(1):
        if should_stop_after_pause():
            return False
        if ledger.find(config):
            return True
        run = RecordedRun(config, runs / run_name(config), root)
        run.should_stop = should_stop_after_pause
        diverged = None
        try:
            if not run.run(resume=True):
                return False
        except DivergenceError as error:
            diverged = {
                "epoch": min(run.epoch + 1, config.epochs),
                "step": run.batch + 1,
                "what": error.args[0],
            }
        ledger.add(run.record(diverged, registration))
        shutil.rmtree(run.out)
        return True
