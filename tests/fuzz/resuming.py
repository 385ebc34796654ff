"""A run that is stopped at a random step and resumed, against one that is not: the bits of weights,
log and signals are the same."""

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import tinyprop as tp
from tests.helpers import changed_data
from tinyprop.data import load
from tinyprop.nn import normalizers
from tinyprop.train import Config, Run

from .case import Case, Random, bit_difference, choice, integer

SPEC = "C(6,3,2,1)-P(2,2,0,max)-C(6,3,1,1)-C(10,1,1,0)-P(8,8,0,avg)"


def draw(rng: Random) -> Case:
    config = Config(
        data="shapes",
        spec=SPEC,
        norm=choice(rng, normalizers),
        data_norm=choice(rng, ["global", "batch"]),
        optimizer=choice(rng, ["sgd", "rmsprop"]),
        schedule=choice(rng, ["halve", "plateau", "linear"]),
        dropout=choice(rng, [0.0, 0.2]),
        halve_every=2,
        patience=1,
        epochs=choice(rng, [1, 3, 3]),
        train_size=choice(rng, [30, 40]),
        batch_size=choice(rng, [8, 20]),
        lr=choice(rng, [0.001, 0.02]),
        seed=integer(rng, 0, 1000),
        threads=integer(rng, 1, 2),
    )
    per_epoch = -(-config.train_size // config.batch_size)
    stop = integer(rng, 1, config.epochs * per_epoch)
    other_threads = integer(rng, 1, 3)
    words = f"stopped after step {stop}, resumed with {other_threads} threads: {config}"

    def check() -> str | None:
        with tempfile.TemporaryDirectory() as folder, without_figures(), same_images():
            whole = Run(config, Path(folder, "whole"), say=lambda line: None)
            whole.run()
            first = Run(config, Path(folder, "parts"), say=lambda line: None)
            first.should_stop = after(stop)
            first.run()
            tp.manual_seed(12345)  # what another program draws in between
            changed = replace(config, threads=other_threads)
            second = Run(changed, Path(folder, "parts"), say=lambda line: None)
            second.run(resume=True)
            return bit_difference(results(second), results(whole))

    return Case(words, check)


def after(steps: int) -> Any:
    """Asked after each step: whether that many are done."""
    count = 0

    def should_stop() -> bool:
        nonlocal count
        count += 1
        return count == steps

    return should_stop


@cache
def few_images(name: str, root: Any, split: str) -> tp.data.Dataset:
    return load(name, root, split).first(60 if split == "train" else 12)


def same_images() -> Any:
    """Making them takes longer than training."""
    return changed_data(few_images)


def without_figures() -> Any:
    """Drawing takes longer than training."""
    return patch("tinyprop.report.plots.save")


def results(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = {"weights of " + k: v for k, v in run.model.state_dict().items()}
    for number, row in enumerate(run.history):
        found |= {f"epoch {number + 1}: {k}": v for k, v in row.items() if "per_second" not in k}
    for number, row in enumerate(run.signals):
        found |= {f"signal {number}: {k}": v for k, v in row.items() if not isinstance(v, str)}
    return found
