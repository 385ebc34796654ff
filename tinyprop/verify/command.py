"""`tinyprop verify`."""

import argparse
import shutil
import sys
import time
from pathlib import Path

from tqdm import tqdm

from ..arguments import positive, whole_number
from .figures import draw_families
from .ledger import chosen
from .ledger import run as settle
from .monte_carlo import Sampler
from .table import Table, write_json

EXAMPLES = """examples:
  tinyprop verify                          every claim, in less than a minute
  tinyprop verify C15 --explain            one claim: why, in numbers, and its picture
  tinyprop verify C01 C02 --until 1e-5     until the standard error is that small
  tinyprop verify --json verify.json --figures runs/verify

The exit status is 0 if every verdict is the expected one, 1 if not, 2 for bad arguments."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("ids", nargs="*", metavar="ID", help="claims, C01 to C45 and G1 to G6 (default: all)")
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--samples", type=whole_number(1), metavar="N", help="samples for each estimate, such as 1e8")
    effort.add_argument("--until", type=positive, metavar="SE", help="sample until the standard error is this small")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of all random numbers (%(default)s)")
    parser.add_argument("--backend", choices=["numpy", "cupy"], help="where to compute (default: TINYPROP_BACKEND)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to a file")
    parser.add_argument("--figures", type=Path, metavar="DIR", help="draw the pictures of these claims into a folder")
    parser.add_argument("--explain", action="store_true", help="derivation, every number, and the picture")


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    try:
        picked = chosen(options.ids or None)
    except ValueError as error:
        parser.error(str(error))
    start = time.perf_counter()
    with tqdm(total=len(picked), desc="claims", unit="claim", disable=None, leave=False) as bar:
        order = {claim.id: i for i, claim in enumerate(picked)}

        def progress(id: str, part: float) -> None:
            bar.set_postfix_str(f"{id} {part:.0%}", refresh=False)
            bar.update(order[id] - bar.n)

        ids = list(order)
        results = settle(ids, options.samples, options.seed, options.backend, options.until, progress=progress)
    seconds = time.perf_counter() - start
    table = Table(shutil.get_terminal_size((100, 24)).columns, colour=sys.stdout.isatty())
    if options.explain:
        print("\n\n".join(table.explanation(*pair) for pair in zip(picked, results, strict=True)))
    else:
        print(table.whole(results))
    print(f"\n{table.summary(results, seconds)}")
    if options.json:
        write_json(results, options.json)
        print(f"The numbers are in {options.json}.")
    if options.figures or options.explain:
        families = {claim.family for claim in picked}
        folder = options.figures or Path("runs/verify")
        paths = draw_families(families, Sampler(seed=options.seed), folder)
        print(f"Pictures: {', '.join(map(str, paths))}")
    return 0 if all(result.as_expected for result in results) else 1
