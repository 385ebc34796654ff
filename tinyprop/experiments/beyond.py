"""What the paper does not ask, or only mentions: where gamma and beta start, optimisers, dropout, activations."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .. import moments, nn
from ..engine.arrays import from_host
from ..engine.tensor import Tensor
from ..random import manual_seed, new_generator
from ..train import Config
from . import pictures
from .points import Data
from .recipe import Experiment, Finding, accuracy_words, beats, compare, curves, has_sign, lost, points_words
from .scales import Scale
from .section5 import NORMS
from .statistics import all_hold, interval, within

# -- the Jacobian factor

STARTS: Mapping[str, Mapping[str, Any]] = {
    "gamma = 1/1.21": {},
    "gamma = 1": {"gamma": 1.0},
    "exact, beta = 0": {"mode": "exact", "gamma": 1.0, "beta": 0.0},
    "exact, beta = gamma": {"mode": "exact"},
}
INPUTS = 256
CLASSES = 10
KEPT = 2.0  # a signal is kept if it changes by less than this factor, from 1/2 to 2


def start_settings(scale: Scale) -> Mapping[str, Config]:
    base = replace(scale.protocol, epochs=scale.side_epochs)
    return {label: replace(base, **change) for label, change in STARTS.items()}


def measure_starts(scale: Scale) -> Data:
    """For each start and seed: the signals of a deep network."""
    return {label: [measure_start(scale, change, seed) for seed in scale.seeds] for label, change in STARTS.items()}


def measure_start(scale: Scale, change: Mapping[str, Any], seed: int) -> Data:
    """After each layer of a deep network: the spread of a unit over inputs, and that of the loss's gradient in it."""
    manual_seed(seed)
    random = new_generator(seed)
    width = scale.depth_width
    layers: list[nn.Module] = []
    for _ in range(scale.depth):
        layer = nn.NormPropLinear(
            width, width, "relu", change.get("gamma", "jacobian"), str(change.get("mode", "paper"))
        )
        if "beta" in change:
            layer.beta.data[...] = change["beta"]
        layers.append(layer)
    x = Tensor(from_host(random.standard_normal((INPUTS, width), "float32"), like=layer.weight.data))
    labels = random.integers(0, CLASSES, INPUTS)
    signals = nn.signals(nn.Sequential(*layers, nn.Linear(width, CLASSES)), x, labels)[:-1]
    return {
        "std": [(s.std**2 + s.mean**2 - s.unit_mean_square) ** 0.5 for s in signals],  # of a unit, over inputs
        "gradient_std": [s.gradient_std for s in signals],
    }


def compare_starts(data: Data) -> Data:
    """Factors from end to end are summarised by their logarithms, in which halves and doubles are alike."""
    base = "gamma = 1/1.21"
    return {
        "curves": curves(data),
        "less 1/1.21": {label: compare(data, label, base) for label in STARTS if label != base},
        "log of the change": {
            label: {
                "forward": interval([math.log(run["std"][-1] / run["std"][0]) for run in runs]),
                "backward": interval([math.log(run["gradient_std"][0] / run["gradient_std"][-1]) for run in runs]),
            }
            for label, runs in data["measured"].items()
        },
    }


def depth_of(data: Data) -> int:
    return len(data["measured"]["gamma = 1/1.21"][0]["std"])


def factor_words(found: Data) -> str:
    """The geometric mean of a factor and its interval, as text.

    >>> factor_words({"mean": math.log(1000.0), "reach": math.log(2.0), "runs": 3})
    '1,000 (500 to 2,000)'
    """

    def factor(logarithm: float) -> str:
        return f"{float(f'{math.exp(logarithm):.2g}'):,g}"

    mean, reach = found["mean"], found["reach"]
    return factor(mean) + ("" if reach is None else f" ({factor(mean - reach)} to {factor(mean + reach)})")


def start_findings(data: Data) -> list[Finding]:
    change = data["summary"]["log of the change"]["gamma = 1/1.21"]
    limits = f"within {1 / KEPT:g} to {KEPT:g}, {depth_of(data)} layers, at the start"
    best = data["summary"]["less 1/1.21"]["gamma = 1"]
    return [
        Finding(
            f"gamma = 1/1.21 keeps gradients at their scale: their spread, first over last layer ({limits}).",
            "1",
            factor_words(change["backward"]),
            within(change["backward"], math.log(KEPT)),
        ),
        Finding(
            f"Normalisation propagates with gamma = 1/1.21: spread of a unit, last over first layer ({limits}).",
            "1",
            factor_words(change["forward"]),
            within(change["forward"], math.log(KEPT)),
        ),
        Finding(
            "gamma = 1/1.21 trains better than gamma = 1 (section 4.3: it helps larger learning rates).",
            "no number",
            f"gamma = 1 less 1/1.21: {points_words(best)}",
            has_sign(best, -1),
        ),
    ]


