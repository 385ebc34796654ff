"""`python -m benchmarks COMMAND`: how fast tinyprop is, measured on your machine."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from tinyprop.report.arguments import Parser, whole_number

from .cases import SECTIONS, plan
from .load import runs_paused
from .peers import PEERS

COMPARISONS = {
    "all": "every comparison with the peers below, in one report",
    "step": "a training step of the paper's network, NormProp and BatchNorm, on every peer",
    "layers": "each layer of the paper's network by itself",
    "inference": "the outputs of a batch",
    "networks": "a VGG-like network, a fully connected one, and convolutions of unusual geometry",
}
# each is a module with `add_arguments` and `run`
TOOLS = {
    "profile": "where the time of a step goes, op by op",
    "overrides": "what a step costs without each override of kernels/",
    "scaling": "how time and memory of a step grow with batch size, width, depth and threads",
    "ranks": "what a step costs on two processes",
    "overhead": "what a small op costs, against PyTorch",
    "gpu": "the time of a step on a GPU",
    "host": "what a step on a device costs the host, against a bare CuPy op",
    "sampling": "what `tinyprop verify` adds to drawing random numbers",
    "agreement": "losses and test errors of whole trainings, against PyTorch",
    "publish": "measure everything on an idle CPU, and write the pages of benchmarks/ and the "
    "README's table",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 if it did what it says, 1 if it could not, 2 for wrong arguments, 130 after
    Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = parser(arguments).parse_args(arguments)
    try:
        with runs_paused():
            return int(options.run(options))
    except (ValueError, ImportError, OSError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nbenchmarks: stopped", file=sys.stderr)
        return 130


def parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the command in these arguments; of the other commands it knows only the
    names."""
    top = Parser(
        prog="python -m benchmarks",
        description="How fast tinyprop is, measured on your machine.",
        epilog="Peers that are not installed are left out: pip install torch jax autograd mygrad. "
        "Run `python -m benchmarks COMMAND --help` for details; benchmarks/README.md says how we "
        "measure.",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    words = [word for word in arguments if not word.startswith("-")]
    for name, text in {**COMPARISONS, **TOOLS}.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if words[:1] == [name]:
            module = module_of(name)
            module.add_arguments(command)
            command.set_defaults(run=module.run, section=name)
    return top


def module_of(command: str) -> Any:
    if command in TOOLS:
        return import_module(f".{command}", __package__)
    return sys.modules[__name__]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cores = os.cpu_count() or 1
    parser.add_argument(
        "--quick", action="store_true", help="3 repeats, the fast peers, fewer and smaller networks"
    )
    parser.add_argument(
        "--peers", nargs="+", choices=PEERS, metavar="PEER", help=f"some of {', '.join(PEERS)}"
    )
    parser.add_argument(
        "--repeats", type=whole_number(1), help="times for each row (default 7, quick 3)"
    )
    parser.add_argument(
        "--threads", type=whole_number(1), default=cores, help=f"of every peer (default {cores})"
    )
    parser.add_argument(
        "--together", action="store_true", help="all peers in one process, not each in its own"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/bench"), help="output directory (default runs/bench)"
    )


def run(options: argparse.Namespace) -> int:
    from . import measure, report

    sections = list(SECTIONS) if options.section == "all" else [options.section]
    cases = plan(sections, options.threads, options.quick)
    repeats = options.repeats or (3 if options.quick else 7)
    results = measure.run(
        cases, options.peers, repeats, options.threads, options.quick, options.together
    )
    tables = [table.text(110) for table in report.tables(results)]
    print("\n\n".join(["\n".join(report.about(results)), *tables]))
    for path in report.write_page(options.out, results):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
