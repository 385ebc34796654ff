"""The table of section 5.5 and the times of section 5.6."""

import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from .. import nn
from ..engine.arrays import default_backend
from ..info import machine
from ..optim import SGD
from ..paper import EPOCH_SECONDS
from ..random import manual_seed, new_generator
from ..train import Config, TrainingStep
from ..verify.training_claims import TABLE as PAPER_TABLE
from . import pictures
from .points import Data
from .recipe import Experiment, Finding, compare, final, has_sign, points_words, runs_words
from .scales import Scale
from .section5 import NORMS
from .statistics import interval

# -- 5.5


def table_settings(scale: Scale) -> Mapping[str, Config]:
    return {
        f"{name}, {title}": replace(config, norm=norm) for title, config in scale.sets for name, norm in NORMS.items()
    }


def error(run: Data) -> float:
    return 100.0 - run["accuracy"][-1]


def compare_sets(data: Data) -> Data:
    sets = {}
    for title in dict.fromkeys(label.partition(", ")[2] for label in data["settings"]):
        ours, theirs = (f"{name}, {title}" for name in NORMS)
        printed = PAPER_TABLE.get(title)
        sets[title] = {
            "images": data["images"].get(ours, {}).get("train"),  # None if it was not run
            "ours": {name: interval(list(final(data, f"{name}, {title}", error).values())) for name in NORMS},
            "NormProp less BatchNorm": compare(data, ours, theirs, error, better=-1),
            "paper": {"NormProp": printed[0], "BatchNorm": printed[1]} if printed else None,
        }
    return {"sets": sets}


def error_words(found: Data) -> list[str]:
    """The errors of both networks on a set, as text."""
    diverged = found["NormProp less BatchNorm"]["diverged"]
    return [runs_words(found["ours"][name], count) for name, count in zip(NORMS, diverged, strict=True)]


def set_findings(data: Data) -> list[Finding]:
    findings = []
    for title, found in data["summary"]["sets"].items():
        d, paper = found["NormProp less BatchNorm"], found["paper"]
        theirs = f"{paper['NormProp']} against {paper['BatchNorm']} %" if paper else "not in the paper"
        better = -1 if not paper or paper["NormProp"] < paper["BatchNorm"] else 1
        claim = f"The test error on {title} is {'lower' if better < 0 else 'higher'} with NormProp than with BN."
        words = f"{' against '.join(error_words(found))} %; difference {points_words(d, '')}"
        if found["images"] is None:
            words = "not run: the data are not here"
        findings.append(Finding(claim, theirs, words, has_sign(d, better)))
    return findings


def tell_sets(data: Data) -> str:
    rows = [
        f"| {title} | {format(found['images'], ',') if found['images'] else '-'} | {' | '.join(error_words(found))} "
        f"| {points_words(found['NormProp less BatchNorm'], '')} | {finding.verdict if found['paper'] else '-'} "
        + "".join(f"| {found['paper'][name]} " if found["paper"] else "| - " for name in NORMS)
        + "|"
        for (title, found), finding in zip(data["summary"]["sets"].items(), set_findings(data), strict=True)
    ]
    run = [found["NormProp less BatchNorm"] for found in data["summary"]["sets"].values() if found["images"]]
    words = (
        f"Test error in % after the last epoch, with the number of images trained on. Of {len(run)} sets that "
        f"were run, NormProp is clearly better on {sum(d['sign'] < 0 for d in run)}, BatchNorm on "
        f"{sum(d['sign'] > 0 for d in run)}; on {sum(d['sign'] == 0 for d in run)} the runs cannot tell. The test: "
        "whether the 95 % interval of the mean difference over runs of the same seed (Student's t, paired) leaves 0 "
        "out. The paper's numbers are of its full protocol and have no spread: compare who is better, not the values."
    )
    if data["not_run"]:
        missing = dict.fromkeys(label.partition(", ")[2] for label in data["not_run"])
        words += f" Not run, as the data are not here: {', '.join(missing)}."
    head = (
        "| data | images | NormProp | BatchNorm | difference | as in the paper | paper: NormProp | paper: BatchNorm |"
    )
    return "\n".join([words, "", head, "|---|---|---|---|---|---|---|---|", *rows])


