"""Grade what students hand in: `python -m tutorials.grade submissions/`.

A file is a notebook, a lesson as a program (.py with `# %%` cells), or the file that a lesson's
page saves. Each exercise runs in a process of its own, with limits, on numbers drawn for this
student: whatever the file prints, or says of itself, does not count. Of a file, only imports,
functions, classes and constants run, and then the cell of the exercise. What an answer returns is
checked once more here, where nothing of the student runs, unless it is a class or a graph.

The limits keep mistakes from harm: an endless loop, a full memory or disk. An answer may not read
the course or what others handed in, write outside of its own folder, start processes, look at the
frames of its callers or change what checks it. All this is
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
import base64
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
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

COURSE = Path(__file__).resolve().parent
CHILD = COURSE / "grade_child.py"
SUFFIXES = (".ipynb", ".json", ".py")
LARGEST_FILE = 20 << 20  # bytes of a file that is handed in
LARGEST_REPORT = 16 << 20  # bytes that an answer's process may send
LONGEST = 500  # characters of the reason in the table
# whose answers are classes, or functions of graphs: no data from which a verdict could be repeated
GRAPHS = ("1.3", "1.4", "1.5", "2.5", "2.6", "6.5", "E3.1")


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
    if path.is_symlink():
        raise Unreadable("it is a link, not a file")
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise Unreadable(f"the file is too large: {size >> 20} MB")
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() == ".py":
            return percent_cells(text)
        return [source_of(cell) for cell in json.loads(text)["cells"] if is_code(cell)]
    except Unreadable:
        raise
    except Exception as error:  # whatever a file can be that is no notebook
        raise Unreadable(f"the file cannot be read: {type(error).__name__}: {error}") from error


def percent_cells(text: str) -> list[str]:
    cells: list[list[str]] = [[]]
    is_text = False
    for line in text.split("\n"):
        if line.startswith("# %%"):
            is_text = "[markdown]" in line
            cells.append([])
        elif not is_text:
            cells[-1].append(line)
    return ["\n".join(lines) for lines in cells]


def is_code(cell: Any) -> bool:
    return cell.get("cell_type", "code") == "code"


def source_of(cell: Any) -> str:
    source = cell.get("source", "")
    return source if isinstance(source, str) else "".join(source)


def parsed(source: str) -> ast.Module | None:
    """The cell as a program, if need be without a notebook's % and ! lines; None if it is none."""
    lines = [line for line in source.split("\n") if not line.lstrip().startswith(("%", "!"))]
    for text in (source, "\n".join(lines)):
        try:
            program = ast.parse(text)
            ast.unparse(program)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return program
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
    lines = [parsed(line) for line in cell.splitlines() if "check" in line]
    return [exercise for line in lines if line is not None for exercise in checked_in(line)]


def seed_for(seed: int, student: str, exercise: str) -> int:
    digest = hashlib.sha256(f"{seed}\n{student}\n{exercise}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def run(answer: Answer, seed: int, limits: Limits, hidden: tuple[Path, ...] = ()) -> str | None:
    """What is wrong with an answer, by a process of its own; None if it is right. The answer cannot
    open the hidden files and folders."""
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
        "hidden": [str(path.resolve()) for path in hidden],
    }
    paths = [str(COURSE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory(prefix="grade-", ignore_cleanup_errors=True) as folder:
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
        )
        said = listen(process, json.dumps(task).encode(), limits)
    if said is None:
        return f"it takes longer than {limits.seconds:g} seconds"
    return read_verdict(said, token, process.returncode, limits, answer.exercise, seed)


def listen(process: "subprocess.Popen[bytes]", task: bytes, limits: Limits) -> bytes | None:
    """What a process says to this task, up to a size; None if it takes too long. In the end it and
    what it has started are no more."""
    said: list[bytes] = []

    def talk() -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError), process.stdout:  # it may have ended
            with process.stdin:
                process.stdin.write(task)
            said.append(process.stdout.read(LARGEST_REPORT))

    thread = threading.Thread(target=talk, daemon=True)
    thread.start()
    thread.join(limits.seconds)
    in_time = not thread.is_alive()
    if in_time:  # it has ended, closed its output, or said too much
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
    end(process)
    thread.join(1)  # what has left the group may still have the pipe
    return b"".join(said) if in_time else None


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and all that it has started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def read_verdict(
    said: bytes, token: str, code: int, limits: Limits, exercise: str, seed: int
) -> str | None:
    for line in said.decode(errors="replace").splitlines():
        if not line.startswith(token):
            continue
        kind, _, text = line[len(token) :].partition(" ")
        if kind != "right":
            return wording(text)
        return None if exercise in GRAPHS else verdict_on(text, exercise, seed)
    if hasattr(signal, "SIGXCPU") and code == -signal.SIGXCPU:
        return f"it takes longer than {limits.seconds:g} seconds"
    return f"it ended before there was a verdict (exit code {code})"


