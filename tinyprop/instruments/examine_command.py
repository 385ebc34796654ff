"""`tinyprop examine`: a signal debugger for a network of a file, of a run, or of PyTorch."""

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

from .. import data, nn
from ..engine.arrays import HostArray
from ..engine.errors import explain
from ..engine.graph import no_grad
from ..engine.loading import from_file, is_file_reference
from ..engine.random import manual_seed, new_generator
from ..nn.module import observing
from ..report.arguments import whole_number
from ..report.files import write_whole
from ..report.table import Table
from .certify import certificate, trained_network
from .examine import Examination, examine

DATA_SEED = 5_310_771  # unlike any seed that weights are drawn with


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = """examples:
  tinyprop examine my_net.py:Net --shape 3,32,32     inputs from N(0, 1)
  tinyprop examine my_net.py:Net --data cifar10      test images of a data set
  tinyprop examine runs/first                        the network of a run, with its test images

NET is a class, a function that makes a network, or a network, of tinyprop or of PyTorch.
"""
    parser.add_argument("target", metavar="NET", help="file.py:Net, or the directory of a run")
    parser.add_argument(
        "--shape", type=shape, metavar="3,32,32", help="shape of one input, drawn from N(0, 1)"
    )
    parser.add_argument("--data", metavar="NAME", help="data set whose test images are the input")
    parser.add_argument(
        "--root", type=Path, help="data directory (default: $TINYPROP_DATA, or the user's cache)"
    )
    parser.add_argument(
        "--inputs",
        type=whole_number(2),
        default=256,
        metavar="N",
        help="inputs to measure with (default: %(default)s)",
    )
    parser.add_argument(
        "--components",
        type=whole_number(1),
        default=1,
        metavar="N",
        help="Gaussians that stand for the data, 10 for images (default: %(default)s)",
    )
    parser.add_argument(
        "--eval", action="store_true", help="put a network of a file into evaluation mode"
    )
    parser.add_argument(
        "--seed",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="random seed (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/examine.html"),
        metavar="FILE",
        help="file of the page (default: %(default)s)",
    )


def shape(text: str) -> tuple[int, ...]:
    """Numbers above 0, separated by commas.

    >>> shape("3,32,32")
    (3, 32, 32)
    """
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 3,32,32")
    return found


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    certified: Table | None = None
    if is_file_reference(options.target):
        manual_seed(options.seed)
        net = network_of_file(options.target)
        if options.eval:
            net.eval()
        x, labels = inputs_for(net, options)
    else:
        net, x, labels = trained_network(Path(options.target), options.root, options.inputs)
        certified = certificate(net, x, options.components)
    found = examine_named(net, x, labels, options)
    width = shutil.get_terminal_size((110, 24)).columns
    print(found.text(width))
    if certified is not None:
        print(f"\n{certified.text(width)}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(options.out, found.html().encode())
    print(f"\n{options.out}")
    return 0


def examine_named(
    net: nn.Module, x: HostArray, labels: Any, options: argparse.Namespace
) -> Examination:
    """Examine, and turn what a network says to such an input into a refusal."""
    try:
        return examine(net, x, labels, options.components)
    except (TypeError, AttributeError) as error:
        got = f"{options.target}, which cannot compute an input {x.shape}: {error}"
        raise ValueError(explain(got, "one batch (N, ...) is its input", "--shape")) from error


def network_of_file(text: str) -> nn.Module:
    """What `file.py:Net` refers to, as a network of tinyprop."""
    try:
        thing = from_file(text)
        is_network = isinstance(thing, nn.Module) or is_of_torch(thing)
        if callable(thing) and not is_network:
            thing = thing()
    except (ImportError, TypeError) as error:
        if "got:" in str(error):
            raise ValueError(str(error)) from error
        got = f"{text}, which cannot be called without arguments: {error}"
        hint = "a function that makes the network: file.py:make"
        raise ValueError(explain(got, "it makes a network by itself", hint)) from error
    if is_of_torch(thing):
        from ..nn.pytorch import from_torch

        return from_torch(thing)
    if not isinstance(thing, nn.Module):
        got = f"{text}, which is a {type(thing).__name__}"
        rule = "it is a network of tinyprop or of PyTorch, or makes one"
        raise ValueError(explain(got, rule, "a subclass of tp.nn.Module"))
    return thing


def is_of_torch(thing: Any) -> bool:
    """Whether it is a module of PyTorch, which only its own file imports."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.nn.Module)


def inputs_for(net: nn.Module, options: argparse.Namespace) -> tuple[HostArray, HostArray | None]:
    """The batch that was asked for, and labels if the network returns logits."""
    if options.data is not None:
        test = data.load(options.data, options.root, "test")
        return test.images[: options.inputs], test.labels[: options.inputs]
    chosen = options.shape or shape_of_first_layer(net)
    random = new_generator(DATA_SEED + options.seed)
    x = random.standard_normal((options.inputs, *chosen)).astype("float32")
    dtypes = {parameter.dtype for parameter in net.parameters()}
    if len(dtypes) == 1:
        x = x.astype(dtypes.pop())
    return x, random_labels(net, x)


def random_labels(net: nn.Module, x: HostArray) -> HostArray | None:
    """Labels in turn, if the output is (N, classes)."""
    try:
        with no_grad(), observing():
            out = net(x[:2])
    except (TypeError, AttributeError):
        return None  # examine says what is wrong
    is_logits = getattr(out, "ndim", 0) == 2 and out.shape[1] > 1
    return np.arange(len(x)) % out.shape[1] if is_logits else None


def shape_of_first_layer(net: nn.Module) -> tuple[int, ...]:
    for layer in net.modules():
        features = getattr(layer, "in_features", None)
        if isinstance(features, int):
            return (features,)
        if hasattr(layer, "in_channels"):
            break
    got = "a network whose input has a shape that is not known"
    raise ValueError(explain(got, "images have any size", "--shape 3,32,32, or --data cifar10"))
