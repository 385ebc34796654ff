"""`tinyprop compare`: normalisers through the same four instruments, theory and measurement in one
figure."""

import argparse
import math
import shutil
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from .. import nn
from ..engine.arrays import HostArray
from ..engine.errors import explain
from ..engine.graph import no_grad
from ..engine.random import manual_seed, new_generator
from ..engine.tensor import Tensor
from ..engine.threads import blas_threads
from ..functional.activation import activations, as_activation
from ..nn.init import INITS
from ..report.arguments import checked_by, output_figure, whole_number
from ..report.estimate import Estimate
from ..report.table import Table
from ..theory.sample import own_random_numbers
from ..theory.stacks import DEGREES, INSTRUMENTS, Stack
from .probes import correlations, samples_are_separate, spectra

POINTS = 5  # layers at which singular values are measured

DEFAULT = ["none/glorot", "none/he", "batch", "layer", "ws", "normprop", "normprop-exact"]
CHOSEN_INITS = [name for name in INITS if name != "fixup"]  # which needs a whole network


@dataclass(frozen=True)
class Curve:
    """What one instrument shows of one kind of network."""

    layers: HostArray
    theory: HostArray | None  # for each layer, if there is one
    at: HostArray
    points: list[Estimate]  # at some layers


def stops(stack: Stack, shift: float) -> HostArray:
    """Indices of layers at which points are drawn: the first, the last, and some between, moved by
    `shift`."""
    last = len(stack.layers) - 1
    between = (np.arange(POINTS) + shift) * last / POINTS
    return np.unique(np.array([0, *between, last]).round().astype(int))


def by_layer(
    stack: Stack, model: nn.Sequential, x: Tensor, random: np.random.Generator
) -> tuple[HostArray, HostArray]:
    """The standard deviation of a unit over inputs, and the size of a random gradient relative to
    the last layer."""
    head = nn.Linear(stack.width, stack.width)
    with no_grad():
        outputs = model(x)
    # no class is favoured: the gradient is random
    head.weight.data *= 1e-3 / math.sqrt((outputs.data**2).mean())
    labels = random.integers(0, stack.width, len(x))
    records = nn.signals(nn.Sequential(*model, head), x, labels)[:-1]
    squares = np.array([r.std**2 + r.mean**2 - r.unit_mean_square for r in records])
    if any(r.gradient_std is None for r in records):
        got = f"{stack.label} with {stack.function.name}, through which no gradient passes"
        rule = "outputs depend on inputs in the graph, so that gradients pass to the first layer"
        hint = "tp.functional and operators, in place of .data, .numpy() and .detach()"
        raise ValueError(explain(got, rule, hint))
    gradients = np.array([r.gradient_std for r in records])
    return np.sqrt(squares * len(x) / (len(x) - 1)), gradients / gradients[-1]


