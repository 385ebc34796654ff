"""`tinyprop demo`: a figure, two short trainings and five claims, in about a minute."""

import argparse
import shutil
import sys
import textwrap
from pathlib import Path

from tqdm.auto import tqdm

from . import depth, plots, verify
from .arguments import whole_number
from .engine.arrays import to_numpy
from .threads import blas_threads
from .train import Config, Run, keep_freed_memory, logits
from .train.run import in_words

IMAGES = 4000
CLAIMS = {  # and why a teacher would show them
    "C02": "NormProp divides by the right constant.",
    "C32": "It needs no batch.",
    "C15": "It does not make the Jacobian an isometry.",
    "C21": "With the default gamma the signal fades: the blue curve of the figure.",
    "G1": "Exact constants keep it: the green curve.",
}
NEXT = """
Where to go next
  {tinyprop} verify
      settles every claim, with its exact value and an error bar
  {tinyprop} verify C15 --explain
      tells why one of them does not hold
  {tinyprop} train --help
      trains the paper's network on CIFAR-10, CIFAR-100, SVHN, MNIST or Fashion-MNIST
  tutorials/README.md
      is a course of ten lessons, from an autograd engine in 60 lines to a network on a GPU"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="output directory (default: %(default)s)")
    parser.add_argument(
        "--epochs", type=whole_number(1), default=4, metavar="N", help="epochs of each training (default: %(default)s)"
    )
    parser.add_argument(
        "--figure", type=Path, metavar="FILE", help="only draw the figure of the README, into this file"
    )


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    keep_freed_memory()
    if options.figure:
        show_depth(options.figure)
        return 0
    print("In about a minute: what depth does to a signal, two networks in training, and five claims of the paper.")
    print(f"\n1. A signal and its gradient in {depth.LAYERS} untrained layers")
    show_depth(options.out / "depth.png")
    print(f"\n2. NormProp and BatchNorm learn to recognise drawn shapes from the same {IMAGES:,} images")
    for norm, name in (("normprop", "NormProp"), ("batch", "BatchNorm")):
        with blas_threads(1):  # BLAS threads wait for each other, which is slow on a busy machine
            finished = train(norm, name, options.epochs, options.out / norm)
        if not finished:
            print("Stopped. The same command resumes the training.")
            return 130
    print("\n3. Five claims, each settled by an exact value and a measurement")
    for id, lesson in CLAIMS.items():
        (result,) = verify.run([id])
        text = f"{lesson} {id}: {result.statement} {result.verdict.upper()}: {result.reason}."
        print(textwrap.fill(text, 100, subsequent_indent="  "))
    called = sys.argv[0]
    print(NEXT.format(tinyprop=called if Path(called).stem == "tinyprop" else "python -m tinyprop"))
    return 0


def show_depth(path: Path) -> None:
    with blas_threads(1):  # the products are small
        networks = {name: depth.measured(name) for name in tqdm(depth.NETWORKS, disable=None, leave=False)}
    print(depth.table(networks).text(shutil.get_terminal_size((110, 24)).columns))
    print(plots.save(plots.depth(networks, depth.SHOWN), path))


def train(norm: str, name: str, epochs: int, out: Path) -> bool:
    """A line for each epoch, also for those of an earlier run; False if stopped before the end."""
    config = Config(data="shapes", norm=norm, width=0.125, epochs=epochs, train_size=IMAGES, test_size=1000)
    training = Run(config, out, say=lambda line: print(f"{name}, {line}", flush=True))
    training.resume()
    for row in training.history:
        training.say(in_words(row, epochs))
    if not training.run(resume=True):
        return False
    images, labels = training.test.images[:32], training.test.labels[:32]
    guesses = to_numpy(logits(training.model, images)).argmax(axis=1)
    figure = plots.predictions(images, labels, guesses, training.test.classes)
    print(plots.save(figure, out / "predictions.png"))
    return True
