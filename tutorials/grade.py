"""Grade what students hand in: `python -m tutorials.grade submissions/`.

A file is a notebook, a lesson as a program (.py with `# %%` cells), or the file that a lesson's
page saves. Each exercise runs in a process of its own, with limits, on numbers drawn for this
student: whatever the file prints, or says of itself, does not count. Of a file, only imports,
functions, classes and constants run, and then the cell of the exercise.

The limits keep mistakes from harm: an endless loop, a full memory or disk. An answer may not read
the course, write outside of its own folder, start processes or change what checks it. All this is
no security boundary: a program written to break out has the rights of the user who runs it. If you
do not trust what is handed in, grade it in a container, without a network and as a user of its own
(with podman instead of docker, the commands are the same):

    pip wheel --no-deps -w dist .
    printf 'FROM python:3.13-slim\\nCOPY *.whl /\\nRUN pip install /*.whl\\n' |
        docker build -t tinyprop -f - dist
    docker run --rm --network none --read-only --tmpfs /tmp --memory 8g --pids-limit 256 \\
        --user 65534 -v "$PWD":/course:ro -w /course tinyprop sh -c \\
        "python -m tutorials.grade submissions --out /tmp/grades.csv; cat /tmp/grades.csv"
"""

import argparse
import ast
import contextlib
import csv
import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

COURSE = Path(__file__).resolve().parent
CHILD = COURSE / "grade_child.py"
SUFFIXES = (".ipynb", ".json", ".py")


@dataclass(frozen=True)
class Limits:
    seconds: float = 20.0  # of the clock, and of the processor
    memory: int = 4 << 30  # bytes of addresses
    file_size: int = 1 << 20  # bytes of the largest file


@dataclass(frozen=True)
class Grade:
    """A row of the table: one exercise of one student."""

    student: str
    lesson: str
    exercise: str
    verdict: str  # right, not yet, missing
    why: str = ""


class Unreadable(Exception):
    """What is wrong with a file that was handed in."""


def cells_of(path: Path) -> list[str]:
    """The code cells of a file, in order."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            return percent_cells(text)
        return [source_of(cell) for cell in json.loads(text)["cells"] if is_code(cell)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unreadable(f"the file cannot be read: {type(error).__name__}: {error}") from error


def percent_cells(text: str) -> list[str]:
    cells: list[list[str]] = [[]]
    is_text = False
    for line in text.splitlines():
        if line.startswith("# %%"):
            is_text = "[markdown]" in line
            cells.append([])
        elif not is_text:
            cells[-1].append(line)
    return ["\n".join(lines) for lines in cells]


def is_code(cell: Any) -> bool:
    return cell.get("cell_type", "code") == "code"


def source_of(cell: Any) -> str:
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def parsed(source: str) -> ast.Module | None:
    """The cell as a program, without a notebook's % and ! lines; None if it is none."""
    lines = [line for line in source.splitlines() if not line.lstrip().startswith(("%", "!"))]
    try:
        return ast.parse("\n".join(lines))
    except (SyntaxError, ValueError):
        return None


def checked_in(program: ast.Module) -> list[str]:
    """The exercises whose answers this cell hands to `check`."""
    found = []
    for node in ast.walk(program):
        is_check = (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "check"
            and node.args
            and isinstance(node.args[0], ast.Constant)
        )
        if is_check:
            found.append(str(node.args[0].value))
    return found


PLAIN = (
    ast.Assign,
    ast.Name,
    ast.Constant,
    ast.Tuple,
    ast.List,
    ast.BinOp,
    ast.UnaryOp,
    ast.Attribute,
    ast.operator,
    ast.unaryop,
    ast.expr_context,
)


def is_constant(statement: ast.stmt) -> bool:
    """Whether it gives a name to a number or an array, as `C2 = 1 / math.sqrt(2 * math.pi)` and
    `random = np.random.default_rng(0)` do."""
    if not isinstance(statement, ast.Assign):
        return False
    for node in ast.walk(statement):
        is_call = isinstance(node, ast.Call) and root_name(node.func) in ("math", "np")
        if not is_call and not isinstance(node, PLAIN):
            return False
    return True


def root_name(expression: ast.expr) -> str | None:
    """The name that attributes are taken of: np in np.random.default_rng."""
    while isinstance(expression, ast.Attribute):
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else None


def definitions(program: ast.Module) -> Iterator[ast.stmt]:
    """What other cells may use of this one, and what costs nothing to run."""
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    for statement in program.body:
        if isinstance(statement, kinds) or is_constant(statement):
            yield statement


@dataclass(frozen=True)
class Answer:
    exercise: str
    definitions: tuple[
        str, ...
    ]  # statements: what the file defines before the cell of the exercise
    cell: str


def answers_of(cells: list[str]) -> dict[str, Answer]:
    """The answers of a file, by exercise. If a cell is there twice, the last one counts."""
    found: dict[str, Answer] = {}
    before: list[str] = []
    for cell in cells:
        program = parsed(cell)
        if program is None:
            for exercise in broken_checks(cell):
                found[exercise] = Answer(exercise, (), cell)
            continue
        for exercise in checked_in(program):
            found[exercise] = Answer(exercise, tuple(before), ast.unparse(program))
        before += [ast.unparse(statement) for statement in definitions(program)]
    return found


def broken_checks(cell: str) -> list[str]:
    """The exercises of a cell that does not compile, by its lines."""
    lines = [parsed(line) for line in cell.splitlines()]
    return [exercise for line in lines if line is not None for exercise in checked_in(line)]


