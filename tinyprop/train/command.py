"""`tinyprop train`."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import Field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from .. import data
from ..engine.errors import GradientError, StateError, explain
from ..engine.loading import is_file_reference
from ..parallel.launch import is_launched, launch
from ..parallel.ranks import Ranks, world
from ..report.arguments import checked_by, output_directory, whole_number
from . import checkpoint
from .config import FIXED, Config, allowed, kind, refuse_unused, rule, unused
from .own import import_home
from .run import Run
from .saved import newest
from .step import keep_freed_memory

EXAMPLES = """examples:
  tinyprop train --data cifar10 --width 0.25 --epochs 10 --train-size 10000 --out runs/first
  tinyprop train --data my_data.npz --spec 'F(100)-F(100)-F(3)' --out runs/mlp
  tinyprop train --data my_file.py:load --net my_file.py:Net --out runs/own
  tinyprop train --out runs/own --resume --epochs 20

The directory of the run gets config.json, log.csv, log.jsonl (with times), signals.csv (each layer
after each epoch), checkpoints, the weights and the learning curves. curves.png is drawn again after
an epoch if that takes less than 1 % of the time since the last drawing, and always at the end.
train_loss and train_error are means over the steps of the epoch, in training mode.

Ctrl-C saves and stops; --resume with the same --out resumes, to the same weights bit by bit.
`tp.train.load("runs/own")` is the trained network.

`--processes 2` trains on two processes of this machine (pip install 'tinyprop[mpi]'), each with
half of every batch. It pays for narrow networks with batches of several images: the README says
by how much. At the paper's width it gains little, small fully connected networks are slower, and
more processes than cores gain nothing. What may look across a batch is refused. The weights are the
same up to rounding, and a run may be resumed with another number of processes. `mpiexec -n 4
tinyprop train ...` does the same on several machines.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    for f in fields(Config):
        add_setting(parser, f)
    parser.add_argument(
        "--root", type=Path, help="data directory (default: $TINYPROP_DATA, or the user's cache)"
    )
    parser.add_argument(
        "--out",
        type=output_directory,
        default="runs/train",
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
        "--resume",
        action="store_true",
        help="continue the run in the output directory, with its settings",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="print only the result, and what went wrong"
    )


def add_setting(parser: argparse.ArgumentParser, f: "Field[Any]") -> None:
    """An option for a setting. One that is not given is not in the result of the parser."""
    flag, text = "--" + f.name.replace("_", "-"), f.metadata["help"]
    if kind(f) is bool:
        parser.add_argument(flag, action="store_true", default=argparse.SUPPRESS, help=text)
        return
    shown = text if f.default is None else f"{text} (default: {f.default})"
    letter = {int: "N", float: "X"}.get(kind(f))
    choices = f.metadata["choices"] or None
    value_of: Callable[[str], Any] = str if choices else partial(parse, f)
    if f.metadata["table"] is not None:
        value_of, letter = checked_by(f.metadata["convert"]), "NAME"
        shown = f"{shown}: {', '.join(f.metadata['table'])}"
    elif f.metadata["record"] is not None:
        value_of, letter = checked_by(partial(from_file_alone, f)), "FILE.py:CLASS"
    parser.add_argument(
        flag,
        type=value_of,
        choices=choices,
        default=argparse.SUPPRESS,
        help=shown.replace("%", "%%"),
        metavar=letter,
    )


def from_file_alone(f: "Field[Any]", text: str) -> str:
    """What a run records of file.py:Class; a bare name is refused."""
    if not is_file_reference(text):
        raise ValueError(explain(f"{text!r}", f"it is {rule(f)}", "my_file.py:Net"))
    return str(f.metadata["record"](text))


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
    with wrong_arguments():
        config = configured(options)
        if options.processes > 1 and not is_launched():
            return launch(options.processes, options.arguments)
    keep_freed_memory()
    with world(config.backend) as ranks:
        with wrong_arguments():
            training = prepared(config, options, ranks)
        if not options.quiet:
            training.say(training.summary())
        finished = training.run(options.resume)
    if not ranks.first:
        return 0 if finished else 130
    if not finished:
        again = f"tinyprop train --out {options.out} --resume"
        print(f"Stopped in epoch {training.epoch + 1}; everything is saved. To continue: {again}")
        return 130
    print_result(training)
    return 0


REFUSALS = (ValueError, TypeError, LookupError, ImportError, OSError, GradientError)


@contextmanager
def wrong_arguments() -> Iterator[None]:
    """What is refused inside the block, before anything is computed or written, is a mistake in the
    arguments."""
    try:
        yield
    except REFUSALS as error:
        raise argparse.ArgumentError(None, str(error)) from error


def configured(options: argparse.Namespace) -> Config:
    """The settings that are given, and those of the run that is resumed, or the defaults."""
    names = [f.name for f in fields(Config)]
    given = {name: value for name, value in vars(options).items() if name in names}
    if options.resume and checkpoint.paths(options.out):
        facts = newest(options.out).facts
        config = replace(Config(**facts["config"]), **given)
        if options.root is None and facts["samples"].get("root"):
            options.root = Path(facts["samples"]["root"])
        if config.net is not None:
            import_home(config.net, facts["network"])
        return config
    describes_a_run = bool(given.keys() & set(FIXED))
    if options.resume and not describes_a_run:
        got = f"--resume, and {options.out}, which holds no run"
        raise StateError(got, "there is a run to continue", "its --out; or leave out --resume")
    config = Config(**given)
    for name, why in unused(config):
        if name in given:
            refuse_unused("--" + name.replace("_", "-"), given[name], why)
    return config


def prepared(config: Config, options: argparse.Namespace, ranks: Ranks) -> Run:
    """The run, with everything checked that can be checked before it starts."""
    if options.processes not in (1, ranks.size):
        got = f"--processes {options.processes} under mpiexec with {ranks.size} processes"
        rule = "one of the two says how many there are"
        raise ValueError(explain(got, rule, "leave out --processes"))
    if config.batch_size < ranks.size:
        got = f"{ranks.size} processes with --batch-size {config.batch_size}"
        rule = "each process computes its share of every batch, at least one sample"
        raise ValueError(explain(got, rule, f"--batch-size {ranks.size}, or fewer processes"))
    if ranks.size > 1:
        # it alone downloads
        ranks.from_first(lambda: data.found(config.data, options.root, download=True))
    training = Run(config, options.out, root=options.root, ranks=ranks)
    if options.quiet:
        training.be_quiet()
    ranks.from_first(lambda: training.check_folder(options.resume))
    return training


def print_result(training: Run) -> None:
    config, last = training.config, training.history[-1]
    print(f"Test error {last['test_error']:.2%} after {training.epoch} epochs.")
    files = ["log.csv", "model.safetensors", "curves.png"]
    if config.average is not None:
        epochs = "the last epoch" if config.average == 1 else f"the last {config.average} epochs"
        error = last["averaged_test_error"]
        print(f"Test error {error:.2%} with weights averaged over {epochs}.")
        files.append("averaged.safetensors")
    for name in files:
        print(training.out / name)
