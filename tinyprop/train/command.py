"""`tinyprop train`."""

import argparse
from collections.abc import Callable
from dataclasses import Field, fields
from functools import partial
from pathlib import Path
from typing import Any

from .. import data
from ..engine.errors import explain
from ..parallel.launch import is_launched, launch
from ..parallel.ranks import world
from ..report.arguments import checked_by, whole_number
from .config import Config, allowed, kind, rule
from .run import Run
from .step import keep_freed_memory

EXAMPLES = """example:
  tinyprop train --data cifar10 --width 0.25 --epochs 10 --train-size 10000 --out runs/first

The directory of the run gets config.json, log.csv, signals.csv (each layer after each epoch),
checkpoints, the weights and the learning curves. Ctrl-C saves and stops; the same command with
--resume resumes, to the same weights bit by bit.

`--processes 2` trains on two processes of this machine (pip install 'tinyprop[mpi]'), each with
half of every batch. It pays for narrow networks with batches of 4 or more: at a quarter of the
paper's width steps were 1.2 to 1.3 times as fast as on two threads; at its full width it gains
little, and for small fully connected networks it is slower (benchmarks/RESULTS.md). What may look
across a batch is refused. The weights are the same up to rounding, and a run may be resumed with
another number of processes. `mpiexec -n 4 tinyprop train ...` does the same on several machines.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    for f in fields(Config):
        flag, text = "--" + f.name.replace("_", "-"), f.metadata["help"]
        if kind(f) is bool:
            parser.add_argument(flag, action="store_true", help=text)
            continue
        shown = text if f.default is None else f"{text} (default: %(default)s)"
        letter = {int: "N", float: "X"}.get(kind(f))
        choices = f.metadata["choices"] or None
        value_of: Callable[[str], Any] = str if choices else partial(parse, f)
        if f.metadata["table"] is not None:
            value_of, letter = checked_by(f.metadata["convert"]), "NAME"
            shown = f"{shown}: {', '.join(f.metadata['table'])}"
        parser.add_argument(
            flag, type=value_of, choices=choices, default=f.default, help=shown, metavar=letter
        )
    parser.add_argument(
        "--root", type=Path, help="data directory (default: $TINYPROP_DATA, or the user's cache)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/train"),
        help="output directory (default: %(default)s)",
    )
    parser.add_argument(
        "--processes",
        type=whole_number(1),
        default=1,
        metavar="N",
        help="processes of this machine that share every batch (default: %(default)s)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue the run in the output directory, if any"
    )


def parse(f: "Field[Any]", text: str) -> Any:
    """The value of a setting, checked."""
    try:
        value = kind(f)(text)
    except ValueError:
        value = text
    if not allowed(f, value):
        raise argparse.ArgumentTypeError(f"{text!r} is not {rule(f)}")
    return value


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    config = Config(**{f.name: getattr(options, f.name) for f in fields(Config)})
    if options.processes > 1 and not is_launched():
        return launch(options.processes, options.arguments)
    keep_freed_memory()
    with world(config.backend) as ranks:
        if options.processes not in (1, ranks.size):
            got = f"--processes {options.processes} under mpiexec with {ranks.size} processes"
            rule = "one of the two says how many there are"
            raise ValueError(explain(got, rule, "leave out --processes"))
        if ranks.size > 1:
            # it alone downloads
            ranks.from_first(lambda: data.found(config.data, options.root, download=True))
        training = Run(config, options.out, options.root, ranks=ranks)
        finished = training.run(options.resume)
    if not ranks.first:
        return 0 if finished else 130
    if not finished:
        print(
            f"Stopped in epoch {training.epoch + 1}; everything is saved. Add --resume to continue."
        )
        return 130
    last = training.history[-1]
    print(f"Test error {last['test_error']:.2%} after {training.epoch} epochs.")
    files = ["log.csv", "model.safetensors", "curves.png"]
    if config.average is not None:
        epochs = "the last epoch" if config.average == 1 else f"the last {config.average} epochs"
        error = last["averaged_test_error"]
        print(f"Test error {error:.2%} with weights averaged over {epochs}.")
        files.append("averaged.safetensors")
    for name in files:
        print(options.out / name)
    return 0
