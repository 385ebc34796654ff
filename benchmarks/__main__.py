"""`python -m benchmarks COMMAND`: how fast tinyprop is, measured on your machine."""

import argparse
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from tinyprop.report.arguments import Parser

from . import compare
from .load import runs_paused

COMPARISONS = {
    "steps": "training steps of what users train, against PyTorch",
    "layers": "single layers and pools, against PyTorch",
    "programs": "how long `import tinyprop` and `tinyprop verify` take",
}
# each is a module with `add_arguments` and `run`
TOOLS = {
    "publish": "write RESULTS.md and the README's table from what the commands above have measured",
    "profile": "where the time of a step goes, op by op",
    "overrides": "what a step costs without each override of kernels/",
    "scaling": "how time and memory of a step grow with batch size, width, depth and cores",
    "ranks": "what a step costs on two processes, and what a sum over them costs",
    "laboratory": "frames and memory of the laboratory, in Chromium",
    "gpu": "the time of a step on a GPU",
    "host": "what a step on a device costs the host, against a bare CuPy op",
    "agreement": "losses and test errors of whole trainings, against PyTorch",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 if it did what it says, 1 if it could not, 2 for wrong arguments, 130 after
    Ctrl-C, or a SIGTERM, as from `timeout`."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = parser(arguments).parse_args(arguments)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with runs_paused():
            return int(options.run(options))
    except (ValueError, ImportError, OSError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nbenchmarks: stopped", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the command in these arguments; of the other commands it knows only the
    names."""
    top = Parser(
        prog="python -m benchmarks",
        description="How fast tinyprop is, measured on your machine.",
        epilog="Run `python -m benchmarks COMMAND --help` for details; benchmarks/README.md says "
        "how we measure. Without PyTorch (pip install torch) there is nothing to compare with.",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    words = [word for word in arguments if not word.startswith("-")]
    for name, text in {**COMPARISONS, **TOOLS}.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if words[:1] != [name]:
            continue
        if name in COMPARISONS:
            compare.add_arguments(command, name)
            command.set_defaults(run=compare.run, section=name)
        else:
            module = import_module(f".{name}", __package__)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return top


if __name__ == "__main__":
    sys.exit(main())