def seed_for(seed: int, student: str, exercise: str) -> int:
    digest = hashlib.sha256(f"{seed}\n{student}\n{exercise}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def run(answer: Answer, seed: int, limits: Limits) -> str | None:
    """What is wrong with an answer, by a process of its own; None if it is right."""
    token = secrets.token_hex(16)  # the verdict is the line that begins with it
    task = {
        "token": token,
        "exercise": answer.exercise,
        "definitions": answer.definitions,
        "cell": answer.cell,
        "seed": seed,
        "seconds": limits.seconds,
        "memory": limits.memory,
        "file_size": limits.file_size,
    }
    paths = [str(COURSE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory(prefix="grade-") as folder:
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "SYSTEMROOT": os.environ.get("SYSTEMROOT", ""),  # Windows needs it
            "HOME": folder,
            "TMPDIR": folder,
            "MPLCONFIGDIR": folder,
            "MPLBACKEND": "Agg",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(paths),
        }
        process = subprocess.Popen(
            [sys.executable, "-B", str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=environment,
            start_new_session=True,
            text=True,
        )
        try:
            said, _ = process.communicate(json.dumps(task), timeout=limits.seconds)
        except subprocess.TimeoutExpired:
            end(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=1)
            close_pipes(process)  # something that has left the group may still have them
            return f"it takes longer than {limits.seconds:g} seconds"
        end(process)  # what it has started
    return read_verdict(said, token, process.returncode, limits)


def close_pipes(process: "subprocess.Popen[str]") -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def end(process: "subprocess.Popen[str]") -> None:
    """Kill a process and all that it has started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def read_verdict(said: str, token: str, code: int, limits: Limits) -> str | None:
    for line in said.splitlines():
        if line.startswith(token):
            wrong: str | None = json.loads(line[len(token) :])
            return wrong
    if hasattr(signal, "SIGXCPU") and code == -signal.SIGXCPU:
        return f"it takes longer than {limits.seconds:g} seconds"
    return f"it ended before there was a verdict (exit code {code})"


def submissions(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())


def grades_of(path: Path, folder: Path, seed: int, limits: Limits) -> list[Grade]:
    student = path.relative_to(folder).with_suffix("").as_posix()
    try:
        answers = answers_of(cells_of(path))
    except Unreadable as error:
        return [Grade(student, "", "", "missing", str(error))]
    if not answers:
        return [Grade(student, "", "", "missing", "there is no exercise in this file")]
    known = exercises_by_lesson()
    lessons = sorted({exercise.split(".")[0] for exercise in answers}, key=lesson_key)
    grades = []
    for lesson in lessons:
        for exercise in known.get(lesson, []):
            if exercise not in answers:
                grades.append(Grade(student, lesson, exercise, "missing"))
                continue
            wrong = run(answers[exercise], seed_for(seed, student, exercise), limits)
            kind = "right" if wrong is None else "not yet"
            grades.append(Grade(student, lesson, exercise, kind, wrong or ""))
    return grades


def exercises_by_lesson() -> dict[str, list[str]]:
    sys.path.insert(0, str(COURSE))
    try:
        import exercises  # noqa: F401  (registers the checkers)
        from checks import EXERCISES
    finally:
        sys.path.remove(str(COURSE))
    lessons: dict[str, list[str]] = {}
    for number in EXERCISES:
        lessons.setdefault(number.split(".")[0], []).append(number)
    return lessons


def lesson_key(lesson: str) -> tuple[bool, str]:
    return lesson.startswith("E"), lesson.zfill(3)


def summary(grades: list[Grade]) -> str:
    """How many exercises are right, a line for each student and lesson."""
    totals: dict[tuple[str, str], list[int]] = {}
    for grade in grades:
        right, of = totals.setdefault((grade.student, grade.lesson), [0, 0])
        totals[grade.student, grade.lesson] = [right + (grade.verdict == "right"), of + 1]
    width = max(len(student) for student, _ in totals)
    lines = []
    for (student, lesson), (right, of) in totals.items():
        what = f"lesson {lesson}: {right} of {of} right" if lesson else "nothing to grade"
        lines.append(f"{student:{width}}  {what}")
    return "\n".join(lines)


def write(grades: list[Grade], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(field.name for field in fields(Grade))
        rows.writerows(astuple(grade) for grade in grades)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tutorials.grade", description="Grade what students hand in."
    )
    parser.add_argument(
        "folder", type=Path, help="files that were handed in, one for each student and lesson"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("grades.csv"), help="table to write (default: grades.csv)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed of the numbers, different for each student"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="answers side by side (default: processors)",
    )
    parser.add_argument(
        "--seconds", type=float, default=Limits.seconds, help="time for one answer (default: 20)"
    )
    parser.add_argument(
        "--memory",
        type=float,
        default=Limits.memory / 2**30,
        help="GiB of memory for one answer (default: 4)",
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = arguments()
    options = parser.parse_args(argv)
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is not a folder of files that were handed in")
    files = submissions(options.folder)
    if not files:
        parser.error(f"there is no notebook (.ipynb), .json or .py file in {options.folder}")
    limits = Limits(seconds=options.seconds, memory=int(options.memory * 2**30))
    grades: list[Grade] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        work = [
            pool.submit(grades_of, path, options.folder, options.seed, limits) for path in files
        ]
        for path, one in zip(files, work, strict=True):
            grades += one.result()
            print(f"{path.relative_to(options.folder)} is graded", file=sys.stderr)
    write(grades, options.out)
    print(summary(grades))
    print(f"{options.out} has a row for each exercise")
    return 0


if __name__ == "__main__":
    sys.exit(main())
