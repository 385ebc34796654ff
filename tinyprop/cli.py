"""The command line: each command is loaded only when it is called."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from . import __version__
from .engine.errors import BackendError, GradientError
from .report.arguments import Parser

# For each command a module, with add_arguments(parser) and run(options, parser), which returns the
# exit status; and its help.
COMMANDS = {
    "demo": (
        "instruments.demo",
        "a tour of about a minute: a figure, two short trainings, five claims",
    ),
    "verify": (
        "verify.command",
        "settle the claims of the paper: exact value, measurement, verdict",
    ),
    "train": (
        "train.command",
        "train a network, by default the paper's; it can be stopped and resumed",
    ),
    "examine": (
        "instruments.examine_command",
        "debug the signals of a network, layer by layer: theory, measurement, known faults",
    ),
    "certify": ("instruments.certify", "deprecated: a part of `tinyprop examine`"),
    "check": ("train.check", "audit the directory of a run: every file, digest and log"),
    "reproduce": ("experiments.command", "run the paper's experiments: data, figures and findings"),
    "compare": (
        "instruments.compare",
        "draw what normalisers do to signals and gradients in depth: theory and measurement",
    ),
    "info": ("instruments.info", "show versions, BLAS, devices and the data sets found"),
}


OF_OURS = (BackendError, GradientError)  # RuntimeErrors that are in words


def main(
    arguments: Sequence[str] | None = None, loaded: Callable[[], object] = lambda: None
) -> int:
    """Run a command; 0 if it did what it says, 1 if it could not, 2 for wrong arguments, 130 after
    Ctrl-C. `loaded` is called when all modules of the command are imported."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    for stream in (sys.stdout, sys.stderr):
        # a terminal that cannot encode "±" shows "?" instead of a traceback
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        options = parser(arguments).parse_args(arguments)
        options.arguments = arguments  # for a command that starts itself again
        loaded()
        # we report by name what is not finite; NumPy's warnings would only repeat it
        with np.errstate(all="ignore"):
            return int(options.run(options))
    except argparse.ArgumentError as error:
        print(f"tinyprop: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, ArithmeticError, OSError, MemoryError, *OF_OURS) as error:
        print(f"tinyprop: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ntinyprop: stopped", file=sys.stderr)
        return 130


def parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser for these arguments. It knows the options of the command that they call, and only
    the names of the others."""
    top = Parser(
        prog="tinyprop",
        description=(
            "Normalization Propagation on a small autograd engine: train it, and check every "
            "claim about it."
        ),
        epilog="Run `tinyprop COMMAND --help` for details.",
    )
    top.add_argument("--version", action="version", version=f"tinyprop {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND", dest="command")
    words = [argument for argument in arguments if not argument.startswith("-")]
    called = words[0] if words else None
    for name, (module_name, help) in COMMANDS.items():
        description = help[0].upper() + help[1:] + "."
        command = commands.add_parser(
            name,
            help=help,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == called:
            _add_command(command, module_name)
    return top


def _add_command(command: argparse.ArgumentParser, module_name: str) -> None:
    module: Any = import_module(f".{module_name}", __package__)
    module.add_arguments(command)
    command.set_defaults(run=lambda options: module.run(options, command))
