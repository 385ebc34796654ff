"""One answer of one student, in a process of its own: what `python -m tutorials.grade` starts. It
reads the task from its input, and writes one line, a token and the verdict, to what was its
output."""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any


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


def judged(task: dict[str, Any]) -> str | None:
    """What is wrong with the answer of this task; None if it is right."""
    sys.path.insert(0, str(Path(__file__).parent))
    import checks
    import lesson

    verdict = checks.verdict
    handed_in: dict[str, Any] = {}

    def note(number: Any, answer: Any = None) -> None:
        handed_in[str(number)] = answer

    def nothing(*arguments: Any, **named: Any) -> None:
        """In place of what shows something to a reader."""

    for module in (checks, lesson):
        module.check = note
        module.hint = module.predict = module.reveal = nothing
    lesson.show = nothing
    names: dict[str, Any] = {"__name__": "__main__"}
    names |= {name: getattr(lesson, name) for name in lesson.__all__}
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
