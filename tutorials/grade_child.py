"""One answer of one student, in a process of its own: what `python -m tutorials.grade` starts. It
reads the task from its input, and writes one line to what was its output: a token, then the
verdict and all that the answer has returned, from which the grader reaches its own verdict.

The answer finds no file and no module of the course, may write a few small files into its own
folder, starts no processes, and sees no frames of its callers. This keeps it from what it should
not need; it does not stop a program that is written to break out."""

import base64
import builtins
import contextlib
import io
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

COURSE = Path(__file__).resolve().parent
HIDDEN = ("checks", "exercises", "projects", "lesson", "given")
HELPERS = ("contest.py", "contest.json")  # what an answer may import
MOST_FILES = 50
PROCESSES = ("os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.system")
PROCESSES += ("subprocess.Popen", "os.startfile", "os.kill", "os.killpg", "signal.pthread_kill")
PROCESSES += ("resource.setrlimit", "resource.prlimit")
NETWORK = ("socket.connect", "socket.bind", "socket.getaddrinfo")
LISTS = ("os.listdir", "os.scandir")
CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink")
CHANGES += ("os.chmod", "os.chown", "os.utime", "os.setxattr", "os.removexattr", "sqlite3.connect")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
OBJECTS = ("gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._current_frames")
OBJECTS += ("sys._current_exceptions", "sys.settrace", "sys.setprofile")
FRAMES = ("tb_frame", "gi_frame", "cr_frame", "ag_frame")
# modules that start processes, or interpreters that nobody watches
REFUSED_MODULES = ("_posixsubprocess", "_xxsubinterpreters", "_interpreters", "_testcapi")
REFUSED_MODULES += ("_testinternalcapi", "cffi", "_cffi_backend", "_ctypes_test")
# whose functions may ask for the frame that calls them: they keep it to themselves
ASKS_FOR_FRAMES = ("collections", "enum", "typing", "warnings", "matplotlib", "numpy", "tinyprop")
# whose names must mean after an answer what they meant before it
RESTS_ON = ("builtins", "math", "operator", "json", "numpy", "tinyprop")
RESTS_ON += ("checks", "exercises", "projects", "given")


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


def is_of(module: str, packages: tuple[str, ...]) -> bool:
    return module.split(".")[0] in packages


def watch(folder: Path, hidden: list[Path]) -> None:
    """From now on, refuse what no answer needs."""
    written = 0
    allowed = [COURSE.parent / "tinyprop", Path(sys.prefix), Path(sys.base_prefix)]
    allowed += [Path(path) for path in sys.path if "site-packages" in path]
    allowed = [path.resolve() for path in allowed]
    may_ask = set(code_that_asks_for_frames())
    asking = threading.local()

    def is_hidden(path: Path) -> bool:
        if path.is_relative_to(folder):
            return False
        if any(path.is_relative_to(other) for other in (COURSE, *hidden)):
            return True
        if path.parts[1:2] == ("proc",):
            return path.name in ("mem", "environ", "cmdline")
        is_allowed = any(path.is_relative_to(directory) for directory in allowed)
        return COURSE.parent in path.parents and not is_allowed

    def check_path(event: str, path: Any, writes: bool) -> None:
        nonlocal written
        if not isinstance(path, (str, bytes, os.PathLike)):  # an open file, or the current folder
            return
        real = Path(os.path.realpath(os.fsdecode(path)))
        if is_hidden(real):
            raise PermissionError("an answer may not read files of the course")
        if event == "open" and real.is_dir():  # other files could be named from there
            raise PermissionError("an answer may not open folders")
        if not writes or path == os.devnull:
            return
        if not real.is_relative_to(folder):
            raise PermissionError("an answer may write into its own folder only")
        written += 1
        if written > MOST_FILES:
            raise OSError(f"an answer may write {MOST_FILES} files, and no more")

    def check_frame() -> None:
        if getattr(asking, "now", False):
            return
        asking.now = True
        try:
            code = sys._getframe(2).f_code  # of what asks for a frame
        finally:
            asking.now = False
        if code not in may_ask:
            raise PermissionError("an answer may not look at the frames of its callers")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "sys._getframe":
            check_frame()
        elif event in PROCESSES:
            raise PermissionError("an answer may not start processes, or end them")
        elif event in NETWORK:
            raise PermissionError("an answer may not use a network")
        elif event in OBJECTS or (event == "object.__getattr__" and arguments[1] in FRAMES):
            raise PermissionError("an answer may not look at the frames of its callers")
        elif event == "object.__setattr__" and arguments[1] in ("__code__", "__defaults__"):
            raise PermissionError("an answer may not change a function")
        elif event.startswith("ctypes."):
            raise PermissionError("an answer may not call C libraries")
        elif event == "import" and is_of(arguments[0], REFUSED_MODULES):
            raise PermissionError(f"an answer may not import {arguments[0]}")
        elif event == "open":
            check_path(event, arguments[0], bool(arguments[2] & WRITES))
        elif event in LISTS:
            check_path(event, arguments[0], writes=False)
        elif event in CHANGES:
            for path in arguments[:2]:
                check_path(event, path, writes=True)

    def refused(*arguments: Any) -> None:
        raise PermissionError("an answer may not start processes, or end them")

    with contextlib.suppress(ImportError):  # multiprocessing calls it, and no hook hears of it
        import _posixsubprocess

        _posixsubprocess.fork_exec = refused
    sys.addaudithook(hook)


