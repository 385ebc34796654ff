"""NormProp with the right variance: does dividing by sqrt(w^T C w), with C measured, train better
than by |w|?

    # half an hour on one core; resumes from figures/right-variance.json
    python tools/right_variance.py --root DATA
    # a short try
    python tools/right_variance.py --root DATA --out /tmp/page --seeds 1 --steps 5

The paper's layer divides w.x by |w|, which is its standard deviation if the values of a patch x are
uncorrelated and have variance 1. On images they are neither. With the mean m and the covariance C
of the patches, measured on a few hundred images,

    u = gamma w.(x - m) / sqrt(w^T C w) + beta

has mean beta and variance gamma^2 on those images, whatever w is; padding and pooling are inside m
and C. As in the paper, the layer depends on the direction of w only, and on no other image of the
batch. (With m and C of the batch, it would be BatchNorm forwards; but here they are constants for
the gradient.) C is measured once, or again after every other step, on the same images."""

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import tinyprop as tp  # noqa: E402
from tinyprop import functional as F  # noqa: E402
from tinyprop import nn  # noqa: E402
from tinyprop.engine.errors import DivergenceError  # noqa: E402
from tinyprop.engine.random import new_generator  # noqa: E402
from tinyprop.engine.tensor import Tensor  # noqa: E402
from tinyprop.functional.windows import Window  # noqa: E402
from tinyprop.report.environment import versions  # noqa: E402
from tinyprop.report.estimate import Estimate  # noqa: E402
from tinyprop.report.files import write_json, write_whole  # noqa: E402
from tinyprop.report.table import Table  # noqa: E402

RULES = {
    "paper": "the paper's rule, gamma = 1",
    "jacobian": "the paper's rule, gamma = 1/1.21",
    "once": "C measured once, gamma = 1",
    "refreshed": "C refreshed, gamma = 1",
    "batch": "BatchNorm",
}
BATCH, TRAIN, TEST = 50, 10_000, 1000  # images: of a step, to train on, to measure Var u on
# images that C is measured on once; and again after every so many steps
ONCE, FIXED, EVERY = 500, 100, 2
CHUNK = 50  # images whose patches are in memory together
LARGEST = 100.0  # a loss above this counts as diverged; guessing has 2.3


class RightVariance(nn.NormPropConv2d):
    """A NormProp layer that divides by the standard deviation of w.x for patches of a given mean
    and covariance.

    At first they have mean 0 and covariance I: the paper's rule.
    """

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        size = math.prod(self.weight.shape[1:])
        self.patch_mean, self.covariance = (
            Tensor(np.zeros(size, "float32")),
            Tensor(np.eye(size, dtype="float32")),
        )

    def pre_activation(self, x):
        rows = self.weight.reshape(len(self.weight.data), -1)  # (O, C kh kw)
        variance = (F.linear(rows, self.covariance) * rows).sum(axis=1)
        scale = self.gamma / variance**0.5
        shift = self.beta - scale * (rows * self.patch_mean).sum(axis=1)
        return self.weighted_sum(x, self.weight * scale.reshape(-1, 1, 1, 1)) + self.per_unit(shift)

    def forward(self, x):
        c1, c2 = self.constants()
        return (self.activate(self.pre_activation(x)) - c2) / c1

    def measure(self, x):
        """Take the mean and the covariance of the patches of these images."""
        window, size = (
            Window.of(self.kernel_size, self.stride, self.padding),
            len(self.patch_mean.data),
        )
        count, total, products = 0, np.zeros(size), np.zeros((size, size))
        for start in range(0, len(x), CHUNK):
            part = np.ascontiguousarray(x[start : start + CHUNK].transpose(0, 2, 3, 1))
            views = window.unfold(part)  # (n, rows, columns, kh, kw, C)
            patches = views.transpose(0, 1, 2, 5, 3, 4).reshape(-1, size)
            count += len(patches)
            total += patches.sum(axis=0, dtype="float64")
            products += patches.T @ patches
        mean = total / count
        self.patch_mean.data[...] = mean
        self.covariance.data[...] = products / count - np.outer(mean, mean)