def measured(stack: Stack, networks: int, seed: int, at: HostArray) -> dict[str, HostArray]:
    """What each instrument shows at these layers: (networks, stops)."""
    shown = []
    for i in range(seed, seed + networks):
        manual_seed(i)
        random = new_generator([i, 1])
        model = stack.network()
        x = Tensor(random.standard_normal((stack.batch, stack.width), np.float32))
        signal, gradient = by_layer(stack, model, x, random)
        stages = [nn.Sequential(*list(model)[a:b]) for a, b in pairwise([0, *(at + 1)])]
        one = x[:1] if samples_are_separate(model) else x
        spectrum = [s.product[0] for s in spectra(nn.Sequential(*stages), one, 1, i)]
        pairs = correlations(model, x[: stack.batch // 2], DEGREES, i)
        shown.append([signal[at], gradient[at], spectrum, [pairs[k].cosines.mean() for k in at]])
    return dict(zip(INSTRUMENTS, np.array(shown).swapaxes(0, 1), strict=True))


def curves(stack: Stack, networks: int, seed: int, shift: float = 0.0) -> dict[str, Curve]:
    """Theory and measurement for each instrument. Of signals and gradients, squares are averaged
    over networks."""
    found, at = {}, stops(stack, shift)
    for name, values in measured(stack, networks, seed, at).items():
        if name in ("signal", "gradient"):
            points = [root(Estimate.of(list(column))) for column in (values**2).T]
        else:
            points = [Estimate.of(list(column)) for column in values.T]
        found[name] = Curve(stack.layers, theory_of(stack, name), stack.layers[at], points)
    return found


def theory_of(stack: Stack, name: str) -> HostArray | None:
    """What theory predicts of what is measured. Its Jacobian is that of one sample, but of a batch
    if some module may look across it."""
    theory = stack.predicted(name)
    if theory is None or name != "spectrum":
        return theory
    with own_random_numbers():
        network = replace(stack, depth=2).network()
    return theory if samples_are_separate(network) else None


def root(square: Estimate) -> Estimate:
    """The square root of an estimate, and its error to first order."""
    mean = math.sqrt(square.mean)
    return Estimate.from_error(mean, square.standard_error / (2.0 * mean), square.n)


def compare(stacks: list[Stack], networks: int, seed: int) -> dict[str, dict[str, Curve]]:
    """For each instrument, the curves of all normalisers."""
    from tqdm.auto import tqdm

    found: dict[str, dict[str, Curve]] = {name: {} for name in INSTRUMENTS}
    with blas_threads(1):  # the products are small
        for i, stack in enumerate(tqdm(stacks, disable=None, leave=False)):
            for name, curve in curves(stack, networks, seed, i / len(stacks)).items():
                found[name][stack.label] = curve
    return found


def table(found: dict[str, dict[str, Curve]]) -> Table:
    """The gradient of the first layer, and everything else of the last."""
    header, rows = ["network"], [[norm] for norm in found["signal"]]
    for name, curves in found.items():
        place = 0 if name == "gradient" else -1
        header += [name, "theory"]
        for row, curve in zip(rows, curves.values(), strict=True):
            theory = math.nan if curve.theory is None else curve.theory[place]
            row += [str(curve.points[place]), "" if math.isnan(theory) else f"{theory:.4g}"]
    note = (
        "Gradient: of the first layer, relative to the last. All others: in the last layer. ± is "
        "for 95 %."
    )
    return Table(header, rows, note=note)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    known = "\n".join(f"  {name:18}{entry.note}" for name, entry in nn.normalizers.items())
    parser.epilog = f"""normalisers:
{known}
  file.py:name      one of your own: a tp.nn.Normalizer, or a function of the number of units

Initial weights are those that the normaliser starts with, or any of {", ".join(CHOSEN_INITS)}:
none/he has no normaliser, and the weights of He et al. (2015).
"""

    def option(name: str, default: Any, help: str, **more: Any) -> None:
        parser.add_argument(name, default=default, help=f"{help} (default: %(default)s)", **more)

    parser.add_argument(
        "--norms",
        nargs="+",
        type=checked_by(lambda text: nn.as_normalizer(split_init(text)[0])),
        default=DEFAULT,
        metavar="NORM[/INIT]",
        help=f"normalisers, see below (default: {' '.join(DEFAULT)})",
    )
    parser.add_argument(
        "--residual", action="store_true", help="residual blocks h + branch(h) instead of layers"
    )
    option(
        "--activation",
        "relu",
        f"{', '.join(activations)}, or one of your own, my_file.py:my_name",
        type=checked_by(as_activation),
        metavar="NAME",
    )
    option("--depth", 20, "layers, or residual blocks", type=whole_number(2), metavar="N")
    option("--width", 256, "units in each layer", type=whole_number(8), metavar="N")
    option("--batch", 64, "inputs in a batch", type=whole_number(2), metavar="N")
    option("--networks", 8, "random networks that are measured", type=whole_number(2), metavar="N")
    option("--seed", 0, "random seed", type=whole_number(0), metavar="N")
    parser.add_argument(
        "--only", choices=list(INSTRUMENTS), help="draw what one instrument shows, not all four"
    )
    option("--out", "runs/compare.png", "file of the figure", type=output_figure, metavar="FILE")


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from ..report import plots
    from . import figures

    activation = as_activation(options.activation)
    shape = (activation, options.depth, options.width, options.batch, options.residual)
    stacks = []
    for text in dict.fromkeys(options.norms):
        norm, init = split_init(text)
        stacks.append(Stack(norm, *shape, init=init))
    check(options, stacks, len(plots.COLORS))
    found = compare(stacks, options.networks, options.seed)
    print(table(found).text(shutil.get_terminal_size((110, 24)).columns))
    for stack in stacks:
        if stack.reason:
            print(f"\nNo theory for {stack.label}:\n{stack.reason}")
    kind = "residual blocks" if options.residual else "layers"
    heading = (
        f"{options.depth} {kind} of {options.width} units, {activation.name}, batches of "
        f"{options.batch}. "
        f"Thick lines: theory. Points: {options.networks} random networks, with 95 % intervals."
    )
    only = options.only
    if only:
        figure = figures.instrument(only, found[only])
        words = figures.describe_comparison({only: found[only]})
    else:
        figure = figures.comparison(found, heading)
        words = f"{heading} {figures.describe_comparison(found)}"
    print(plots.save(figure, options.out, words))
    return 0


def split_init(text: str) -> tuple[str, str | None]:
    """The normaliser and the initial weights, if they are given, of NORM or NORM/INIT.

    >>> split_init("none/he"), split_init("my/file.py:mine")
    (('none', 'he'), ('my/file.py:mine', None))
    """
    norm, slash, init = text.rpartition("/")
    if slash and init in CHOSEN_INITS:
        return norm, init
    return text, None


def check(options: argparse.Namespace, stacks: list[Stack], colors: int) -> None:
    got = f"--norms {' '.join(options.norms)} --width {options.width} --batch {options.batch}"
    if options.batch <= 3 and any(stack.over_batch for stack in stacks):
        rule = "after BatchNorm the mean squared gradient is finite for batches of more than 3"
        raise ValueError(explain(got, rule, "--batch 8"))
    if len(stacks) > colors:
        raise ValueError(explain(got, f"a figure has {colors} colors", "two figures"))