def code_that_asks_for_frames() -> Iterator[CodeType]:
    """Of the functions that may."""
    for name, module in list(sys.modules.items()):
        if not is_of(name, ASKS_FOR_FRAMES):
            continue
        for thing in list(vars(module).values()):
            inside = list(vars(thing).values()) if isinstance(thing, type) else []
            for function in (thing, *inside):
                function = getattr(function, "__func__", function)
                code = getattr(function, "__code__", None)
                if isinstance(code, CodeType):
                    yield from with_inner_code(code)


def with_inner_code(code: CodeType) -> Iterator[CodeType]:
    if "_getframe" in code.co_names:
        yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from with_inner_code(constant)


# What an answer finds in place of lesson.py. These functions lead back to nothing else.
STAND_IN = """
def check(number, answer=None):
    handed_in[str(number)] = answer

def engine(lesson):
    return given[lesson]

def claim(sentence, holds):
    print(sentence)

def nothing(*arguments, **named):
    pass

hint = keep = predict = reveal = show = nothing
"""


def answers_lesson(handed_in: dict[str, Any]) -> ModuleType:
    """In place of lesson.py: the same names, but `check` only takes the answer."""
    import lesson
    import projects

    found = ModuleType("lesson")
    for name in lesson.__all__:
        setattr(found, name, getattr(lesson, name))
    names: dict[str, Any] = {"handed_in": handed_in, "given": dict(projects.GIVEN)}
    exec(STAND_IN, names)
    for name in ("check", "claim", "engine", "hint", "keep", "predict", "reveal", "show"):
        setattr(found, name, names[name])
    return found


# What a verdict rests on

BUILTINS = dict(vars(builtins))


@dataclass(frozen=True)
class Noted:
    """A thing, and what it consists of."""

    name: str
    thing: Any
    contents: dict[Any, Any]


def contents_of(thing: Any) -> dict[Any, Any]:
    """What could be exchanged in a thing while it stays the same thing."""
    if isinstance(thing, FunctionType):
        parts = {"__code__": thing.__code__, "__defaults__": thing.__defaults__}
        return parts | (thing.__kwdefaults__ or {})
    if isinstance(thing, (ModuleType, type)):
        return dict(vars(thing))
    if type(thing) is dict:
        return dict(thing)
    if type(thing) in (list, tuple):
        return dict(enumerate(thing)) | {"length": len(thing)}
    if is_of(type(thing).__module__, ("tinyprop",)) and hasattr(thing, "_entries"):
        return dict(thing._entries)  # a table, such as that of the activations
    return {}


def noted(modules: list[ModuleType]) -> list[Noted]:
    """These modules, and what is in them."""
    found: dict[int, Noted] = {}

    def note(name: str, thing: Any, depth: int) -> None:
        if id(thing) in found:
            return
        contents = contents_of(thing)
        if not contents:
            return
        found[id(thing)] = Noted(name, thing, contents)
        module = getattr(thing, "__module__", None)
        is_foreign = isinstance(thing, type) and not is_of(str(module), RESTS_ON)
        if depth == 0 or is_foreign:
            return
        for key, part in contents.items():
            if not isinstance(part, ModuleType):
                note(f"{name}.{key}", part, depth - 1)

    for module in modules:
        note(module.__name__, module, 3)
    return list(found.values())


def what_checks_use() -> list[Noted]:
    """The modules that a verdict rests on, with their functions, classes and tables."""
    import exercises  # noqa: F401  (with checks, projects and given)

    names = [name for name in sys.modules if is_of(name, RESTS_ON)]
    overrides = sys.modules["tinyprop.engine.overrides"].table
    rules = [Noted("tinyprop.overrides", rules, all_of(rules)) for rules in overrides.values()]
    return [*noted([sys.modules[name] for name in names]), *rules]


