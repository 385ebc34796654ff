"""The commands."""

import argparse
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, get_args

from threadpoolctl import threadpool_info

from . import __version__, bench, data, demo, diagnosis
from .engine.errors import BackendError
from .errors import DataError, DivergenceError, StateError
from .experiments import command as reproduce
from .train import CHOICES, Config, Run, keep_freed_memory
from .verify import command as verify

PACKAGES = ("numpy", "matplotlib", "safetensors", "tqdm", "threadpoolctl", "cupy-cuda12x", "cupy-cuda13x")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 if it did what it says, 1 if it could not, 2 for wrong arguments, 130 after Ctrl-C."""
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except BrokenPipeError:  # whoever reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (BackendError, DataError, DivergenceError, StateError, OSError) as error:
        print(f"tinyprop: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ntinyprop: stopped", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="tinyprop",
        description="Normalization Propagation on a small autograd engine: train it, and check every claim about it.",
        epilog="tinyprop COMMAND --help tells more of each command.",
    )
    top.add_argument("--version", action="version", version=f"tinyprop {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    add_demo(commands)
    verify.add_parser(commands)
    add_train(commands)
    reproduce.add_parser(commands)
    add_bench(commands)
    add_info(commands)
    return top


def command(commands: Any, name: str, run: Any, help: str, example: str) -> argparse.ArgumentParser:
    """A new command with a line of help and an example."""
    new: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=help[0].upper() + help[1:] + ".",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.set_defaults(run=run)
    return new


# -- train

HELP = {
    "data": "data set",
    "norm": "how hidden layers are normalised",
    "activation": "of the hidden layers",
    "mode": "constants of NormProp: of N(0, 1) as in the paper, or of N(beta, gamma^2)",
    "gamma": "where gamma starts (default: one over the activation's Jacobian factor)",
    "beta": "where beta starts (default: 0, or 1 for a rectifier in exact mode)",
    "data_norm": "how the data are normalised: over the training set, or over each mini-batch",
    "width": "scales the number of filters; the paper's network is 1.0",
    "dropout": "probability, after each pooling of a hidden layer",
    "epochs": "passes over the training images",
    "batch_size": "images in a mini-batch",
    "lr": "learning rate at the start",
    "optimizer": "SGD with momentum, or RMSProp",
    "momentum": "of SGD",
    "weight_decay": "added to the gradient, times the weights",
    "halve_every": "epochs after which the learning rate is halved",
    "patience": "instead, epochs without a smaller training loss after which it is halved",
    "flip": "mirror half of the training images",
    "train_size": "use only the first N training images",
    "test_size": "use only the first N test images",
    "seed": "of weights, order, flips and dropout",
    "backend": "where arrays live",
    "threads": "threads for NormProp and plain networks (default: all cores)",
    "read_every": "on a GPU, steps between looks at the loss, each of which waits for the GPU",
}


def add_train(commands: Any) -> None:
    new = command(
        commands,
        "train",
        train,
        "train the paper's network; leaves config, log, checkpoints, weights and curves in a folder",
        "tinyprop train --data cifar10 --width 0.25 --epochs 10 --train-size 10000 --out runs/first",
    )
    for f in fields(Config):
        flag, text = "--" + f.name.replace("_", "-"), HELP[f.name]
        if f.name == "flip":
            new.add_argument(flag, action="store_true", help=text)
            continue
        kind = next(t for t in (str, int, float) if t in (f.type, *get_args(f.type)))
        shown = text if f.default is None else f"{text} (%(default)s)"
        letter = {int: "N", float: "X"}.get(kind)
        new.add_argument(flag, type=kind, choices=CHOICES.get(f.name), default=f.default, help=shown, metavar=letter)
    new.add_argument("--root", type=Path, help="folder of the data (default: $TINYPROP_DATA, or the cache folder)")
    new.add_argument("--out", type=Path, default=Path("runs/train"), help="folder of the run (%(default)s)")
    new.add_argument("--resume", action="store_true", help="go on with the run in that folder, if there is one")
    new.set_defaults(parser=new)


def train(options: argparse.Namespace) -> int:
    keep_freed_memory()
    try:
        config = Config(**{f.name: getattr(options, f.name) for f in fields(Config)})
        run = Run(config, options.out, options.root)
    except DataError:
        raise
    except ValueError as error:
        options.parser.error(f"wrong value\n{error}")
    finished = run.run(options.resume)
    if finished:
        last = run.history[-1]
        print(f"test error {last['test_error']:.2%} after {run.epoch} epochs; log, weights and curves: {options.out}")
    else:
        print(f"stopped in epoch {run.epoch + 1}, everything is saved; go on with the same command and --resume")
    return 0 if finished else 130


# -- bench


def add_bench(commands: Any) -> None:
    new = command(
        commands,
        "bench",
        run_bench,
        "measure time and memory against PyTorch, Chainer, JAX and HIPS autograd, those that are installed",
        "tinyprop bench --quick --only step --only layers\n  tinyprop bench --backend cupy",
    )
    new.add_argument(
        "--backend",
        choices=("numpy", "cupy"),
        default="numpy",
        help="cupy: tinyprop's step on a GPU, against what the GPU can do at best (%(default)s)",
    )
    new.add_argument(
        "--quick", action="store_true", help="about two minutes: fewer engines, sizes and repeats; on a GPU, width 0.25"
    )
    new.add_argument("--engines", nargs="+", choices=bench.ENGINES, help="measure these (default: all installed)")
    new.add_argument("--only", action="append", choices=bench.SECTIONS, help="measure this; may be repeated")
    new.add_argument(
        "--repeats",
        type=at_least_one,
        metavar="N",
        help="turns of each engine (7, or 3 if quick); on a GPU, steps (50)",
    )
    new.add_argument("--threads", type=at_least_one, metavar="N", help="of each engine (cores)")
    new.add_argument(
        "--out", type=Path, default=Path("runs/bench"), help="folder of JSON, tables, pictures (%(default)s)"
    )
    new.set_defaults(parser=new)


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def run_bench(options: argparse.Namespace) -> int:
    keep_freed_memory()  # the engines run in processes of their own, where tinyprop's does the same
    if options.backend == "cupy":
        return bench_gpu(options)
    sections = options.only or list(bench.SECTIONS)
    repeats = options.repeats or (3 if options.quick else 7)
    threads = options.threads or os.cpu_count() or 1
    results = bench.run(options.engines, sections, repeats, threads, options.quick)
    show(bench.about(results), bench.tables(results), bench.write(results, options.out))
    return 0


def bench_gpu(options: argparse.Namespace) -> int:
    for name in ("engines", "only", "threads"):
        if getattr(options, name):
            options.parser.error(f"--{name} is for the CPU; with --backend cupy only tinyprop's step is measured")
    if problem := diagnosis.diagnose(diagnosis.look()):
        raise BackendError(problem)
    results = bench.gpu.run(options.repeats or 50, bench.QUICK_WIDTH if options.quick else 1.0)
    show(bench.gpu.about(results), bench.gpu.tables(results), bench.gpu.write(results, options.out))
    return 0


def show(about: list[str], tables: list[bench.Table], paths: list[Path]) -> None:
    print("\n".join(about))
    for table in tables:
        print(f"\n{table.text(shutil.get_terminal_size().columns)}")
    print("\nwritten:", ", ".join(map(str, paths)))


# -- info


def add_info(commands: Any) -> None:
    command(
        commands, "info", info, "tell versions, BLAS, threads, backends, devices and the data found", "tinyprop info"
    )


def info(options: argparse.Namespace) -> int:
    print(f"tinyprop {__version__}, Python {platform.python_version()}, {platform.platform()}")
    print("packages:", ", ".join(f"{p} {v}" for p in PACKAGES if (v := installed(p))))
    for library in threadpool_info():
        if library["user_api"] == "blas":
            kind = " ".join(str(library.get(k) or "") for k in ("internal_api", "version", "architecture"))
            print(f"BLAS: {kind}, {library['num_threads']} threads; {os.cpu_count()} cores")
    facts = diagnosis.look()
    if problem := diagnosis.diagnose(facts):
        print(f"backends: numpy. {problem}")
    else:
        print(f"backends: numpy, cupy on {', '.join(facts.devices)} (driver of CUDA {facts.cuda_of_driver})")
    for name in data.NAMES:
        paths = data.found(name)
        print(f"data: {name:14}", paths[0].parent if paths else "not here; drawn or downloaded when it is first used")
    return 0


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# -- demo


def add_demo(commands: Any) -> None:
    new = command(
        commands,
        "demo",
        run_demo,
        "settle the claims of the paper, then train a small NormProp network on drawn shapes, and show what it learnt",
        "tinyprop demo --out runs/demo",
    )
    new.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder of the run (%(default)s)")
    new.add_argument("--epochs", type=int, default=7, help="passes over the images (%(default)s)")


def run_demo(options: argparse.Namespace) -> int:
    keep_freed_memory()
    status = main(["verify", "--figures", str(options.out / "verify")])
    return status if demo.demo(options.out, options.epochs) else 130