def tell_starts(data: Data) -> str:
    changes = data["summary"]["log of the change"]
    start = "; ".join(
        f"{label}: {factor_words(d['forward'])} and {factor_words(d['backward'])}" for label, d in changes.items()
    )
    best = min(changes, key=lambda label: sum(abs(change["mean"]) for change in changes[label].values()))
    backward, forward, better = start_findings(data)
    words = "; ".join(f"{label}: {accuracy_words(data, label)}" for label in STARTS)
    against = "; ".join(f"{label}: {points_words(d)}" for label, d in data["summary"]["less 1/1.21"].items())
    return (
        f"Through {depth_of(data)} fully connected layers, untrained, the spread of a unit over inputs changes "
        "forwards, and that of the gradient backwards, by these factors (geometric means over seeds, with 95 % "
        f"intervals): {start}. Nearest to keeping both is '{best}'; no start keeps both exactly (claims G2 and G3 of "
        f"`tinyprop verify`). That gamma = 1/1.21 keeps gradients within a factor of {KEPT:g}: {backward.verdict}; "
        f"the spread of units: {forward.verdict}. The paper's network has only 9 layers; trained, its accuracy is "
        f"({words}). Against gamma = 1/1.21: {against}. That 1/1.21 trains better than 1: {better.verdict}. "
        "At the start the picture has a line for each seed."
    )


# -- optimisers

RATES = {"SGD": (0.05, 0.15, 0.5), "momentum 0.9": (0.015, 0.05, 0.15), "RMSProp": (0.0001, 0.0003, 0.001)}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "SGD": {"momentum": 0.0},
    "momentum 0.9": {"momentum": 0.9},
    "RMSProp": {"optimizer": "rmsprop"},
}


def optimizer_settings(scale: Scale) -> Mapping[str, Config]:
    base = replace(scale.protocol, epochs=scale.many_epochs)
    return {
        f"{name}, rate {lr:g}": replace(base, lr=lr, **KINDS[name]) for name, rates in RATES.items() for lr in rates
    }


def compare_optimizers(data: Data) -> Data:
    """Each optimiser at the best of its rates: where the fewest runs diverge, and of these the one with the smallest
    training loss, so the test images do not choose."""

    def badness(label: str) -> tuple[int, float]:
        losses = [run["train_loss"][-1] for run in data["points"][label] if not run["diverged"]]
        return lost(data, label), statistics.fmean(losses) if losses else math.inf

    best = {name: min((f"{name}, rate {lr:g}" for lr in rates), key=badness) for name, rates in RATES.items()}
    pairs = (("momentum 0.9", "RMSProp"), ("RMSProp", "SGD"), ("momentum 0.9", "SGD"))
    return {
        "curves": curves(data),
        "best": best,
        "rates": {name: [[lr, f"{name}, rate {lr:g}"] for lr in rates] for name, rates in RATES.items()},
        "differences": [
            {"of": ours, "and": theirs, **compare(data, best[ours], best[theirs])} for ours, theirs in pairs
        ],
    }


def optimizer_findings(data: Data) -> list[Finding]:
    return [
        Finding(
            f"{d['of']} is better than {d['and']} (footnote of section 5.3).",
            "no number",
            points_words(d),
            has_sign(d, 1),
        )
        for d in data["summary"]["differences"]
    ]


def tell_optimizers(data: Data) -> str:
    best = data["summary"]["best"]
    words = "; ".join(f"{label}: {accuracy_words(data, label)}" for label in best.values())
    verdicts = "; ".join(f"{f.claim.partition(' (')[0]}: {f.verdict} ({f.ours})" for f in optimizer_findings(data))
    return (
        "Each optimiser has three learning rates, a factor of about 3 apart, and is judged at the one with the least "
        f"training loss in the end: {words}. (Which rates to try was chosen after short probes of one seed.) The "
        f"paper's footnote has momentum first, RMSProp second, SGD last. Here: {verdicts}."
    )


# -- dropout

