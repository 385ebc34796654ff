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
from .ledger import FAMILIES, chosen
from .ledger import run as settle
from .monte_carlo import Sampler
from .report import Report, can_show, has_color

EXAMPLES = """examples:
  tinyprop verify                          every claim of the paper, in less than a minute
  tinyprop verify --family batchnorm       claims about BatchNorm (or another family, or all)
  tinyprop verify C15 --explain            one claim: why, in numbers, and its figure
  tinyprop verify C01 C02 --until 1e-5     until the standard error is that small
  tinyprop verify --json verify.json --figures runs/verify
  mpiexec -n 8 tinyprop verify --samples 1e9 --cluster mpi

The exit status is 0 if every verdict is the expected one, 1 if not, 2 for wrong arguments."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument(
        "ids",
        nargs="*",
        metavar="ID",
        help="claims: C01 to C45, G1 to G6, N01 to N30 (default: C and G)",
    )
    parser.add_argument(
        "--family", choices=[*FAMILIES, "all"], help="the claims on one subject (default: normprop)"
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
        "--seed", type=int, default=0, metavar="S", help="random seed (%(default)s)"
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
        "--figures",
        type=output_directory,
        metavar="DIR",
        help="draw the figures of these claims in a directory",
    )
    parser.add_argument(
        "--explain", action="store_true", help="the derivation, and the figure (in runs/verify)"
    )


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    try:
        picked = chosen(options.ids or None, options.family)
    except ValueError as error:
        parser.error(str(error))
    from tqdm.auto import tqdm

    start = time.perf_counter()
    form = "{desc} {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} claims, {elapsed}"
    columns = shutil.get_terminal_size((100, 24)).columns
    order = {claim.id: i for i, claim in enumerate(picked)}
    with tqdm(
        total=len(picked), bar_format=form, ncols=min(columns, 80) - 1, disable=None, leave=False
    ) as bar:

        def progress(id: str, fraction: float) -> None:
            bar.set_description_str(f"{id} {fraction:4.0%}", refresh=False)
            bar.update(order[id] - bar.n)

        with executor(options.cluster) if options.cluster else nullcontext((None, 1)) as (pool, _):
            if options.cluster and pool is None:  # a rank that has settled claims for the first one
                return 0
            effort = (options.samples, options.seed, options.backend, pool, options.until)
            results = settle(list(order), *effort, progress=progress)
    seconds = time.perf_counter() - start
    report = Report(columns, color=has_color(sys.stdout), ascii=not can_show(sys.stdout.encoding))
    if options.explain:
        print("\n\n".join(report.explanation(*pair) for pair in zip(picked, results, strict=True)))
    else:
        print(report.table(results))
    print(f"\n{report.summary(results, seconds)}")
    if options.json:
        write_json(options.json, [result.to_json() for result in results])
        print(f"The numbers are in {options.json}")
    if options.figures or options.explain:
        from .figures import draw_figures  # loads matplotlib

        for path in draw_figures(
            order, Sampler(seed=options.seed), options.figures or Path("runs/verify")
        ):
            print(f"Figure: {path}")
    return 0 if all(result.as_expected for result in results) else 1
