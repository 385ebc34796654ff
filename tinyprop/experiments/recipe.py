"""What an experiment is: which points it needs, what follows from them, how that is drawn and told.

Its data are plain: `points` has, for each setting, what was measured in each run; `summary` what follows. Words and
pictures are made from these data alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial

from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from ..engine.arrays import use_backend
from ..info import versions
from ..train import Config
from .points import Data, Store, digest
from .scales import Scale
from .statistics import above, difference, in_words, interval, rounded, within

Measure = Callable[[Data], float]  # a number of a run
MATTERS = 2.0  # points of accuracy: two settings are alike if their difference is surely smaller


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
    made_with = [versions()] if experiment.measure else []
    for label, configs in experiment.configs(scale, backend).items():
        settings[label] = {k: v for k, v in asdict(configs[0]).items() if k not in ("seed", "threads", "read_every")}
        if configs[0].data in missing:
            not_run[label] = missing[configs[0].data]
            continue
        results = [store.finished(config) for config in configs]
        points[label] = [one_point(*pair, experiment.layers) for pair in zip(configs, results, strict=True)]
        made_with += [result["versions"] for result in results]
        images[label] = results[-1]["images"]
    data: Data = {
        "experiment": experiment.name,
        "scale": scale.name,
        "seeds": list(scale.seeds),
        "versions": [v for i, v in enumerate(made_with) if v not in made_with[:i]],
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
            "diverged": lost(data, label),
        }
    return found


def last_accuracy(run: Data) -> float:
    accuracy: float = run["accuracy"][-1]
    return accuracy


def final(data: Data, label: str, of: Measure = last_accuracy) -> dict[int, float]:
    """A number of each run that did not diverge, by seed."""
    return {run["seed"]: of(run) for run in data["points"].get(label, []) if not run["diverged"]}


def lost(data: Data, label: str) -> int:
    """How many runs of a setting diverged."""
    return sum(run["diverged"] is not None for run in data["points"].get(label, []))


def compare(data: Data, ours: str, theirs: str, of: Measure = last_accuracy, better: int = 1) -> Data:
    """Ours less theirs; `better` is the sign of an improvement, `diverged` how many runs of each are missing.

    If any run diverged there is no clear sign, as those that are left are chosen; unless all of one side diverged and
    none of the other, which is then the better one.
    """
    sides = [final(data, ours, of), final(data, theirs, of)]
    diverged = [lost(data, ours), lost(data, theirs)]
    found = {**difference(*sides), "diverged": diverged}
    if any(diverged):
        sound = [bool(side) and not count for side, count in zip(sides, diverged, strict=True)]
        found["sign"] = 0 if all(sides) else better * (sound[0] - sound[1])
    return found


# -- verdicts: None where the runs cannot tell


def has_sign(found: Data, sign: int) -> bool | None:
    """Whether a difference has this sign."""
    return None if found["sign"] == 0 else found["sign"] == sign


def alike(found: Data) -> bool | None:
    """Whether a difference of accuracies is too small to matter; it does matter if one side alone diverged."""
    if any(found["diverged"]):
        return False if found["sign"] else None
    return within(found, MATTERS)


def beats(curve: Data, chance: float) -> bool | None:
    """Whether the last accuracy of a setting is above chance; that of a run that diverged is not."""
    found = curve["final"]
    if not found["runs"] or (found["reach"] is not None and found["mean"] + found["reach"] <= chance):
        return False
    return True if above(found, chance) and not curve["diverged"] else None


# -- words


def runs_words(found: Data, diverged: int, unit: str = "", digits: int = 1) -> str:
    """The mean of some runs, and how many are missing in it, as text."""
    if diverged and not found["runs"]:
        return "diverged"
    return in_words(found, unit, digits) + (f" ({diverged} diverged)" if diverged else "")


def accuracy_words(data: Data, label: str) -> str:
    """The last accuracy of a setting, as text."""
    found = data["summary"]["curves"][label]
    return runs_words(found["final"], found["diverged"], " %")


def points_words(found: Data, unit: str = " points") -> str:
    """A difference, as text."""
    words = in_words(found, unit, sign=True) if found["runs"] else "no pair of runs"
    ours, theirs = found["diverged"]
    return words + (f" (diverged: {ours} and {theirs})" if ours or theirs else "")
