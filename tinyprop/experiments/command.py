"""`tinyprop reproduce`."""

import argparse
import math
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from .. import data, plots
from ..arguments import whole_number
from ..errors import DataError
from ..files import write_whole
from ..train import Config, keep_freed_memory
from . import EXPERIMENTS
from .experiment import Arm
from .ledger import Ledger
from .report import page
from .scales import SCALES, Setting, Settings
from .workers import compute_all

EXAMPLES = """examples:
  tinyprop reproduce convergence results --jobs 4            two experiments, which share runs
  tinyprop reproduce all --scale tiny                        everything, in a minute or two, to see that it works
  tinyprop reproduce all --ledger figures/runs --seeds 0     report on finished runs, without new ones

The output directory gets EXPERIMENT.png and README.md, the report. Finished runs are kept in the ledger and never
computed twice. Ctrl-C saves and stops; the same command resumes."""
FIGURES, PAGE = Path("figures"), Path("REPRODUCTION.md")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    names, add = [*EXPERIMENTS, "all"], parser.add_argument
    add("experiments", nargs="+", metavar="EXPERIMENT", choices=names, help=", ".join(names))
    add("--scale", choices=SCALES, default="laptop", help="how large (default: %(default)s)")
    add("--seeds", type=whole_number(0), metavar="N", help="compute at most N seeds per setting (default: as planned)")
    add("--jobs", type=whole_number(1), metavar="N", help="runs side by side, each on one thread (default: cores)")
    add("--out", type=Path, default=Path("runs/figures"), help="output directory (default: %(default)s)")
    add("--runs", type=Path, default=Path("runs/reproduce"), help="directory of unfinished runs (default: %(default)s)")
    add("--ledger", type=Path, help="directory of finished runs (default: ledger in --runs)")
    add("--root", type=Path, help="data directory (default: $TINYPROP_DATA, or the user's cache)")
    add("--backend", choices=("numpy", "cupy"), default="numpy", help="where arrays live (default: %(default)s)")
    add("--publish", action="store_true", help=f"write {PAGE}, {FIGURES}/ and the committed ledger {FIGURES}/runs/")


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    if options.publish:
        if "all" not in options.experiments:
            parser.error("argument --publish: only all experiments are published, together")
        options.out, options.ledger = FIGURES, FIGURES / "runs"
    keep_freed_memory()
    session = Session(options)
    chosen = [e for name, e in EXPERIMENTS.items() if name in options.experiments or "all" in options.experiments]
    plans = {experiment: experiment.settings(session.scale) for experiment in chosen}
    done = session.compute(plans.values())
    if done:
        later = {e: e.later_settings(session.scale, session.arms(plan)) for e, plan in plans.items()}
        done = session.compute(later.values())
    if not done:
        print("stopped; everything is saved, and the same command resumes")
        return 130
    finished = [e(session.scale, session.arms(plans[e] | later[e])) for e in chosen]
    for experiment in finished:
        print(plots.save(experiment.figure(), options.out / f"{experiment.name}.png"), flush=True)
    path, folder = (PAGE, f"{FIGURES}/") if options.publish else (options.out / "README.md", "")
    command = f"tinyprop reproduce {' '.join(options.experiments)} --scale {options.scale}"
    write_whole(path, page(finished, command, folder).encode())
    print(path)
    return 0


class Session:
    """The runs of one command."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.scale = options, SCALES[options.scale]
        self.ledger = Ledger(options.ledger or options.runs / "ledger")

    def configs(self, setting: Setting) -> list[Config]:
        seeds = range(1, setting.seeds + 1)
        return [replace(setting.config, seed=seed, backend=self.options.backend) for seed in seeds]

    def compute(self, plans: Iterable[Settings]) -> bool:
        """Compute the runs that are not in the ledger yet; False if stopped by Ctrl-C."""
        every = dict.fromkeys(c for plan in plans for setting in plan.values() for c in self.configs(setting))
        most = math.inf if self.options.seeds is None else self.options.seeds
        left = [c for c in every if c.seed <= most and not self.ledger.find(c, print)]
        available = {name: self.has_data(name) for name in {c.data: None for c in left}}
        left = [c for c in left if available[c.data]]
        if not left:
            return True
        jobs = self.options.jobs or (1 if self.options.backend == "cupy" else os.cpu_count() or 1)
        print(f"{len(every)} runs, {len(left)} of them to compute, {jobs} at a time", flush=True)
        return compute_all(left, self.ledger, self.options.runs, self.options.root, jobs)

    def has_data(self, name: str) -> bool:
        """Whether a data set is here, or can be downloaded."""
        try:
            return bool(data.found(name, self.options.root, download=True))
        except DataError as error:
            print(f"{name} is skipped: {error.args[0]}")
            return False

    def arms(self, settings: Settings) -> dict[str, Arm]:
        """All finished runs of some settings."""
        found = {name: map(self.ledger.find, self.configs(setting)) for name, setting in settings.items()}
        return {name: Arm(settings[name], tuple(filter(None, records))) for name, records in found.items()}
