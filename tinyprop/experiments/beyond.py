"""What the paper does not ask, or only mentions: where gamma and beta start, optimisers, dropout, activations."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .. import moments, nn
from ..backend import from_host, manual_seed, new_generator
from ..tensor import Tensor
from ..train import Config
from . import pictures
from .points import Data
from .recipe import Experiment, Finding, accuracy_words, compare, curves, points_words
from .scales import Scale
from .section5 import NORMS
from .statistics import above

# -- the Jacobian factor

STARTS: Mapping[str, Mapping[str, Any]] = {
    "gamma = 1/1.21": {},
    "gamma = 1": {"gamma": 1.0},
    "exact, beta = 0": {"mode": "exact", "gamma": 1.0, "beta": 0.0},
    "exact, beta = gamma": {"mode": "exact"},
}
INPUTS = 256
CLASSES = 10


def start_settings(scale: Scale) -> Mapping[str, Config]:
    base = replace(scale.protocol, epochs=scale.side_epochs)
    return {label: replace(base, **change) for label, change in STARTS.items()}


def measure_starts(scale: Scale) -> Data:
    """After each layer of a deep network: the spread of a unit over inputs, and that of the loss's gradient in it."""
    found = {}
    for label, change in STARTS.items():
        manual_seed(0)
        random = new_generator(0)
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
        model = nn.Sequential(*layers, nn.Linear(width, CLASSES))
        signals = nn.signals(model, x, labels)[:-1]
        found[label] = {
            "std": [(s.std**2 + s.mean**2 - s.unit_mean_square) ** 0.5 for s in signals],  # of a unit, over inputs
            "gradient_std": [s.gradient_std for s in signals],
        }
    return found


def compare_starts(data: Data) -> Data:
    base = "gamma = 1/1.21"
    return {
        "curves": curves(data),
        "less 1/1.21": {label: compare(data, label, base) for label in STARTS if label != base},
        "depth": {
            label: {
                "forward": found["std"][-1] / found["std"][0],
                "backward": found["gradient_std"][0] / found["gradient_std"][-1],
            }
            for label, found in data["measured"].items()
        },
    }


def start_findings(data: Data) -> list[Finding]:
    found = data["summary"]["less 1/1.21"]
    depth = data["summary"]["depth"]["gamma = 1/1.21"]
    layers = len(data["measured"]["gamma = 1/1.21"]["std"])
    best = found["gamma = 1"]
    return [
        Finding(
            f"gamma = 1/1.21 keeps gradients at their scale: first over last of {layers} layers, at the start.",
            "1",
            f"{depth['backward']:.2g}",
            0.5 < depth["backward"] < 2.0,
        ),
        Finding(
            f"Normalisation propagates with gamma = 1/1.21: spread of a unit, last over first of {layers} layers.",
            "1",
            f"{depth['forward']:.2g}",
            0.5 < depth["forward"] < 2.0,
        ),
        Finding(
            "gamma = 1/1.21 trains better than gamma = 1 (section 4.3: it helps larger learning rates).",
            "no number",
            f"gamma = 1 less 1/1.21: {points_words(best)}",
            None if best["sign"] == 0 else best["sign"] < 0,
        ),
    ]


def tell_starts(data: Data) -> str:
    layers = len(data["measured"]["gamma = 1"]["std"])
    depth = data["summary"]["depth"]
    start = "; ".join(f"{label}: {d['forward']:.2g} and {d['backward']:.2g}" for label, d in depth.items())
    best = min(depth, key=lambda label: sum(abs(math.log(change)) for change in depth[label].values()))
    words = "; ".join(f"{label}: {accuracy_words(data, label)}" for label in STARTS)
    against = "; ".join(f"{label}: {points_words(d)}" for label, d in data["summary"]["less 1/1.21"].items())
    return (
        f"Through {layers} fully connected layers, untrained, the spread of a unit over inputs changes forwards, and "
        f"that of the gradient backwards, by factors of ({start}). Nearest to keeping both is '{best}'; no start keeps "
        "both exactly (claims G2 and G3 of `tinyprop verify`). The paper's network has only 9 layers; trained, its "
        f"accuracy is ({words}). Against gamma = 1/1.21: {against}."
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
    """Each optimiser at the best of its rates: that of the smallest training loss, so the test images do not choose."""
    best: dict[str, str | None] = {}
    for name, rates in RATES.items():
        losses = {}
        for lr in rates:
            runs = data["points"][f"{name}, rate {lr:g}"]
            if not any(run["diverged"] for run in runs):
                losses[f"{name}, rate {lr:g}"] = statistics.fmean(run["train_loss"][-1] for run in runs)
        best[name] = min(losses, key=losses.__getitem__) if losses else None
    pairs = (("momentum 0.9", "RMSProp"), ("RMSProp", "SGD"), ("momentum 0.9", "SGD"))
    return {
        "curves": curves(data),
        "best": best,
        "rates": {name: [[lr, f"{name}, rate {lr:g}"] for lr in rates] for name, rates in RATES.items()},
        "differences": [
            {"of": ours, "and": theirs, **compare(data, best[ours] or "", best[theirs] or "")} for ours, theirs in pairs
        ],
    }


def optimizer_findings(data: Data) -> list[Finding]:
    return [
        Finding(
            f"{d['of']} is better than {d['and']} (footnote of section 5.3).",
            "no number",
            points_words(d),
            None if d["sign"] == 0 else d["sign"] > 0,
        )
        for d in data["summary"]["differences"]
    ]


def tell_optimizers(data: Data) -> str:
    best = data["summary"]["best"]
    words = "; ".join(
        f"{label}: {accuracy_words(data, label)}" if label else f"{name}: diverged" for name, label in best.items()
    )
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
            None if found[name]["sign"] == 0 else found[name]["sign"] < 0,
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
        m = moments.gaussian(activation, **({"a": nn.normalization.START_OF_A} if activation == "prelu" else {}))
        found[activation] = {"c1": float(m.std), "c2": float(m.mean), "jacobian_factor": float(m.jacobian_factor)}
    return found


def compare_activations(data: Data) -> Data:
    return {"curves": curves(data), "less relu": {a: compare(data, a, "relu") for a in ACTIVATIONS if a != "relu"}}


def activation_findings(data: Data) -> list[Finding]:
    found = data["summary"]["curves"]
    chance = 100.0 / CLASSES
    learnt = all(above(curve["final"], chance) for curve in found.values())
    words = "; ".join(f"{activation}: {accuracy_words(data, activation)}" for activation in found)
    claim = f"NormProp extends to other activations, with their own constants: all exceed chance, {chance:g} %."
    return [Finding(claim, "no number", words, learnt or None)]


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
