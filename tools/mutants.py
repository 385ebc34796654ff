"""Mutation testing: change one thing in the package at a time, and see whether `tinyprop verify` or
the tests notice.

    python tools/mutants.py --count 60 --seed 0                 verify, then the quick tests
    python tools/mutants.py --count 60 --seed 1 --verify-only   without the tests
    python tools/mutants.py --count 60 --seed 0 --out tools/MUTANTS.md

A mutant changes one operator, constant, sign or comparison, or drops one term of a sum or factor of
a product. The sites are listed by walking the syntax trees of five groups of code, and `--count` of
them are drawn at random, in equal parts from each group:

    moments       tinyprop/moments/
    layers        tinyprop/nn/: layers, normprop, statistics, weights, residual, init, spec
    gradients     the backward methods of tinyprop/functional/, and tinyprop/kernels/ without CuPy
    closed forms  tinyprop/verify/closed_forms.py
    claims        tinyprop/verify/*_claims.py

Left out is what cannot change a result: docstrings, error messages, reprs, type checks, texts, code
for CuPy only, the block sizes of kernels; and, in claims, how much is measured (samples, sizes, the
tolerance of a limit) and which numbers are printed. Each mutant runs in a copy of the repository.
`tinyprop verify`, of the claims that execute the changed line, the default ones first, catches it
with an unexpected verdict, an exception or a timeout. What survives goes to `pytest -x -m "not
slow"`: to the tests of its own group and then, without `--near`, to all of them."""

import argparse
import ast
import copy
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tinyprop.report.table import Table  # noqa: E402

GROUPS = {
    "moments": ["tinyprop/moments/*.py"],
    "layers": [
        f"tinyprop/nn/{name}.py"
        for name in ("layers", "normprop", "statistics", "weights", "residual", "init", "spec")
    ],
    "gradients": ["tinyprop/functional/*.py", "tinyprop/kernels/[!cg]*.py"],
    "closed forms": ["tinyprop/verify/closed_forms.py"],
    "claims": ["tinyprop/verify/*_claims.py"],
}
NEAR = {  # the tests of each group
    "moments": ["tinyprop/moments", "tests/moments"],
    "layers": ["tests/nn"],
    "gradients": ["tests/functional", "tests/kernels"],
    "closed forms": ["tinyprop/verify/closed_forms.py", "tests/verify/test_claims.py"],
    "claims": ["tests/verify/test_claims.py"],
}
TEXT_FUNCTIONS = {"extra_repr", "__repr__", "__str__", "__format__", "__dir__"}
TEXT_CALLS = {"explain", "ShapeError", "ValueError", "TypeError", "isinstance"}
# keyword arguments of measurements
EFFORT = {"samples", "cost", "block", "threads", "networks", "neglected", "tolerance"}
SWAPS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.MatMult: ast.Mult,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True)
class Mutant:
    """One change: the text from `start` to `end` (offsets in the file) becomes `new`."""

    group: str
    path: Path
    line: int
    lines: tuple[int, ...]  # of the statement; none if it is executed on import
    start: int
    end: int
    new: str
    kind: str

    def apply(self, source: str) -> str:
        return source[: self.start] + self.new + source[self.end :]

    def shown(self, source: str) -> str:
        return (
            f"{' '.join(source[self.start : self.end].split())} -> "
            f"{' '.join(self.new[1:-1].split())}"
        )


@dataclass(frozen=True)
class Outcome:
    mutant: Mutant
    caught: str  # by verify, by the tests, or survived
    how: str