DROPPED = 0.2


def dropout_settings(scale: Scale) -> Mapping[str, Config]:
    base = replace(scale.protocol, epochs=scale.side_epochs)
    return {
        f"{name}, {how}": replace(base, norm=norm, dropout=p)
        for name, norm in NORMS.items()
        for how, p in (("without", 0.0), ("with dropout", DROPPED))
    }


def compare_dropout(data: Data) -> Data:
    return {
        "curves": curves(data),
        "with less without": {name: compare(data, f"{name}, with dropout", f"{name}, without") for name in NORMS},
    }


def dropout_findings(data: Data) -> list[Finding]:
    claims = {
        "NormProp": f"Dropout ({DROPPED:g}, after poolings) harms NormProp, whose outputs it changes (section 4.4).",
        "BatchNorm": "The same dropout harms BN.",
    }
    found = data["summary"]["with less without"]
    return [
        Finding(
            claim,
            "no number" if name == "NormProp" else "not in the paper",
            points_words(found[name]),
            has_sign(found[name], -1),
        )
        for name, claim in claims.items()
    ]


def tell_dropout(data: Data) -> str:
    found = data["summary"]["with less without"]
    ours, theirs = dropout_findings(data)
    words = "; ".join(f"{label}: {accuracy_words(data, label)}" for label in data["points"])
    return (
        f"A dropout of {DROPPED:g} after the two hidden poolings. Accuracy: {words}. With less without: "
        + ", ".join(f"{name} {points_words(d)}" for name, d in found.items())
        + f". Dropout harms NormProp: {ours.verdict}; and BatchNorm: {theirs.verdict}. A harm that is not NormProp's "
        "alone may be that of any regulariser in a short training."
    )


# -- activations

ACTIVATIONS = ("relu", "prelu", "tanh", "elu", "gelu")


def activation_settings(scale: Scale) -> Mapping[str, Config]:
    base = replace(scale.protocol, epochs=scale.side_epochs)
    return {activation: replace(base, activation=activation) for activation in ACTIVATIONS}


def measure_activations(scale: Scale) -> Data:
    """The constants of each activation for N(0, 1)."""
    found = {}
    for activation in ACTIVATIONS:
        m = moments.gaussian(activation, **({"a": nn.normalization.PRELU_START} if activation == "prelu" else {}))
        found[activation] = {"c1": float(m.std), "c2": float(m.mean), "jacobian_factor": float(m.jacobian_factor)}
    return found


def compare_activations(data: Data) -> Data:
    return {"curves": curves(data), "less relu": {a: compare(data, a, "relu") for a in ACTIVATIONS if a != "relu"}}


def activation_findings(data: Data) -> list[Finding]:
    found = data["summary"]["curves"]
    chance = 100.0 / CLASSES
    words = "; ".join(f"{activation}: {accuracy_words(data, activation)}" for activation in found)
    claim = f"NormProp extends to other activations, with their own constants: all exceed chance, {chance:g} %."
    return [Finding(claim, "no number", words, all_hold(beats(curve, chance) for curve in found.values()))]


def tell_activations(data: Data) -> str:
    against = "; ".join(f"{a} {points_words(d)}" for a, d in data["summary"]["less relu"].items())
    (finding,) = activation_findings(data)
    factors = ", ".join(f"{a} {m['jacobian_factor']:.3f}" for a, m in data["measured"].items())
    return (
        f"NormProp networks with the constants and the Jacobian factor of each activation ({factors}), at the same "
        f"learning rate. Accuracy: {finding.ours}. Against ReLU: {against}. The method extends to other activations: "
        f"{finding.verdict}."
    )


EXPERIMENTS = (
    Experiment(
        "jacobian-factor", "3.4, 4.3", "Where gamma and beta start",
        start_settings, compare_starts, pictures.jacobian_factor, tell_starts, start_findings, measure_starts,
    ),
    Experiment(
        "optimizers", "5.3", "SGD, momentum and RMSProp",
        optimizer_settings, compare_optimizers, pictures.optimizers, tell_optimizers, optimizer_findings,
    ),
    Experiment(
        "dropout", "4.4", "Dropout",
        dropout_settings, compare_dropout, pictures.dropout, tell_dropout, dropout_findings,
    ),
    Experiment(
        "activations", "4.6", "Other activations",
        activation_settings, compare_activations, pictures.activations, tell_activations, activation_findings,
        measure_activations,
    ),
)  # fmt: skip
