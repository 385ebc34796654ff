"""What an experiment is: which points it needs, what follows from them, how that is drawn and told.

Its data are plain: `points` has, for each setting, what was measured in each run; `summary` what follows. Words and
pictures are made from these data alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial

from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from ..backend import use_backend
from ..train import Config, versions
from .points import Data, Store, digest
from .scales import Scale
from .statistics import difference, in_words, interval, rounded

Measure = Callable[[Data], float]  # a number of a run


@dataclass(frozen=True)
class Finding:
    """One claim beside what was found. `supported` is None where the runs cannot tell."""

    claim: str
    paper: str
    ours: str
    supported: bool | None

    @property
    def verdict(self) -> str:
        return {True: "supported", False: "not supported", None: "cannot tell"}[self.supported]


@dataclass(frozen=True)
class Experiment:
    name: str
    section: str  # of the paper
    title: str
    settings: Callable[[Scale], Mapping[str, Config]]
    summarise: Callable[[Data], Data]
    draw: Callable[[Data], Figure]
    tell: Callable[[Data], str]  # one paragraph
    findings: Callable[[Data], list[Finding]]
    measure: Callable[[Scale], Data] | None = None  # what is measured without training
    timed: bool = False  # whether these are times, which are kept, as they would be others the next time
    layers: bool = False  # whether the data have the inputs of the layers

    def configs(self, scale: Scale, backend: str) -> dict[str, list[Config]]:
        """A config for each setting and seed."""
        return {
            label: [replace(config, seed=seed, backend=backend) for seed in scale.seeds]
            for label, config in self.settings(scale).items()
        }


def gather(experiment: Experiment, scale: Scale, store: Store, backend: str, missing: Mapping[str, str]) -> Data:
    """The data of an experiment all of whose points are finished. `missing` tells why a data set is not there."""
    points: Data = {}
    not_run, settings, images = {}, {}, {}
    made_with = versions()
    for label, configs in experiment.configs(scale, backend).items():
        settings[label] = {k: v for k, v in asdict(configs[0]).items() if k not in ("seed", "threads", "read_every")}
        if configs[0].data in missing:
            not_run[label] = missing[configs[0].data]
            continue
        results = [store.finished(config) for config in configs]
        points[label] = [one_point(*pair, experiment.layers) for pair in zip(configs, results, strict=True)]
        made_with, images[label] = results[-1]["versions"], results[-1]["images"]
    data: Data = {
        "experiment": experiment.name,
        "scale": scale.name,
        "seeds": list(scale.seeds),
        "versions": made_with,
        "settings": settings,
        "images": images,
        "not_run": not_run,
        "points": points,
    }
    if experiment.measure:
        with use_backend(backend), threadpool_limits(1, user_api="blas"):
            name = f"{experiment.name}-{backend}-{digest(asdict(scale))}"
            measure = partial(experiment.measure, scale)
            data["measured"] = store.keep(name, measure) if experiment.timed else measure()
    data = rounded(data)
    return {**data, "summary": rounded(experiment.summarise(data))}


def one_point(config: Config, result: Data, layers: bool) -> Data:
    history = result["history"]
    point = {
        "seed": config.seed,
        "diverged": result["diverged"],
        "lr": [row["lr"] for row in history],
        "accuracy": [100.0 * (1.0 - row["test_error"]) for row in history],
        "test_loss": [row["test_loss"] for row in history],
        "train_loss": [row["train_loss"] for row in history],
    }
    return point | ({"layers": result["layers"]} if layers else {})


# -- what follows from the curves of settings


def curves(data: Data) -> Data:
    """For each setting: accuracy after each epoch, mean and interval over seeds; how many runs diverged."""
    found = {}
    for label, runs in data["points"].items():
        whole = [run["accuracy"] for run in runs if not run["diverged"]]
        found[label] = {
            "accuracy": [interval(list(values)) for values in zip(*whole, strict=True)],
            "final": interval([accuracy[-1] for accuracy in whole]),
            "diverged": sum(run["diverged"] is not None for run in runs),
        }
    return found


def final(data: Data, label: str, of: Measure = lambda run: run["accuracy"][-1]) -> dict[int, float]:
    """A number of each run that did not diverge, by seed: its last accuracy, if nothing else is asked for."""
    return {run["seed"]: of(run) for run in data["points"].get(label, []) if not run["diverged"]}


def compare(data: Data, ours: str, theirs: str, of: Measure | None = None) -> Data:
    arguments = (of,) if of else ()
    return difference(final(data, ours, *arguments), final(data, theirs, *arguments))


def accuracy_words(data: Data, label: str) -> str:
    """The last accuracy of a setting, as text."""
    found = data["summary"]["curves"][label]
    if not found["final"]["runs"]:
        return "diverged"
    lost = f" ({found['diverged']} diverged)" if found["diverged"] else ""
    return in_words(found["final"], " %") + lost


def points_words(found: Data) -> str:
    """A difference of accuracies, as text."""
    return in_words(found, " points", sign=True)
