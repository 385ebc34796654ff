"""`tinyprop verify`."""

import argparse
import shutil
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from ..parallel.executors import executor, place
from ..report.arguments import output_directory, output_file, positive, whole_number
from ..report.files import write_json
from .ledger import chosen, families
from .monte_carlo import Sampler
from .page import FORMS, write_page
from .report import Report, can_show, has_color
from .settling import Result
from .settling import run as settle

EXAMPLES = """examples:
  tinyprop verify                          every claim of the paper, in less than a minute
  tinyprop verify --list                   all claims, at once, without computing
  tinyprop verify --family batchnorm       claims about BatchNorm (or another family, or all)
  tinyprop verify C15 --explain            one claim: why, in numbers, and its figure
  tinyprop verify my_claims.py -v          your own claims, with every number
  tinyprop verify C01 C02 --until 1e-5     until the standard error is that small
  tinyprop verify --report claims.html --json claims.json --figures runs/verify
  mpiexec -n 8 tinyprop verify --samples 1e9 --cluster mpi

The exit status is 0 if every verdict is the expected one, 1 if not, 2 for wrong arguments."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument(
        "claims",
        nargs="*",
        metavar="CLAIM",
        help="ids (C01 to C45, G1 to G6, N01 to N30; default: C and G), or Python files of claims",
    )
    parser.add_argument(
        "--family",
        choices=[*families(), "all"],
        help="the claims on one subject (default: normprop)",
    )
    parser.add_argument(
        "--list", action="store_true", help="print statements and expected verdicts only"
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="print every number of every claim"
    )
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument(
        "--samples",
        type=whole_number(1),
        metavar="N",
        help="samples for each estimate, such as 1e8",
    )
    effort.add_argument(
        "--until", type=positive, metavar="SE", help="sample until the standard error is this small"
    )
    parser.add_argument(
        "--seed", type=seed_number, default=0, metavar="S", help="random seed (%(default)s)"
    )
    parser.add_argument(
        "--backend", choices=["numpy", "cupy"], help="where to compute (default: TINYPROP_BACKEND)"
    )
    clusters = (
        "compute claims side by side, with the same results: processes, dask://host:port, mpi "
        "(under mpiexec)"
    )
    parser.add_argument("--cluster", type=place, metavar="WHERE", help=clusters)
    parser.add_argument(
        "--json", type=output_file, metavar="FILE", help="write every case of every claim to a file"
    )
    parser.add_argument(
        "--report",
        type=report_file,
        action="append",
        default=[],
        metavar="FILE",
        help="write a report with derivations: FILE.md or FILE.html",
    )
    parser.add_argument(
        "--figures",
        type=output_directory,
        metavar="DIR",
        help="draw the figures of these claims in a directory",
    )
    parser.add_argument(
        "--explain", action="store_true", help="the derivation, and the figure (in runs/verify)"
    )


def seed_number(text: str) -> int:
    """The value of --seed, checked: with all its digits, however many."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def report_file(text: str) -> Path:
    """The value of --report, checked."""
    path = Path(text)
    if path.suffix not in FORMS:
        raise argparse.ArgumentTypeError(f"{text!r} does not end in {' or '.join(FORMS)}")
    return path


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    try:
        picked = chosen(options.claims or None, options.family)
    except (FileNotFoundError, ImportError, ValueError) as error:
        parser.error(str(error))
    outputs = [path for path in (options.json, *options.report) if path]
    if len({path.resolve() for path in outputs}) < len(outputs):
        parser.error(f"{', '.join(map(str, outputs))}: each file is written once")
    for path in outputs:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            parser.error(f"{path} is not a regular file, and will not be replaced")
    columns = shutil.get_terminal_size((100, 24)).columns
    report = Report(columns, color=has_color(sys.stdout), ascii=not can_show(sys.stdout.encoding))
    if options.list:
        everything = options.claims or options.family
        print(report.list(picked if everything else chosen(None, "all")))
        return 0
    start = time.perf_counter()
    results = computed(options, [claim.id for claim in picked], columns)
    if results is None:  # a rank that has settled claims for the first one
        return 0
    seconds = time.perf_counter() - start
    if options.explain:
        print("\n\n".join(map(report.explanation, results)))
    else:
        print(report.table(results, rows=options.verbose))
    print(f"\n{report.summary(results, seconds)}")
    if options.json:
        write_json(options.json, [result.to_json() for result in results])
        print(f"The numbers are in {options.json}")
    for path in options.report:
        write_page(path, results)
        print(f"The report is in {path}")
    if options.figures or options.explain:
        from .figures import draw_figures  # loads matplotlib

        ids = [result.id for result in results]
        folder = options.figures or Path("runs/verify")
        for path in draw_figures(ids, Sampler(seed=options.seed), folder):
            print(f"Figure: {path}")
    return 0 if all(result.as_expected for result in results) else 1


def computed(options: argparse.Namespace, ids: list[str], columns: int) -> list[Result] | None:
    """The results, with a bar that shows how far it is; None for a rank that only helps."""
    from tqdm.auto import tqdm

    form = "{desc} {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} claims, {elapsed}"
    settings = {"bar_format": form, "ncols": min(columns, 80) - 1, "disable": None, "leave": False}
    where = executor(options.cluster) if options.cluster else nullcontext((None, 1))
    with tqdm(total=len(ids), **settings) as bar, where as (pool, _):

        def progress(id: str, fraction: float) -> None:
            bar.set_description_str(f"{id} {fraction:4.0%}", refresh=False)
            bar.update(ids.index(id) - bar.n)

        if options.cluster and pool is None:
            return None
        effort = (options.samples, options.seed, options.backend, pool, options.until)
        return settle(ids, *effort, progress=progress)