def variants(node: ast.AST, whole_numbers: bool) -> Iterator[tuple[str, ast.AST]]:
    """The ways to change this one expression."""
    if isinstance(node, ast.BinOp):
        if type(node.op) in SWAPS:
            yield "operator", ast.BinOp(node.left, SWAPS[type(node.op)](), node.right)
        if isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
            yield "dropped term", node.left
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "sign", node.operand
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
        yield "comparison", ast.Compare(node.left, [SWAPS[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield "operator", ast.BoolOp(SWAPS[type(node.op)](), node.values)
    elif isinstance(node, ast.Constant) and type(node.value) is float:
        yield "constant", ast.Constant(1.25 * node.value if node.value else 0.25)
    elif isinstance(node, ast.Constant) and type(node.value) is int and whole_numbers:
        yield "constant", ast.Constant(node.value + 1)


def is_text(node: ast.AST) -> bool:
    """Whether nothing below this node can change a result."""
    if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return True
    if isinstance(node, ast.FunctionDef):
        on_cupy = any("cupy" in ast.unparse(decorator) for decorator in node.decorator_list)
        return node.name in TEXT_FUNCTIONS or on_cupy
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).split(".")[-1] in TEXT_CALLS
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(ast.unparse(target).endswith("_AT_ONCE") for target in targets)
    if isinstance(node, ast.If):
        return any(
            isinstance(inner, ast.Raise) for inner in node.body
        ) or "is_device_array" in ast.unparse(node.test)
    return isinstance(node, ast.keyword) and node.arg in EFFORT


# an expression, its lines, and what it becomes
Site = tuple[ast.AST, tuple[int, ...], str, ast.AST]


def sites(tree: ast.Module, group: str, gradients_only: bool) -> Iterator[Site]:
    def walk(
        node: ast.AST, inside: bool, arithmetic: bool, lines: tuple[int, ...]
    ) -> Iterator[Site]:
        if is_text(node):
            return
        inside = inside or (isinstance(node, ast.FunctionDef) and node.name == "backward")
        if inside:
            whole_numbers = group != "claims" or arithmetic
            for kind, changed in variants(node, whole_numbers):
                yield node, lines, kind, changed
        for name, child in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "format_spec"):
                continue
            if group == "claims" and name == "iter" and isinstance(child, ast.Tuple):
                continue  # the settings that a claim is measured at
            in_function = lines or (isinstance(node, ast.FunctionDef) and name == "body")
            for inner in child if isinstance(child, list) else [child]:
                if isinstance(inner, ast.stmt):
                    last = inner.body[0].lineno - 1 if hasattr(inner, "body") else inner.end_lineno
                    its_lines = (
                        tuple(range(inner.lineno, max(inner.lineno, last) + 1))
                        if in_function
                        else ()
                    )
                    yield from walk(inner, inside, False, its_lines)
                elif isinstance(inner, ast.AST):
                    yield from walk(
                        inner, inside, isinstance(node, (ast.BinOp, ast.Compare)), lines
                    )

    yield from walk(tree, not gradients_only, False, ())


def all_mutants() -> dict[str, list[Mutant]]:
    found: dict[str, list[Mutant]] = {}
    for group, patterns in GROUPS.items():
        found[group] = []
        for path in sorted(path for pattern in patterns for path in ROOT.glob(pattern)):
            source = path.read_text(encoding="utf-8")
            starts = [0]
            for line in source.encode().split(b"\n"):
                starts.append(starts[-1] + len(line) + 1)
            for node, lines, kind, changed in sites(
                ast.parse(source), group, "functional" in path.parts
            ):
                # offsets of the syntax tree are in bytes
                head = len(source.encode()[: starts[node.lineno - 1] + node.col_offset].decode())
                tail = len(
                    source.encode()[: starts[node.end_lineno - 1] + node.end_col_offset].decode()
                )
                new = f"({ast.unparse(ast.fix_missing_locations(copy.deepcopy(changed)))})"
                found[group].append(
                    Mutant(group, path.relative_to(ROOT), node.lineno, lines, head, tail, new, kind)
                )
    return found


def sample(count: int, seed: int) -> list[Mutant]:
    """Equal parts of each group, the first groups taking the remainder."""
    dice, drawn = random.Random(seed), []
    for i, mutants in enumerate(all_mutants().values()):
        drawn += dice.sample(mutants, count // len(GROUPS) + (i < count % len(GROUPS)))
    return drawn


REACHED = """
import json
import os
import time
import coverage
import tinyprop as tp
found = {}
for claim in tp.verify.claims("all"):
    watch = coverage.Coverage(data_file=None, source=["tinyprop"], config_file=False)
    start = time.process_time()
    with watch.collect():
        (result,) = tp.verify.run([claim.id], samples=1000, threads=1)
    data = watch.get_data()
    lines = {os.path.relpath(path): data.lines(path) for path in data.measured_files()}
    found[claim.id] = time.process_time() - start, lines
print(json.dumps(found))
"""
VERIFY = """
import sys
import numpy as np
import tinyprop as tp
with np.errstate(all="ignore"):
    for id in sys.argv[1:]:
        try:
            (result,) = tp.verify.run([id], threads=1)
        except Exception as error:
            sys.exit(f"{id} {type(error).__name__}: {str(error).splitlines()[0]}")
        if not result.as_expected:
            sys.exit(f"{id} {result.verdict}")
"""
TESTS = [
    "-m",
    "pytest",
    "-q",
    "-x",
    "-m",
    "not slow",
    "-p",
    "no:cacheprovider",
    "--no-header",
    "--tb=no",
]


def copied() -> Path:
    """The files of the repository, in a directory of their own."""
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in listed.stdout.decode().split("\n"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
    return folder


def call(folder: Path, arguments: list[str], timeout: float) -> tuple[bool, str]:
    """Run Python in this directory: whether it ended well, and its output, or the line that says
    what was wrong."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return False, "timeout"
    if not done.returncode:
        return True, done.stdout
    lines = [line for line in (done.stdout + done.stderr).strip().splitlines() if line.strip()]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return False, (failed or lines or [f"exit status {done.returncode}"])[-1][:110]


def try_out(
    mutant: Mutant, folder: Path, verify: list[str], tests: list[list[str]], timeout: float
) -> Outcome:
    path = folder / mutant.path
    source = path.read_text(encoding="utf-8")
    path.write_text(mutant.apply(source), encoding="utf-8")
    try:
        for by, arguments in (("verify", verify), *(("tests", files) for files in tests)):
            well, how = call(folder, arguments, timeout)
            if not well:
                return Outcome(mutant, by, how)
        return Outcome(mutant, "survived", "")
    finally:
        path.write_text(source, encoding="utf-8")


def report(outcomes: list[Outcome], seed: int, tests: bool) -> Table:
    rows = []
    for i, outcome in enumerate(outcomes, 1):
        mutant = outcome.mutant
        change = mutant.shown((ROOT / mutant.path).read_text(encoding="utf-8"))
        place = f"{str(mutant.path).removeprefix('tinyprop/')}:{mutant.line}"
        rows.append(
            [str(i), mutant.group, place, f"{mutant.kind}: {change}", outcome.caught, outcome.how]
        )
    counts = {
        name: sum(outcome.caught == name for outcome in outcomes)
        for name in ("verify", "tests", "survived")
    }
    by_verify = counts["verify"] / len(outcomes)
    note = (
        f"{len(outcomes)} mutants, seed {seed}: `tinyprop verify` alone catches "
        f"{counts['verify']} ({by_verify:.0%})"
    )
    note += (
        f", the quick tests {counts['tests']} more; {counts['survived']} survive." if tests else "."
    )
    header = ["", "group", "where", "mutant", "caught by", "how"]
    return Table(header, rows, title="Mutants", note=note, align="rlllll")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--count", type=int, default=60, metavar="N", help="mutants to draw (%(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="random seed of the drawing (%(default)s)"
    )
    parser.add_argument(
        "--jobs", type=int, default=2, metavar="N", help="mutants at a time (%(default)s)"
    )
    parser.add_argument(
        "--verify-only", action="store_true", help="do not run the tests on what survives verify"
    )
    parser.add_argument("--list", action="store_true", help="list the mutants, and run nothing")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="also write the table, as Markdown"
    )
    parser.add_argument(
        "--near", action="store_true", help="run only the tests of the mutant's group"
    )
    options = parser.parse_args()
    mutants = sample(options.count, options.seed)
    if options.list:
        for mutant in mutants:
            shown = mutant.shown((ROOT / mutant.path).read_text(encoding="utf-8"))
            print(f"{mutant.path}:{mutant.line}  {mutant.kind}: {shown}")
        return 0
    everything = [] if options.near else [TESTS]
    tests = {
        group: [] if options.verify_only else [[*TESTS, *names], *everything]
        for group, names in NEAR.items()
    }
    folders: queue.Queue[Path] = queue.Queue()
    for _ in range(options.jobs):
        folders.put(copied())
    start, first = time.perf_counter(), folders.queue[0]
    # by id: seconds, and the lines of each file
    reached = json.loads(call(first, ["-c", REACHED], 3600)[1])
    ids = sorted(
        reached, key=lambda id: (id.startswith("N"), reached[id][0])
    )  # the default claims first, cheap ones first
    for arguments in (["-c", VERIFY, *ids], *(run[-1] for run in tests.values() if run)):
        well, how = call(first, arguments, 3600)
        if not well:
            parser.error(f"without a mutation it already fails: {how}")
    timeout = 120 + 3 * (time.perf_counter() - start)

    def verify(mutant: Mutant) -> list[str]:
        """The claims that can see it."""
        path, lines = str(mutant.path), set(mutant.lines)
        return [
            "-c",
            VERIFY,
            *(id for id in ids if not lines or lines & set(reached[id][1].get(path, ()))),
        ]

    def one(mutant: Mutant) -> Outcome:
        folder = folders.get()
        try:
            outcome = try_out(mutant, folder, verify(mutant), tests[mutant.group], timeout)
        finally:
            folders.put(folder)
        print(
            f"{outcome.caught:9}{mutant.path}:{mutant.line}  {outcome.how}",
            file=sys.stderr,
            flush=True,
        )
        return outcome

    try:
        with ThreadPoolExecutor(options.jobs) as pool:
            table = report(list(pool.map(one, mutants)), options.seed, not options.verify_only)
    finally:
        while not folders.empty():
            shutil.rmtree(folders.get())
    print(table.text(160))
    if options.out:
        options.out.write_text(table.markdown() + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
