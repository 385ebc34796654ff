"""Runs the cells of a lesson inside of a page. worker.js hands over `send`, which posts a message
to it."""

import io
import linecache
import logging
import sys
import time
import traceback
import warnings
from pathlib import Path

sys.path[:0] = ["/bundle/packages", "/bundle/tutorials"]
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
logging.getLogger("fontTools").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", "Unable to import Axes3D")

import figure  # noqa: E402
from pyodide.code import eval_code  # noqa: E402

THREADS = "can't start new thread"
NO_THREADS = (
    "This cell starts threads, which Python in a page does not have. What is shown above is what "
    "it printed when the page was built. To run it, download the lesson."
)
NEEDS_THREADS = (
    "This cell uses what a cell above computes with threads, which Python in a page does not have. "
    "What is shown above is what it printed when the page was built."
)
MOST_TEXT = 100_000  # characters that a cell can print
PAUSE = 0.1  # seconds between two messages with text
names: dict = {}
left_out = False  # whether a cell needed threads
figures = 0  # that were shown
cell = -1  # that runs
source = ""


class Out(io.TextIOBase):
    """Text on its way to the page: a few times a second, and not without end, so that the page can
    always answer its reader."""

    def begin(self):
        self.held, self.length, self.last = "", 0, 0.0

    def write(self, text):
        left = MOST_TEXT - self.length
        self.length += len(text)
        self.held += text[: max(left, 0)]
        if 0 <= left < len(text):
            self.held += (
                f"\nThis cell prints more than {MOST_TEXT:,} characters: the rest is left out.\n"
            )
        if time.monotonic() - self.last > PAUSE:
            self.send()
        return len(text)

    def send(self):
        if self.held:
            send("text", self.held)
        self.held, self.last = "", time.monotonic()


class Keyboard(io.TextIOBase):
    """What `input` reads from: nothing, as this Python cannot wait for the page."""

    def readline(self, size=-1):
        raise io.UnsupportedOperation(
            "got: input(). rule: Python in a page cannot wait for its reader. try: write the "
            "answer into the cell, as in name = 'Ada'"
        )


out = Out()


def start(send_message):
    """Import what every lesson imports, so that the first cell is quick."""
    global send

    def send(kind, content, **more):
        if kind != "text":
            out.send()  # what was printed before
        send_message(cell, kind, content, more)

    out.begin()
    sys.stdout = sys.stderr = out
    sys.stdin = Keyboard()
    import checks
    import lesson  # noqa: F401

    checks.locked = True
    checks.listeners.append(noted)


def show(svg, description):
    """What `lesson.show` calls."""
    global figures
    figures += 1
    send("figure", figure.in_page(svg, f"live-{figures}", description))


def noted(kind, name, outcome):
    send("note", name, what=kind, outcome=outcome if isinstance(outcome, str) else None)


def guess(question, number):
    """Take the guess of a form."""
    import checks

    checks._guesses[question] = number


def write(name, text):
    """Put a file of an earlier lesson where `engine` looks for it."""
    Path(name).write_text(text)


def run(number, text):
    """Run a cell; True if there was no error."""
    global cell, source, left_out
    cell, source = number, text
    out.begin()
    file = f"cell {number + 1}"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    try:
        value = eval_code(text, names, filename=file)
        if value is not None:
            print(repr(value))
    except BaseException as error:
        if THREADS in str(error):
            left_out = True
            send("threads", NO_THREADS)
            return True
        if left_out and isinstance(error, NameError):
            send("threads", NEEDS_THREADS)
            return True
        send("error", explained(error))
        return False
    finally:
        out.send()
    return True


def explained(error):
    """A traceback from the cell on, with its lines; of no function here."""
    trace = error.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("cell "):
        trace = trace.tb_next
    report = traceback.TracebackException(type(error), error, trace)
    report.stack = traceback.StackSummary.from_list(
        frame for frame in report.stack if frame.filename != __file__
    )
    return "".join(report.format()).rstrip()