def wording(text: str) -> str:
    """What a process says is wrong, even if the answer has spoiled how it is said."""
    with contextlib.suppress(ValueError):
        wrong = json.loads(text)
        if isinstance(wrong, str):
            return wrong
    return "it changes how the verdict is written"


def verdict_on(text: str, exercise: str, seed: int) -> str | None:
    """What is wrong with what an answer has returned. The process of the answer has found it right,
    but there the student could do much."""
    checks = the_checks()
    try:
        returned = [value_of(data) for data in json.loads(text)]
    except Exception:
        return "it changes how the verdict is written"
    left = iter(returned)

    def again(*arguments: Any, **named: Any) -> Any:
        return next(left, None)

    answer = again if checks.EXERCISES[exercise].function else again()
    with np.errstate(all="ignore"):
        wrong: str | None = checks.verdict(exercise, answer, seed)
    return wrong


def value_of(data: Any) -> Any:
    """A number, array, tensor, or list of them; `grade_child.data_of` is the other way."""
    import tinyprop as tp

    if not isinstance(data, dict):
        return data
    kinds: dict[str, Callable[[Any], Any]] = {
        "text": str,
        "int": int,
        "tensor": lambda part: tp.tensor(value_of(part)),
        "tuple": lambda parts: tuple(value_of(part) for part in parts),
        "list": lambda parts: [value_of(part) for part in parts],
        "set": lambda parts: {value_of(part) for part in parts},
    }
    for kind, make in kinds.items():
        if kind in data:
            return make(data[kind])
    array = np.frombuffer(base64.b64decode(data["array"]), np.dtype(data["dtype"]))
    return array.reshape(data["shape"]).copy()[()]


def submissions(folder: Path) -> list[Path]:
    """What is handed in. Hidden folders, such as a notebook's checkpoints, are left out."""
    found = []
    for path in folder.rglob("*"):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        is_one = path.suffix.lower() in SUFFIXES and (path.is_file() or path.is_symlink())
        if is_one and not is_hidden:
            found.append(path)
    return sorted(found)


def grades_of(
    path: Path, folder: Path, seed: int, limits: Limits, hidden: tuple[Path, ...] = ()
) -> list[Grade]:
    student = path.relative_to(folder).with_suffix("").as_posix()
    try:
        answers = answers_of(cells_of(path))
    except Unreadable as error:
        return [Grade(student, "", "", "missing", str(error))]
    except Exception as error:  # a file that Python's own parser cannot take
        why = f"the file cannot be read: {type(error).__name__}: {error}"
        return [Grade(student, "", "", "missing", why)]
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
            drawn = seed_for(seed, student, exercise)
            wrong = run(answers[exercise], drawn, limits, (folder, *hidden))
            kind = "right" if wrong is None else "not yet"
            grades.append(Grade(student, lesson, exercise, kind, wrong or ""))
    if not grades:
        return [
            Grade(student, "", "", "missing", "there is no exercise of the course in this file")
        ]
    return grades


def the_checks() -> Any:
    if str(COURSE) not in sys.path:
        sys.path.append(str(COURSE))
    import checks
    import exercises  # noqa: F401  (registers the checkers)

    return checks


def exercises_by_lesson() -> dict[str, list[str]]:
    lessons: dict[str, list[str]] = {}
    for number in the_checks().EXERCISES:
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
    width = max(len(plain(student)) for student, _ in totals)
    lines = []
    for (student, lesson), (right, of) in totals.items():
        what = f"lesson {lesson}: {right} of {of} right" if lesson else "nothing to grade"
        lines.append(f"{plain(student):{width}}  {what}")
    return "\n".join(lines)


def write(grades: list[Grade], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(field.name for field in fields(Grade))
        rows.writerows([plain(text) for text in astuple(grade)] for grade in grades)


def plain(text: str) -> str:
    """The text in one line, of a length that fits a table, which no spreadsheet takes for a
    formula."""
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


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
            pool.submit(grades_of, path, options.folder, options.seed, limits, (options.out,))
            for path in files
        ]
        for path, one in zip(files, work, strict=True):
            grades += one.result()
            name = plain(str(path.relative_to(options.folder)))
            print(f"{name} is graded", file=sys.stderr)
    write(grades, options.out)
    print(summary(grades))
    print(f"{options.out} has a row for each exercise")
    return 0


if __name__ == "__main__":
    sys.exit(main())