# -- 5.6

WARM_UP = 3  # rounds that do not count


def measure_speed(scale: Scale) -> Data:
    """Seconds of a training step of both networks, in turns, each on one thread, or on a GPU."""
    steps, random, batch = {}, new_generator(1), 50
    images, labels = random.standard_normal((batch, 3, 32, 32), "float32"), random.integers(0, 10, batch)
    for name, norm in NORMS.items():
        manual_seed(0)
        net = nn.build(nn.NIN, norm=norm, width=scale.speed_width)
        optimizer = SGD(net.parameters(), lr=0.001, momentum=0.9, weight_decay=0.001)
        steps[name] = partial(TrainingStep(net, optimizer, threads=1), images, labels)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(-WARM_UP, scale.speed_rounds):
        for name in list(steps) if turn % 2 == 0 else list(steps)[::-1]:  # so nobody always follows the other
            start = time.perf_counter()
            float(steps[name]())  # waits for a GPU
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
    where = f"one thread of {machine()['cpu']}" if default_backend() == "numpy" else "a GPU"
    return {"machine": machine(), "where": where, "width": scale.speed_width, "batch": batch, "seconds": seconds}


def compare_speed(data: Data) -> Data:
    seconds = data["measured"]["seconds"]
    ratios = [a / b for a, b in zip(seconds["NormProp"], seconds["BatchNorm"], strict=True)]
    low, high = median_interval(len(ratios))
    return {
        "median_seconds": {name: statistics.median(found) for name, found in seconds.items()},
        "ratios": ratios,
        "ratio": statistics.median(ratios),
        "low": sorted(ratios)[low],
        "high": sorted(ratios)[high],
        "confidence": between(len(ratios), low),
        "paper": EPOCH_SECONDS["normprop"] / EPOCH_SECONDS["batch"],
    }


def median_interval(count: int) -> tuple[int, int]:
    """The places, in sorted values, of the two with the median between them at 95 % or more, if there are enough.

    Each value is below the median with probability 1/2, so how many are is binomial: no shape is assumed.

    >>> median_interval(15)
    (3, 11)
    """
    return next(
        ((low, count - 1 - low) for low in range(count // 2, -1, -1) if between(count, low) >= 0.95), (0, count - 1)
    )


def between(count: int, low: int) -> float:
    """The probability that of so many values more than `low`, and fewer than count - low, are below the median."""
    return sum(math.comb(count, k) for k in range(low + 1, count - low)) / 2.0**count


def speed_findings(data: Data) -> list[Finding]:
    s = data["summary"]
    faster = True if s["high"] < 1.0 else False if s["low"] > 1.0 else None
    paper = f"{s['paper']:.3f}: 84 s against 96 s for an epoch on a GPU"
    reach = f"{100 * s['confidence']:.1f} %: {s['low']:.3f} to {s['high']:.3f}"
    words = f"{s['ratio']:.3f} of BN's time ({reach}), on {data['measured']['where']}"
    return [Finding("NormProp takes less time than BN.", paper, words, faster)]


def tell_speed(data: Data) -> str:
    m, s = data["measured"], data["summary"]
    (finding,) = speed_findings(data)
    return (
        f"A training step on {m['batch']} images at {m['width']:g} times the paper's width takes "
        f"{1000 * s['median_seconds']['NormProp']:.0f} ms with NormProp and "
        f"{1000 * s['median_seconds']['BatchNorm']:.0f} ms with BatchNorm, medians of {len(s['ratios'])} rounds in "
        f"turns: {finding.ours}. The paper has {finding.paper}. NormProp is faster: {finding.verdict}. On a CPU it "
        "may also spread a batch over all cores, which BatchNorm cannot; that is not used here. Times are measured "
        "once and kept, so the command draws the same picture again; delete the folder of the runs to measure anew."
    )


EXPERIMENTS = (
    Experiment(
        "results", "5.5", "Test errors on the data sets",
        table_settings, compare_sets, pictures.results, tell_sets, set_findings,
    ),
    Experiment(
        "speed", "5.6", "The time of a training step",
        lambda scale: {}, compare_speed, pictures.speed, tell_speed, speed_findings, measure_speed, timed=True,
    ),
)  # fmt: skip