def all_of(rules: dict[Any, Any]) -> dict[Any, Any]:
    """A table to which nothing may be added."""
    return rules | {"length": len(rules)}


def changed(before: list[Noted]) -> str | None:
    """The first name that does not mean what it meant. New names do no harm."""
    for key, value in BUILTINS.items():  # first, without the help of any of them
        if builtins.__dict__[key] is not value:
            return f"builtins.{key}"
    for one in before:
        now = all_of(one.thing) if one.name == "tinyprop.overrides" else contents_of(one.thing)
        for key, value in one.contents.items():
            is_same = now.get(key) is value or (key == "length" and now.get(key) == value)
            is_new = value is None  # what is made when it is first needed
            if not is_same and not is_new and key not in ("__warningregistry__", "__builtins__"):
                return f"{one.name}.{key}"
    return None


# What the answer returns, as data


class NoData(Exception):
    """An answer returns something else than numbers, words, arrays, tensors, and lists of them."""


def data_of(value: Any) -> Any:
    """Numbers and arrays in a form that JSON takes; `grade.value_of` is the other way."""
    import tinyprop as tp

    if value is None or value is ...:
        return None
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, str):
        return {"text": "".join(value)}
    if isinstance(value, tp.Tensor):
        return {"tensor": data_of(value.numpy())}
    if isinstance(value, (tuple, list, set, frozenset)):
        kind = next(k for k in (tuple, list, set, frozenset) if isinstance(value, k))
        return {kind.__name__.replace("frozen", ""): [data_of(part) for part in value]}
    if isinstance(value, (int, float)) and not isinstance(value, np.generic):
        return {"int": str(int(value))} if isinstance(value, int) else float(value)
    try:
        array = np.ascontiguousarray(value)
        if array.dtype.kind not in "biuf":
            array = array.astype(float)
    except (TypeError, ValueError):
        raise NoData from None
    shape = np.shape(value)
    text = base64.b64encode(array.tobytes()).decode()
    return {"array": text, "dtype": array.dtype.str, "shape": shape}


def recorded(answer: Any, returned: list[Any]) -> Callable[..., Any]:
    """The student's function; what it returns is written down."""

    def function(*arguments: Any, **named: Any) -> Any:
        result = answer(*arguments, **named)
        with contextlib.suppress(NoData):
            returned.append(data_of(result))
        return result

    return function


def judged(task: dict[str, Any], returned: list[Any]) -> str | None:
    """What is wrong with the answer of this task; None if it is right."""
    folder = Path.cwd().resolve()
    for name in HELPERS:
        shutil.copy(COURSE / name, folder)
    sys.path.insert(0, str(COURSE))
    handed_in: dict[str, Any] = {}
    stand_in = answers_lesson(handed_in)
    checks = sys.modules["checks"]
    verdict, is_function = checks.verdict, checks.EXERCISES[task["exercise"]].function
    before = what_checks_use()

    for name in HIDDEN:
        sys.modules.pop(name, None)
    notebook = ModuleType("__main__")  # in place of this program
    names: dict[str, Any] = vars(notebook)
    sys.modules["__main__"] = notebook
    sys.modules["lesson"] = stand_in
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != COURSE]
    sys.path.insert(0, str(folder))
    watch(folder, [Path(path) for path in task["hidden"]])

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
    answer = handed_in[task["exercise"]]
    if is_function and callable(answer):
        answer = recorded(answer, returned)
    elif not is_function:
        with contextlib.suppress(NoData):
            returned.append(data_of(answer))
    wrong: str | None = verdict(task["exercise"], answer, task["seed"])
    other = changed(before)
    if other is not None:
        return f"it changes {other}, which the check uses"
    return wrong


def main() -> None:
    task = json.load(sys.stdin)
    sys.stdin.close()
    sys.stdin = io.StringIO()  # an answer that asks for input gets none
    channel = separate_output()
    set_limits(task["seconds"], task["memory"], task["file_size"])
    returned: list[Any] = []
    try:
        wrong = judged(task, returned)
    except SystemExit:
        wrong = "it ends the program"
    kind = "right " if wrong is None else "wrong "
    channel.write(task["token"] + kind + json.dumps(returned if wrong is None else wrong) + "\n")
    channel.flush()
    os._exit(0)  # threads and handlers of the answer do not keep it


if __name__ == "__main__":
    main()
