"""`tinyprop reproduce`."""

import argparse
import math
from pathlib import Path

from ..parallel.executors import executor, place
from ..report import plots
from ..report.arguments import duration, whole_number
from ..report.files import write_whole
from ..train import keep_freed_memory
from . import EXPERIMENTS
from .evidence import REGISTERED
from .ledger import Ledger
from .report import page, quoted
from .scales import SCALES
from .study import Study

EXAMPLES = """examples:
  tinyprop reproduce convergence results --jobs 4         two experiments, which share runs
  tinyprop reproduce all --scale tiny                     everything small, in a minute or two
  tinyprop reproduce all --ledger figures/runs --seeds 0  report on finished runs, without new ones
  tinyprop reproduce --continue --budget 2h               the most useful next runs, for two hours
  tinyprop reproduce all --cluster dask://node1:8786      on a cluster that sees the same files
  mpiexec -n 9 tinyprop reproduce all --cluster mpi       on 8 processes; one hands out the runs

The output directory gets EXPERIMENT.png and README.md, the report. Finished runs are kept in the
ledger and never computed twice. Ctrl-C (or SIGTERM) saves and stops; the same command resumes. The
most useful runs come first; a setting gets no more once all claims about it are decided. Several
machines can each compute other experiments: copy their ledgers together."""
FIGURES, PAGE, README = Path("figures"), Path("REPRODUCTION.md"), Path("README.md")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    names, add = [*EXPERIMENTS, "all"], parser.add_argument
    add("experiments", nargs="*", metavar="EXPERIMENT", choices=[*names, []], help=", ".join(names))
    add("--scale", choices=SCALES, default="laptop", help="how large (default: %(default)s)")
    add(
        "--seeds",
        type=whole_number(0),
        metavar="N",
        help="compute at most N seeds per setting (default: as planned)",
    )
    add(
        "--jobs",
        type=whole_number(1),
        metavar="N",
        help="runs side by side, each on one thread (default: workers)",
    )
    add(
        "--cluster",
        type=place,
        default="processes",
        metavar="WHERE",
        help="processes, dask://host:port, mpi",
    )
    add(
        "--out",
        type=Path,
        default=Path("runs/figures"),
        help="output directory (default: %(default)s)",
    )
    add(
        "--runs",
        type=Path,
        default=Path("runs/reproduce"),
        help="directory of unfinished runs (default: %(default)s)",
    )
    add("--ledger", type=Path, help="directory of finished runs (default: ledger in --runs)")
    add("--root", type=Path, help="data directory (default: $TINYPROP_DATA, or the user's cache)")
    add(
        "--backend",
        choices=("numpy", "cupy"),
        default="numpy",
        help="where arrays live (default: %(default)s)",
    )
    add(
        "--budget",
        type=duration,
        default=math.inf,
        metavar="TIME",
        help="save and report after so long: 90m, 2h",
    )
    publish = (
        f"all experiments, to {PAGE}, {README}, {FIGURES}/ and the committed ledger {FIGURES}/runs/"
    )
    add("--continue", "--publish", dest="publish", action="store_true", help=publish)


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    names = set(options.experiments)
    if options.publish:
        if names - {"all"}:
            parser.error("argument --continue: only all experiments are published, together")
        if (options.scale, options.backend) != (REGISTERED["scale"], "numpy"):
            parser.error(
                f"argument --continue: what is published is the scale {REGISTERED['scale']}, "
                "on "
                "numpy"
            )
        names, options.out, options.ledger = {"all"}, FIGURES, FIGURES / "runs"
    if not names:
        parser.error("the following arguments are required: EXPERIMENT")
    keep_freed_memory()
    chosen = [e for name, e in EXPERIMENTS.items() if names & {name, "all"}]
    ledger, scale = Ledger(options.ledger or options.runs / "ledger"), SCALES[options.scale]
    study = Study(chosen, scale, ledger, options.runs, options.root, options.backend, options.seeds)
    one_device = options.backend == "cupy" and options.cluster == "processes"
    with executor(
        options.cluster, options.jobs or (1 if one_device else None), keep_freed_memory
    ) as (pool, jobs):
        if pool is None:  # a rank that has computed runs for the first one
            return 0
        if left := len(study.wanted()):
            print(f"{left} runs to compute, {jobs} at a time", flush=True)
            if not study.compute(pool, jobs, options.budget):
                print("stopped; everything is saved, and the same command resumes")
                return 130
    experiments = study.experiments()
    for experiment in experiments:
        print(plots.save(experiment.figure(), options.out / f"{experiment.name}.png"), flush=True)
    path, folder = (PAGE, f"{FIGURES}/") if options.publish else (options.out / "README.md", "")
    command = (
        "--continue"
        if options.publish
        else f"{' '.join(options.experiments)} --scale {options.scale}"
    )
    text = page(experiments, f"tinyprop reproduce {command}", folder)
    write_whole(path, text.encode())
    print(path)
    if options.publish and README.exists():
        write_whole(README, quoted(text, README.read_text("utf-8")).encode())
    return 0
