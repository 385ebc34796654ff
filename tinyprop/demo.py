"""`tinyprop demo`: signals through depth, and what a small network has learnt."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from . import functional as F
from . import nn, plots
from .arguments import whole_number
from .cli import main
from .engine.arrays import HostArray, to_numpy
from .engine.graph import no_grad
from .engine.tensor import Tensor
from .random import manual_seed, new_generator
from .train import Config, Run, keep_freed_memory, logits

LAYERS, WIDTH, SAMPLES = 10, 256, 1000
SHOWN = (1, 2, 4, 6, 8, 10)


@no_grad()
def signals_by_depth() -> dict[str, dict[str, HostArray]]:
    """What the ReLUs of untrained networks get from N(0, 1) inputs, in some of their layers: (samples, units) each."""
    manual_seed(0)
    x = Tensor(new_generator(0).standard_normal((SAMPLES, WIDTH), "float32"))
    plain = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    normprop = [nn.NormPropLinear(WIDTH, WIDTH, gamma=1.0) for _ in range(LAYERS)]

    def without(x: Tensor, normalise: nn.Module) -> Iterator[Tensor]:
        for layer in plain:
            u = normalise(layer(x))
            yield u
            x = F.relu(u)

    def propagated(x: Tensor) -> Iterator[Tensor]:
        for layer in normprop:
            yield layer.weighted_sum(x, F.weight_norm(layer.weight, layer.gamma))
            x = layer(x)

    pairs = (list(without(x[i : i + 2], nn.BatchNorm(WIDTH))) for i in range(0, SAMPLES, 2))
    networks = {
        "No normalisation": list(without(x, nn.Identity())),
        "BatchNorm, batches of 2": [F.concatenate(outputs) for outputs in zip(*pairs, strict=True)],
        "NormProp, no batch needed": list(propagated(x)),
    }
    return {name: {f"layer {i}": to_numpy(u[i - 1].data) for i in SHOWN} for name, u in networks.items()}


def demo(out: Path, epochs: int) -> bool:
    """Draw, train and show; False if stopped before the end."""
    picture = plots.ridges(signals_by_depth(), f"what the ReLUs get, in untrained networks of {LAYERS} layers")
    depth = plots.save(picture, out / "depth.png")
    run = Run(Config(data="shapes", width=0.125, epochs=epochs, halve_every=2, train_size=5000), out)
    if not run.run(resume=True):
        print("stopped; the same command goes on from here")
        return False
    images, labels = run.test.images[:32], run.test.labels[:32]
    guesses = to_numpy(logits(run.model, images)).argmax(axis=1)
    learnt = plots.save(plots.predictions(images, labels, guesses, run.test.classes), out / "predictions.png")
    print(f"\nA NormProp network has learnt shapes to a test error of {run.history[-1]['test_error']:.1%}.")
    print(f"Look at {depth}, {learnt}, {out / 'curves.png'} and {out / 'verify'}")
    return True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="output directory (default: %(default)s)")
    parser.add_argument("--epochs", type=whole_number(1), default=7, metavar="N", help="epochs (default: %(default)s)")


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    keep_freed_memory()
    status = main(["verify", "--figures", str(options.out / "verify")])
    return status if demo(options.out, options.epochs) else 130
