"""`tinyprop demo`: a figure, two short trainings and five claims in a minute; or the paper's
network on a GPU."""

import argparse
import shutil
import sys
import textwrap
from pathlib import Path

from tqdm.std import tqdm

from .. import verify
from ..engine.arrays import load_module, to_numpy
from ..engine.threads import blas_threads
from ..report import environment, plots
from ..report.arguments import output_directory, output_figure, whole_number
from ..train import Config, Run, keep_freed_memory, logits
from . import depth, figures

IMAGES = 4000
NETWORKS = {"normprop": "NormProp", "batch": "BatchNorm"}
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
      is a course of eleven lessons, from the derivative of one expression to a contest of all
      normalisers"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=output_directory,
        default="runs/demo",
        help="output directory (default: %(default)s)",
    )
    parser.add_argument(
        "--epochs",
        type=whole_number(1),
        default=4,
        metavar="N",
        help="epochs of each training (default: %(default)s)",
    )
    parser.add_argument(
        "--backend",
        choices=("numpy", "cupy"),
        default="numpy",
        help="cupy: the paper's network on a GPU, no more",
    )
    parser.add_argument(
        "--width", type=float, help="multiplies its filters (default: 0.125, and on a GPU 1)"
    )
    parser.add_argument(
        "--figure",
        type=output_figure,
        metavar="FILE",
        help="only draw the figure of the README, into this file",
    )


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    keep_freed_memory()
    if options.figure:
        show_depth(options.figure)
        return 0
    if options.backend == "cupy":
        return run_on_gpu(options)
    print(
        "In about a minute: what depth does to a signal, two networks in training, and five "
        "claims of the paper."
    )
    print(f"\n1. A signal and its gradient in {depth.LAYERS} untrained layers")
    show_depth(options.out / "depth.png")
    print(
        f"\n2. NormProp and BatchNorm learn to recognise drawn shapes from the same {IMAGES:,} "
        "images"
    )
    for norm, name in NETWORKS.items():
        with blas_threads(1):  # BLAS threads wait for each other, which is slow on a busy machine
            training = train(configured(options, norm, 0.125), name, options.out / norm)
        if training is None:
            return 130
        images, labels = training.test.images[:32], training.test.labels[:32]
        guesses = to_numpy(logits(training.model, images)).argmax(axis=1)
        figure = figures.predictions(images, labels, guesses, training.test.classes)
        words = figures.describe_predictions(labels, guesses, training.test.classes)
        print(plots.save(figure, options.out / norm / "predictions.png", words))
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
        networks = {
            name: depth.measured(name) for name in tqdm(depth.NETWORKS, disable=None, leave=False)
        }
    print(depth.table(networks).text(shutil.get_terminal_size((110, 24)).columns))
    figure = figures.depth(networks, depth.SHOWN)
    print(plots.save(figure, path, figures.describe_depth(networks, depth.SHOWN)))


def run_on_gpu(options: argparse.Namespace) -> int:
    """NormProp and BatchNorm at full width: a line for each epoch, the memory, and a figure of
    both."""
    if problem := environment.diagnose(environment.look()):
        print(f"tinyprop: {problem}", file=sys.stderr)
        return 1
    histories = {}
    for norm, name in NETWORKS.items():
        training = train(configured(options, norm, 1.0), name, options.out / norm)
        if training is None:
            return 130
        histories[name] = training.history
        if training.step.no_graph is not None:
            print(f"{name} ran kernel by kernel: {training.step.no_graph}")
    figure = figures.compared_trainings(histories)
    print(plots.save(figure, options.out / "gpu.png", figures.describe_trainings(histories)))
    return 0


def configured(options: argparse.Namespace, norm: str, width: float) -> Config:
    width, backend = width if options.width is None else options.width, options.backend
    return Config(
        "shapes",
        norm,
        width=width,
        epochs=options.epochs,
        train_size=IMAGES,
        test_size=1000,
        backend=backend,
    )


def memory_used(backend: str) -> str:
    """What of a GPU's memory is taken, by whomever."""
    if backend == "numpy":
        return ""
    free, total = load_module(backend).cuda.runtime.memGetInfo()
    return f", {(total - free) / 1e6:,.0f} MB of the GPU's memory in use"


def train(config: Config, name: str, out: Path) -> Run | None:
    """A line for each epoch, also for those of an earlier run; None if stopped before the end."""
    training = Run(
        config,
        out,
        say=lambda line: print(f"{name}, {line}{memory_used(config.backend)}", flush=True),
    )
    training.resume()
    training.log.read(training.epoch)
    for row in training.history:
        training.say(training.log.in_words(row, config.epochs))
    if training.run(resume=True):
        return training
    print("Stopped. The same command resumes the training.")
    return None
