"""One answer of one student, in a process of its own: what `python -m tutorials.grade` starts. It
reads the task from its input, and writes one line, a token and the verdict, to what was its
output.

The answer finds no file and no module of the course, may write a few small files into its own
folder, and starts no processes. This keeps it from what it should not need; it does not stop a
program that is written to break out."""

import builtins
import contextlib
import json
import math
import operator
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

COURSE = Path(__file__).resolve().parent
HIDDEN = ("checks", "exercises", "projects", "lesson", "given")
HELPERS = ("contest.py", "contest.json")  # what an answer may import
MOST_FILES = 50
PROCESSES = ("os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.system")
PROCESSES += ("subprocess.Popen", "os.startfile")
NETWORK = ("socket.connect", "socket.bind", "socket.getaddrinfo")
LISTS = ("os.listdir", "os.scandir")
CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def set_limits(seconds: float, memory: int, file_size: int) -> None:
    try:
        import resource
    except ImportError:  # Windows has only the limit on time, which the parent process watches
        return
    whole_seconds = max(1, round(seconds))
    resource.setrlimit(resource.RLIMIT_CPU, (whole_seconds, whole_seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def separate_output() -> Any:
    """Where the verdict goes; what the answer prints goes nowhere."""
    channel = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    return channel


def watch(folder: Path) -> None:
    """From now on, refuse what no answer needs."""
    written = 0

    def inside(path: Any, directory: Path) -> bool:
        if not isinstance(path, (str, bytes, os.PathLike)):  # an open file, or the current folder
            return False
        return Path(os.path.realpath(os.fsdecode(path))).is_relative_to(directory)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal written
        if event in PROCESSES:
            raise PermissionError("an answer may not start processes")
        if event in NETWORK:
            raise PermissionError("an answer may not use a network")
        if event != "open" and event not in LISTS + CHANGES:
            return
        path = arguments[0]
        if inside(path, COURSE):
            raise PermissionError("an answer may not read files of the course")
        writes = event in CHANGES or (event == "open" and arguments[2] & WRITES)
        if not writes or path == os.devnull or isinstance(path, int):
            return
        if not inside(path, folder):
            raise PermissionError("an answer may write into its own folder only")
        written += 1
        if written > MOST_FILES:
            raise OSError(f"an answer may write {MOST_FILES} files, and no more")

    sys.addaudithook(hook)


def answers_lesson(handed_in: dict[str, Any]) -> ModuleType:
    """In place of lesson.py: the same names, but `check` only takes the answer."""
    import lesson

    def note(number: Any, answer: Any = None) -> None:
        handed_in[str(number)] = answer

    def nothing(*arguments: Any, **named: Any) -> None:
        """In place of what shows something to a reader."""

    found = ModuleType("lesson")
    for name in lesson.__all__:
        setattr(found, name, getattr(lesson, name))
    for name in ("hint", "keep", "predict", "reveal", "show"):
        setattr(found, name, nothing)
    found.check = note  # type: ignore[attr-defined]
    return found


def what_checks_use() -> list[tuple[str, Any]]:
    """The modules and classes that a verdict rests on."""
    import numpy as np

    import checks
    import exercises
    import projects
    import tinyprop as tp

    modules = [builtins, math, operator, np, np.linalg, np.random, checks, exercises, projects]
    modules += [tp, tp.functional, tp.moments]
    found = [(module.__name__, module) for module in modules]
    return [*found, ("tp.Tensor", tp.Tensor), ("tp.Op", tp.Op)]


def changed(before: list[tuple[str, Any, dict[str, Any]]]) -> str | None:
    """The first name that does not mean what it meant."""
    for name, thing, contents in before:
        now = vars(thing)
        for key, value in contents.items():
            if now.get(key) is not value:
                return f"{name}.{key}"
    return None


def judged(task: dict[str, Any]) -> str | None:
    """What is wrong with the answer of this task; None if it is right."""
    folder = Path.cwd().resolve()
    for name in HELPERS:
        shutil.copy(COURSE / name, folder)
    sys.path.insert(0, str(COURSE))
    handed_in: dict[str, Any] = {}
    stand_in = answers_lesson(handed_in)
    used = what_checks_use()
    verdict = sys.modules["checks"].verdict
    before = [(name, thing, dict(vars(thing))) for name, thing in used]

    for name in HIDDEN:
        sys.modules.pop(name, None)
    sys.modules["lesson"] = stand_in
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != COURSE]
    sys.path.insert(0, str(folder))
    watch(folder)

    names: dict[str, Any] = {"__name__": "__main__"}
    names |= {name: getattr(stand_in, name) for name in vars(stand_in) if name[0] != "_"}
    for statement in task["definitions"]:
        with contextlib.suppress(Exception):  # what needs a name that only a whole run defines
            exec(compile(statement, "<definitions>", "exec"), names)
    try:
        exec(compile(task["cell"], "<cell>", "exec"), names)
    except Exception as error:
        return f"its cell stops with {type(error).__name__}: {error}"
    if task["exercise"] not in handed_in:
        return "its cell does not reach check"
    wrong: str | None = verdict(task["exercise"], handed_in[task["exercise"]], task["seed"])
    other = changed(before)
    if other is not None:
        return f"it changes {other}, which the check uses"
    return wrong


def main() -> None:
    task = json.load(sys.stdin)
    channel = separate_output()
    set_limits(task["seconds"], task["memory"], task["file_size"])
    try:
        wrong = judged(task)
    except SystemExit:
        wrong = "it ends the program"
    channel.write(task["token"] + json.dumps(wrong) + "\n")
    channel.flush()
    os._exit(0)  # threads and handlers of the answer do not keep it


if __name__ == "__main__":
    main()
