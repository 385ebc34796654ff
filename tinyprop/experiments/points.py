"""A point is one training of an experiment; the store keeps what was measured of each.

Experiments share points: the folder of one is named by the content of its config. How many epochs it has is left out
of that name, as a shorter training is the beginning of a longer one. A finished point is not computed again, unless
more epochs are asked of it later: its checkpoints are gone, so it then starts anew.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import functional as F
from .. import nn
from ..engine.arrays import HostArray, from_host, to_numpy
from ..engine.graph import no_grad
from ..engine.tensor import Tensor
from ..errors import DivergenceError
from ..files import write_whole
from ..info import versions
from ..nn.module import Module
from ..random import new_generator
from ..train import Config, Run
from .statistics import rounded

CHUNK = 100  # images that go through a network together when its layers' inputs are measured
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
Data = dict[str, Any]


class Point(Run):
    """A run that records the means of what enters the units of each layer, and leaves only what was measured."""

    def measure(self) -> list[Data]:
        return [
            {"layer": i + 1, **input_means("arriving", arriving, i), **input_means("activated", activated, i)}
            for i, (arriving, activated) in enumerate(unit_means(self.model, self.test.images))
        ]

    def finish(self) -> None:
        pass


def input_means(name: str, means: HostArray, layer: int) -> Data:
    """Of the means of all units of a layer: that of one unit, chosen by chance but fixed, and how all are spread."""
    chosen = int(new_generator([layer]).integers(len(means)))
    quantiles = np.quantile(means, QUANTILES)
    return {
        f"{name}_chosen": float(means[chosen]),
        f"{name}_size": float(abs(means).mean()),
        **{f"{name}_q{100 * q:.0f}": float(value) for q, value in zip(QUANTILES, quantiles, strict=True)},
    }


@no_grad()
def unit_means(model: nn.Sequential, images: HostArray) -> list[tuple[HostArray, HostArray]]:
    """For each convolution: the means, over images and places, of each feature that arrives, and of the argument of
    each unit's activation (of the logits, for the last).

    From features to arguments is an affine map in evaluation mode, so the mean of the arguments is the argument of the
    mean image, and no second pass over the images is needed.
    """
    layers = list(model)
    home = next(model.parameters()).data
    sums: dict[int, Any] = {
        i: 0.0 for i, layer in enumerate(layers) if isinstance(layer, nn.Conv2d | nn.NormPropConv2d)
    }
    for start in range(0, len(images), CHUNK):
        x = Tensor(from_host(images[start : start + CHUNK], like=home))
        for i, layer in enumerate(layers):
            if i in sums:
                sums[i] = sums[i] + x.data.sum(axis=0, dtype="float64")
            x = layer(x)
    found = []
    for i, total in sums.items():
        mean = (total / len(images)).astype("float32")  # (C, H, W)
        argument = arguments(layers[i], layers[i + 1], Tensor(mean[None])).data
        found.append((to_numpy(mean.mean(axis=(1, 2))), to_numpy(argument.mean(axis=(0, 2, 3)))))
    return found


def arguments(layer: Module, after: Module, x: Tensor) -> Tensor:
    """What the activation of a layer gets: behind gamma and beta, or behind BatchNorm."""
    if isinstance(layer, nn.NormPropConv2d):
        return layer.weighted_sum(x, F.weight_norm(layer.weight, layer.gamma)) + layer.per_unit(layer.beta)
    u = layer(x)
    return after(u) if isinstance(after, nn.BatchNorm) else u


# -- the store


@dataclass(frozen=True)
class Store:
    """The folder in which each point has a folder of its own."""

    folder: Path

    def place(self, config: Config) -> Path:
        return self.folder / key(config)

    def result(self, config: Config) -> Data | None:
        """What was measured of a point, if it is finished."""
        path = self.place(config) / "result.json"
        return first_epochs(json.loads(path.read_bytes()), config.epochs) if path.exists() else None

    def finished(self, config: Config) -> Data:
        """What was measured of a point, which must be finished."""
        result = self.result(config)
        assert result is not None, f"{self.place(config)} is not finished"
        return result

    def keep(self, name: str, measure: Callable[[], Data]) -> Data:
        """What was measured once; times, for instance, would be others the next time."""
        path = self.folder / f"{name}.json"
        if not path.exists():
            write_whole(path, json.dumps(measure()).encode())
        return json.loads(path.read_bytes())

    def epochs_logged(self, config: Config) -> int:
        """Epochs that are done of a point that is not finished."""
        log = self.place(config) / "log.csv"
        return min(log.read_text().count("\n") - 1, config.epochs) if log.exists() else 0


def key(config: Config) -> str:
    """A readable name and a hash of everything that decides what comes out, the number of epochs aside.

    >>> key(Config(data="cifar10", seed=3)) == key(Config(data="cifar10", seed=3, epochs=2))
    True
    >>> key(Config(data="cifar10", seed=3))[:-8]
    'cifar10-normprop-batch50-lr0.05-seed3-'
    """
    facts = {f.name: getattr(config, f.name) for f in fields(config) if not f.metadata["resumable"]}
    name = f"{config.data}-{config.norm}-batch{config.batch_size}-lr{config.lr:g}-seed{config.seed}"
    return f"{name}-{digest(facts)}"


def digest(facts: Data) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]


def first_epochs(result: Data, epochs: int) -> Data | None:
    """The beginning of a result; None if it has fewer epochs and did not diverge."""
    if len(result["history"]) < epochs and not result["diverged"]:
        return None
    diverged = result["diverged"] if result["diverged"] and len(result["history"]) < epochs else None
    history = result["history"][:epochs]
    layers = [row for row in result["layers"] if row["epoch"] <= len(history)]
    return {**result, "history": history, "layers": layers, "diverged": diverged}


def compute(config: Config, store: Store, root: Path | None) -> bool:
    """Train a point, or go on with it, and keep its result; False if it was stopped before the end."""
    folder = store.place(config)
    if store.result(config) is not None:
        return True
    run = Point(config, folder, root)
    diverged = None
    try:
        if not run.run(resume=True):
            return False
    except DivergenceError as error:
        diverged = {"epoch": run.epoch + 1, "step": run.batch + 1, "what": error.args[0].partition(", first")[0]}
    result = {
        "config": asdict(replace(config, epochs=1)),
        "versions": versions(),
        "images": {"train": len(run.train), "test": len(run.test)},
        "diverged": diverged,
        "history": [{k: v for k, v in row.items() if k != "images_per_second"} for row in run.history],
        "layers": run.signals,
    }
    write_whole(folder / "result.json", json.dumps(rounded(result)).encode())
    for file in [*folder.glob("checkpoint-*"), folder / "signals.csv"]:  # the result has what is in signals.csv
        file.unlink(missing_ok=True)
    return True
