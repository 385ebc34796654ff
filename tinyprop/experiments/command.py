"""`tinyprop reproduce`."""

import argparse
import math
import sys
from pathlib import Path

from ..parallel.executors import executor, place
from ..report import plots
from ..report.arguments import duration, output_directory, whole_number
from ..report.files import write_whole
from ..train import keep_freed_memory
from . import EXPERIMENTS, experiments_at
from .ledger import Ledger
from .report import page
from .scales import SCALES
from .study import Study

EXAMPLES = """examples:
  tinyprop reproduce convergence results --jobs 4         two experiments, which share runs
  tinyprop reproduce all --scale tiny                     everything small, in a minute or two;
                                                          needs no download
  tinyprop reproduce convergence --scale plateau          32 epochs, on small images
  tinyprop reproduce all --budget 2h                      the most useful next runs, for two hours
  tinyprop reproduce all --ledger figures/runs --seeds 0  report on finished runs, without new ones
  tinyprop reproduce all --cluster dask://node1:8786      on a cluster that sees the same files
  mpiexec -n 9 tinyprop reproduce all --cluster mpi       on 8 processes; one hands out the runs

The output directory gets EXPERIMENT.png and README.md, the report. Finished runs are kept in the
ledger and never computed twice. Ctrl-C (or SIGTERM) saves and stops; the same command resumes. The
most useful runs come first; a setting gets no more once all claims about it are decided. Several
machines can each compute other experiments: copy their ledgers together."""
INTERRUPTED = 130  # exit status after Ctrl-C


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    names = list(dict.fromkeys([*EXPERIMENTS, "all"]))
    add = parser.add_argument
    add("experiments", nargs="+", metavar="EXPERIMENT", choices=names, help=", ".join(names))
    add("--scale", choices=SCALES, default="short", help="how large (default: %(default)s)")
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
        help="runs side by side, each on one thread (default: one a core, or a worker)",
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
        type=output_directory,
        default="runs/figures",
        help="output directory (default: %(default)s)",
    )
    add(
        "--runs",
        type=output_directory,
        default="runs/reproduce",
        help="directory of unfinished runs (default: %(default)s)",
    )
    add(
        "--ledger",
        type=output_directory,
        help="directory of finished runs (default: ledger in --runs)",
    )
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
    add(
        "--pause-file",
        type=Path,
        metavar="FILE",
        help="wait between steps while FILE exists, as benchmarks make one (TINYPROP_PAUSE)",
    )


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    keep_freed_memory()
    planned = experiments_at(SCALES[options.scale])
    unknown = [name for name in options.experiments if name not in (*planned, "all")]
    if unknown:
        parser.error(
            f"no {', '.join(unknown)} at scale {options.scale}, which has {', '.join(planned)}"
        )
    study = chosen_study(options)
    jobs = options.jobs
    shares_one_device = options.backend == "cupy" and options.cluster == "processes"
    if jobs is None and shares_one_device:
        jobs = 1
    has_work = bool(study.wanted())
    with executor(options.cluster, jobs, keep_freed_memory) as (pool, jobs):
        if pool is None:  # a rank that has computed runs for the first one
            return 0
        if has_work:
            print(study.plan(jobs), flush=True)
            interrupted = not study.compute(pool, jobs, options.budget)
            if interrupted:
                print("stopped; everything is saved, and the same command resumes")
                return INTERRUPTED
    if not any(study.records.values()):
        print(without_runs(study), file=sys.stderr)
        return 0 if has_work else 1
    command = f"tinyprop reproduce {' '.join(options.experiments)} --scale {options.scale}"
    write_report(study, options.out, command)
    return 0


def without_runs(study: Study) -> str:
    """Why there is nothing to report, and what to do."""
    lines = ["no run is finished, so no report is written"]
    for name, error in study.missing.items():
        lines.append(f"{name} is not available:\n{error}")
    if study.missing:
        lines.append("What needs no download: tinyprop reproduce all --scale tiny")
    return "\n".join(lines)


def chosen_study(options: argparse.Namespace) -> Study:
    chosen = []
    for name, experiment in experiments_at(SCALES[options.scale]).items():
        if name in options.experiments or "all" in options.experiments:
            chosen.append(experiment)
    return Study(
        chosen=chosen,
        scale=SCALES[options.scale],
        ledger=Ledger(options.ledger or options.runs / "ledger"),
        runs=options.runs,
        root=options.root,
        backend=options.backend,
        most=options.seeds,
        pause_file=options.pause_file,
    )


def write_report(study: Study, out: Path, command: str) -> None:
    """Write the page of all finished runs, and a figure for each experiment that has some, and
    print their paths."""
    experiments = []
    for experiment in study.experiments():
        if any(arm.records for arm in experiment.arms.values()):
            experiments.append(experiment)
    for experiment in experiments:
        path = out / f"{experiment.name}.png"
        plots.save(experiment.figure(), path, experiment.described())
        print(path, flush=True)
    path = out / "README.md"
    write_whole(path, page(experiments, command).encode())
    print(path)