@dataclass(frozen=True)
class Training:
    """One run: the losses of its steps, and the mean over units of Var u in each layer, before and
    after."""

    rule: str
    lr: float
    seed: int
    losses: list[float]  # they end early if it diverged
    before: list[float]
    after: list[float] | None

    def final(self, steps: int) -> float:
        """The mean loss of the last third of the steps; NaN if it diverged before the end."""
        return (
            float(np.mean(self.losses[2 * steps // 3 :])) if len(self.losses) == steps else math.nan
        )


def network(rule, images):
    """The paper's network for images like these, width 0.25."""
    if rule == "batch":
        layers = list(nn.build(nn.NIN, norm="batch", width=0.25))
    else:
        gamma = "jacobian" if rule == "jacobian" else 1.0
        layers = list(nn.build(nn.NIN, norm="normprop", width=0.25, gamma=gamma))
    if rule in ("once", "refreshed"):
        for i, layer in enumerate(layers):
            if isinstance(layer, nn.NormPropConv2d):
                geometry = (
                    layer.in_channels,
                    layer.out_channels,
                    layer.kernel_size,
                    layer.stride,
                    layer.padding,
                )
                layers[i] = RightVariance(*geometry, gamma=1.0)
                layers[i].weight.data[...] = layer.weight.data
    return nn.Sequential(tp.data.GlobalNormalizer(images.shape[1:]).fit(images), *layers)


@tp.no_grad()
def measure(net, images):
    """Measure C in every layer, from the first to the last."""
    x = Tensor(images)
    for layer in net:
        if isinstance(layer, RightVariance):
            layer.measure(x.data)
        x = layer(x)


@tp.no_grad()
def variances(net, images):
    """Var u of each hidden layer, over images and positions, averaged over its units."""
    x, found = Tensor(images), []
    for layer in net:
        if isinstance(layer, RightVariance):
            u = layer.pre_activation(x)
        elif isinstance(layer, nn.NormPropConv2d):
            u = layer.weighted_sum(x, F.weight_norm(layer.weight, layer.gamma)) + layer.per_unit(
                layer.beta
            )
        x = layer(x)
        u = (
            x
            if isinstance(layer, nn.BatchNorm)
            else u
            if isinstance(layer, nn.NormPropConv2d)
            else None
        )
        found += [] if u is None else [float(u.data.var(axis=(0, 2, 3), dtype="float64").mean())]
    return found


def train(rule, lr, seed, steps, train_set, test_images):
    """One run; C comes from images that it also trains on, Var u from test images."""
    tp.manual_seed(seed)
    order = new_generator([seed, len(train_set)]).permutation(len(train_set))
    train_set = train_set.subset(order[:TRAIN])
    net = network(rule, train_set.images)
    some = train_set.images[: {"once": ONCE, "refreshed": FIXED}.get(rule, 0)]
    measure(net, some) if len(some) else None
    before, losses = variances(net, test_images), []
    optimizer = tp.optim.SGD(net.parameters(), lr, momentum=0.9, weight_decay=0.001)
    step, epoch = tp.train.TrainingStep(net, optimizer, threads=1), 0
    while len(losses) < steps:
        for images, labels in tp.data.batches(train_set, BATCH, new_generator([seed, epoch])):
            try:
                loss = float(step(images, labels))
            except DivergenceError:
                loss = math.inf
            if not loss < LARGEST:
                return Training(rule, lr, seed, losses, before, None)
            losses.append(loss)
            if len(losses) == steps:
                break
            if rule == "refreshed" and len(losses) % EVERY == 0:
                measure(net, some)
        epoch += 1
    return Training(rule, lr, seed, losses, before, variances(net, test_images))


def page(runs, steps, data):
    """The tables, as Markdown."""
    seeds, rates = sorted({r.seed for r in runs}), sorted({r.lr for r in runs})
    layers = [f"{i + 1}" for i in range(len(runs[0].before))]
    rates_text = " and ".join(f"{lr:g}" for lr in rates)

    def rows_of(lr, when):
        for rule, title in RULES.items():
            same = [getattr(r, when) for r in runs if (r.rule, r.lr) == (rule, lr)]
            if rule != "batch" and (some := [v for v in same if v is not None]):
                found = zip(*some, strict=True)
                yield [
                    title,
                    *(f"{np.mean(v):.2f} ({min(v):.2f}-{max(v):.2f})" for v in found),
                    f"{len(some)}",
                ]

    header = ["rule", *layers, "runs"]
    title = "Variance of the pre-activations by layer, before training"
    tables = [Table(header, list(rows_of(rates[0], "before")), title)]
    for lr in rates:
        title = f"The same after {steps} steps at a rate of {lr:g}, where the run did not diverge"
        tables.append(Table(header, list(rows_of(lr, "after")), title))
    losses = []
    for rule, title in RULES.items():
        for lr in rates:
            some = [r for r in runs if (r.rule, r.lr) == (rule, lr)]
            finals = [r.final(steps) for r in some]
            survived = [x for x in finals if math.isfinite(x)]
            each = [f"{x:.2f}" for x in finals]
            each = [
                x if x != "nan" else f"(step {len(r.losses) + 1})"
                for x, r in zip(each, some, strict=True)
            ]
            mean = f"{Estimate.of(survived):.2f}" if len(survived) == len(some) else "-"
            losses.append(
                [title, f"{lr:g}", f"{len(survived)} of {len(some)}", mean, ", ".join(each)]
            )
    title = f"Mean training loss of steps {2 * steps // 3 + 1} to {steps}"
    note = (
        "In parentheses: the step at which a run diverged. A mean is given where every seed "
        "survived, ± the half-width "
        "of its 95 % interval. " + " ".join(differences(runs, steps, rates))
    )
    tables.append(
        Table(["rule", "rate", "survived", "mean", "by seed"], losses, title, note, "lrrrl")
    )
    intro = f"""# NormProp with the right variance

Written by `python tools/right_variance.py`, which defines the method; the losses of every step are
in [right-variance.json](right-variance.json). The paper's network at width 0.25 on {data}
({TRAIN:,} images), {steps} steps of {BATCH} images, momentum 0.9, weight decay 0.001, rates
{rates_text}, random seeds {", ".join(map(str, seeds))}. C is measured on {ONCE} training images
once, or on {FIXED} fixed ones at the start and after every {EVERY} steps. Variances are means over
units, on {TEST:,} test images: the mean over seeds, and in parentheses the smallest and the
largest. Losses are those of the mini-batches, for BatchNorm in training mode. A loss above
{LARGEST:g} counts as diverged.
"""
    return "\n\n".join([intro.rstrip(), *(t.markdown() for t in tables)]) + "\n"


def differences(runs, steps, rates):
    """Each rule minus BatchNorm, in pairs of the same seed, where all survived."""
    for rule, title in list(RULES.items())[:-1]:
        for lr in rates:
            one, other = (
                [r.final(steps) for r in runs if (r.rule, r.lr) == (x, lr)] for x in (rule, "batch")
            )
            pairs = [a - b for a, b in zip(one, other, strict=True)]
            if all(map(math.isfinite, pairs)):
                yield (
                    f"{title[0].upper() + title[1:]}, minus BatchNorm, at {lr:g}: "
                    f"{Estimate.of(pairs):+.2f}."
                )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="cifar10", choices=tp.data.NAMES)
    parser.add_argument("--root", type=Path, help="data directory")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.05, 0.2])
    parser.add_argument(
        "--out", type=Path, default=ROOT / "figures/right-variance", help="without .json and .md"
    )
    options = parser.parse_args()
    train_set = tp.data.load(options.data, options.root, "train")
    test_images = tp.data.load(options.data, options.root, "test").images[:TEST]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    path = options.out.with_suffix(".json")
    facts = {"data": options.data, "steps": options.steps}
    saved = json.loads(path.read_text()) if path.exists() else facts | {"runs": []}
    if {name: saved[name] for name in facts} != facts:
        parser.error(
            f"{path} has runs with {saved['data']} and {saved['steps']} steps: choose another --out"
        )
    runs = [Training(**r) for r in saved["runs"]]
    tp.train.keep_freed_memory()
    for seed in range(options.seeds):
        for lr in options.rates:
            for rule in RULES:
                if not any((r.rule, r.lr, r.seed) == (rule, lr, seed) for r in runs):
                    runs.append(train(rule, lr, seed, options.steps, train_set, test_images))
                    write_json(
                        path, facts | {"versions": versions(), "runs": [asdict(r) for r in runs]}
                    )
                    print(
                        rule,
                        lr,
                        seed,
                        len(runs[-1].losses),
                        runs[-1].final(options.steps),
                        flush=True,
                    )
    write_whole(options.out.with_suffix(".md"), page(runs, options.steps, options.data).encode())


if __name__ == "__main__":
    main()
