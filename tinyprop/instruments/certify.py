"""The theory against a trained network, layer by layer: a part of `tinyprop examine`."""

import argparse
import sys
from pathlib import Path

import numpy as np

from .. import nn
from ..engine.arrays import HostArray, to_numpy
from ..engine.errors import StateError
from ..nn.observation import observe
from ..report.arguments import whole_number
from ..report.table import Table
from ..theory.propagate import propagate
from .calls import rows_of

NOTE = """
Of a layer's pre-activations u = w.x + b, over test images and positions. mean: that of each unit,
as root mean square over units, measured and predicted from the weights and the moments of the
images; r: correlation of both. variance: the mean over units, measured, predicted, and |w|^2, which
it would be if x had mean 0, variance 1 and no correlations, as the paper assumes; cost: measured /
|w|^2. coherence: the largest |cosine| of two rows of weights. left: the distance of the covariance
of u from its diagonal; assumed: the same if the paper's assumption held, which is the left side of
Proposition 1; right: its right side. Predictions take later layers as Gaussian, which trained ones
are not: expect variances that are too small.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_directory", type=Path, metavar="RUN", help="output directory of `tinyprop train`"
    )
    parser.add_argument(
        "--root", type=Path, help="data directory (default: $TINYPROP_DATA, or the user's cache)"
    )
    parser.add_argument(
        "--images",
        type=whole_number(2),
        default=1000,
        help="test images to measure with (default: %(default)s)",
    )
    parser.add_argument(
        "--components",
        type=whole_number(1),
        default=10,
        help="Gaussians that stand for them (default: %(default)s)",
    )
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    print("tinyprop certify is now a part of `tinyprop examine RUN`", file=sys.stderr)
    net, images, _ = trained_network(options.run_directory, options.root, options.images)
    table = certificate(net, images, options.components)
    print(table.markdown() if options.markdown else table.text(width=120))
    return 0


def trained_network(
    folder: Path, root: Path | None, count: int
) -> tuple[nn.Module, HostArray, HostArray]:
    """The trained network of a run, in evaluation mode, and its test images and labels."""
    from ..train import Config, Run, checkpoint

    whole, _ = checkpoint.read_all(folder)
    if not whole:
        raise StateError(
            f"{folder}, which has no checkpoint that is whole",
            "there is a network to look at",
            "the output directory of `tinyprop train`, or file.py:Net",
        )
    training = Run(Config(**whole[-1].facts["config"]), folder, root=root, say=lambda text: None)
    training.resume()
    net = training.model.to("numpy").eval()
    return net, training.test.images[:count], training.test.labels[:count]


def certificate(net: nn.Module, images: HostArray, components: int) -> Table:
    """A row for each layer with weights."""
    from ..verify.canonical_claims import error_and_bound

    rows, predicted = (
        [],
        {record.layer: record for record in propagate(net, data=images, components=components)},
    )
    for record in observe(net, images):
        products = products_of_rows(record.layer)
        if record.pre_activation is None or products is None:
            continue
        name = record.name
        u = to_numpy(record.pre_activation.data).astype("float64")
        u = np.moveaxis(u, 1, -1).reshape(-1, u.shape[1])  # (samples and positions, units)
        expected, mean, variance = predicted[name], u.mean(axis=0), u.var(axis=0).mean()
        assumed, right = error_and_bound(products)
        left, _ = error_and_bound(np.atleast_2d(np.cov(u.T, ddof=0)))
        lengths = np.sqrt(np.diagonal(products))
        cosines = products / np.outer(lengths, lengths) - np.eye(len(lengths))
        # as in the first layer, where both are 0
        constant = min(expected.mean.std(), mean.std()) < 1e-6
        numbers = {
            "mean": np.sqrt((mean**2).mean()),
            "predicted": np.sqrt((expected.mean**2).mean()),
            "r": np.nan if constant else np.corrcoef(expected.mean, mean)[0, 1],
            "variance": variance,
            "predicted ": expected.variance.mean(),
            "|w|^2": (lengths**2).mean(),
            "cost": variance / (lengths**2).mean(),
            "coherence": abs(cosines).max(),
            "left": left,
            "assumed": assumed,
            "right": right,
        }
        rows.append([name, *("-" if np.isnan(x) else f"{x:.3g}" for x in numbers.values())])
    return Table(
        ["layer", *map(str.strip, numbers)], rows, "Theory and measurement", " ".join(NOTE.split())
    )


def products_of_rows(layer: nn.Module) -> HostArray | None:
    """The products of what two units of a layer multiply their inputs by: (units, units); None if
    the layer has no such weights."""
    rows = rows_of(layer)
    if rows is None:
        return None
    units = len(rows)
    inner = layer.layer if isinstance(layer, nn.WeightNorm) else layer
    group = np.arange(units) * getattr(inner, "groups", 1) // units
    have_common_inputs = group[:, None] == group
    return rows @ rows.T * have_common_inputs
