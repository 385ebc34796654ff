"""The commands."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tqdm import trange

from . import __version__, plots
from . import functional as F
from .autograd import no_grad
from .backend import HostArray, new_generator
from .errors import BackendError
from .tensor import Tensor, tensor
from .verify import command as verify


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tinyprop",
        description="Normalization Propagation on a small autograd engine.",
        epilog="example:  tinyprop demo --out runs/demo",
    )
    parser.add_argument("--version", action="version", version=f"tinyprop {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    demo_parser = commands.add_parser("demo", help="train a small network on spirals and draw what it has learnt")
    demo_parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for the picture (%(default)s)")
    demo_parser.add_argument("--steps", type=int, default=600, help="gradient steps (%(default)s)")
    demo_parser.set_defaults(run=demo)
    verify.add_parser(commands)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except (BackendError, OSError) as error:
        print(f"tinyprop: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tinyprop: stopped", file=sys.stderr)
        return 130


def demo(options: argparse.Namespace) -> int:
    """Three spirals, a network of two hidden layers, and nothing but the engine."""
    random = new_generator(0)
    points, labels = spirals(random, arms=3, per_arm=150)
    weights = [
        tensor(random.standard_normal(shape).astype(np.float32) * (2 / shape[0]) ** 0.5, requires_grad=True)
        for shape in [(2, 64), (64, 64), (64, 3)]
    ]
    biases = [tensor(np.zeros(w.shape[1], np.float32), requires_grad=True) for w in weights]

    def network(x: Tensor) -> Tensor:
        for w, b in zip(weights[:-1], biases[:-1], strict=True):
            x = F.relu(x @ w + b)
        return x @ weights[-1] + biases[-1]

    losses = []
    velocities = [0.0 * p.data for p in (*weights, *biases)]
    bar = trange(options.steps, desc="three spirals", disable=None)
    for _ in bar:
        loss = F.cross_entropy(network(tensor(points)), labels)
        loss.backward()
        for p, velocity in zip((*weights, *biases), velocities, strict=True):
            assert p.grad is not None
            velocity *= 0.9
            velocity -= 0.1 * p.grad.data
            p.data = p.data + velocity
            p.grad = None
        losses.append(loss.item())
        bar.set_postfix(loss=f"{losses[-1]:.4f}")

    side, extent = np.linspace(-1.2, 1.2, 200, dtype=np.float32), 1.2
    grid = np.stack(np.meshgrid(side, side), axis=-1)
    with no_grad():
        right = (network(tensor(points)).numpy().argmax(axis=1) == labels).mean()
        classes = network(tensor(grid.reshape(-1, 2))).numpy().argmax(axis=1)
    picture = plots.decision_map(points, labels, classes.reshape(200, 200), extent, losses)
    path = plots.save(picture, options.out / "spirals.png")
    print(f"{right:.1%} of the points are in their colour; the picture is {path}")
    return 0


def spirals(random: np.random.Generator, arms: int, per_arm: int) -> tuple[HostArray, HostArray]:
    """Points (N, 2) on noisy spiral arms, and the number of the arm of each."""
    radius = np.tile(np.linspace(0.05, 1.0, per_arm), arms)
    labels = np.repeat(np.arange(arms), per_arm)
    angle = 4.0 * radius + labels * (2 * np.pi / arms) + 0.15 * random.standard_normal(len(radius))
    points = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return points.astype(np.float32), labels
