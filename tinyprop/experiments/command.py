"""`tinyprop reproduce`."""

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

from .. import data as datasets
from .. import plots
from ..errors import DataError
from ..files import write_whole
from ..train import Config, keep_freed_memory
from . import EXPERIMENTS
from .points import Store, key
from .recipe import gather
from .report import comparison, gallery
from .scales import SCALES
from .workers import compute_all

EXAMPLES = """examples:
  tinyprop reproduce convergence                    one experiment, at the scale of a laptop
  tinyprop reproduce convergence results --jobs 4   they share the runs that both need
  tinyprop reproduce all --scale tiny --out /tmp/x  everything, in a minute or two, to see that it works
  tinyprop reproduce all --scale paper --backend cupy

Each leaves EXPERIMENT.json (everything measured), EXPERIMENT.png and EXPERIMENT.md (what was found); README.md shows
all that are in the folder. Stop it with Ctrl-C: the same command goes on. A finished run is kept and shared; only if
an experiment asks for more epochs of it is it computed anew, from the start.
Running an experiment anew gives the same data, byte for byte, on the same machine, except for the times of `speed`."""


def add_arguments(new: argparse.ArgumentParser) -> None:
    new.epilog = EXAMPLES
    names = ", ".join(EXPERIMENTS)
    new.add_argument(
        "experiments", nargs="+", metavar="EXPERIMENT", choices=[*EXPERIMENTS, "all"], help=f"{names}, or all"
    )
    new.add_argument("--scale", choices=SCALES, default="laptop", help="how large (%(default)s)")
    new.add_argument(
        "--out", type=Path, default=Path("runs/figures"), help="folder of data, pictures, words (%(default)s)"
    )
    new.add_argument(
        "--runs", type=Path, default=Path("runs/reproduce"), help="folder that keeps the runs (%(default)s)"
    )
    new.add_argument("--root", type=Path, help="folder of the data sets (default: $TINYPROP_DATA, or the cache folder)")
    new.add_argument("--jobs", type=int, metavar="N", help="runs side by side, each on one thread (default: cores)")
    new.add_argument("--backend", choices=("numpy", "cupy"), default="numpy", help="where arrays live (%(default)s)")
    new.add_argument(
        "--report", type=Path, metavar="FILE", help="write what all data in --out say of the paper's claims"
    )


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    keep_freed_memory()
    jobs = options.jobs if options.jobs is not None else 1 if options.backend == "cupy" else os.cpu_count() or 1
    if jobs < 1:
        parser.error(f"argument --jobs: {options.jobs} is not a whole number of at least 1")
    chosen = [EXPERIMENTS[name] for name in EXPERIMENTS if name in options.experiments or "all" in options.experiments]
    scale, store = SCALES[options.scale], Store(options.runs / options.scale)
    wanted = [config for e in chosen for configs in e.configs(scale, options.backend).values() for config in configs]
    missing = not_here(wanted, options.root)
    configs = without_doubles([config for config in wanted if config.data not in missing])
    left = [config for config in configs if store.result(config) is None]
    print(f"{len(configs)} runs, {len(configs) - len(left)} of them finished before; ", end="")
    print(f"to compute: {len(left)} runs, {sum(c.epochs for c in left)} epochs, {jobs} at a time", flush=True)
    if not compute_all(configs, store, options.root, jobs):
        print("stopped, everything is saved; the same command goes on from here")
        return 130
    for experiment in chosen:
        sets = {config.data for config in experiment.settings(scale).values()}
        if sets and sets <= missing.keys():
            print(f"\n{experiment.name}: not run, as {', '.join(sorted(sets))} cannot be had")
            continue
        found = gather(experiment, scale, store, options.backend, missing)
        words = experiment.tell(found)
        write_whole(options.out / f"{experiment.name}.json", (json.dumps(found, ensure_ascii=False) + "\n").encode())
        write_whole(options.out / f"{experiment.name}.md", f"{words}\n".encode())
        path = plots.save(experiment.draw(found), options.out / f"{experiment.name}.png")
        print(f"\n{path}\n{words}", flush=True)
    write_whole(options.out / "README.md", gallery(options.out).encode())
    if options.report:
        write_whole(options.report, comparison(options.out, options.report).encode())
    return 0


def not_here(configs: list[Config], root: Path | None) -> dict[str, str]:
    """The data sets that are neither found nor can be downloaded, and why; an error if that are all."""
    missing, error = {}, None
    names = list(dict.fromkeys(config.data for config in configs))
    for name in names:
        try:
            for split in ("train", "test"):
                datasets.load(name, root, split)
        except DataError as caught:
            missing[name], error = "neither here nor to be downloaded", caught
    if error and len(missing) == len(names):
        raise error
    return missing


def without_doubles(configs: list[Config]) -> list[Config]:
    """Each point once, with the most epochs that are asked of it."""
    longest: dict[str, Config] = {}
    for config in configs:
        name = key(config)
        epochs = max(config.epochs, longest[name].epochs if name in longest else 0)
        longest[name] = replace(config, epochs=epochs)
    return list(longest.values())
