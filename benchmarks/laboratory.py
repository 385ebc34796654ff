"""How many frames the laboratory draws while a slider moves, and how much memory it takes, in
Chromium.

It needs the site (`make site`). Each drag moves a slider for a second, from one end of its range to
the other, with an event for each refresh of the screen, as a reader's mouse does at its fastest.
"""

import argparse
import functools
import http.server
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tinyprop.report.environment import machine, versions
from tinyprop.report.files import write_whole
from tinyprop.report.table import Table

from .load import PROC, Watch

SITE = Path(__file__).parent.parent / "site"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
WIDTH = 256  # the largest
NARROW = 16
SLIDERS = ("gamma", "beta", "depth", "width", "batch", "layer", "networks")
LONGEST = 180_000  # milliseconds until an answer
MEGABYTE = 1024  # in kilobytes

# events for each refresh of the screen in a second, and the figures that are drawn meanwhile
DRAG = """async ([name, from, to]) => {
    const slider = document.getElementById(name), begin = performance.now();
    let events = 0, frames = 0;
    const drawn = new MutationObserver(() => frames++);
    drawn.observe(document.querySelector("#signal .plots"), { childList: true });
    for (let part = 0; part < 1; part = (performance.now() - begin) / 1000) {
        slider.value = from + (to - from) * part;
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        events++;
        await new Promise(requestAnimationFrame);
    }
    drawn.disconnect();
    slider.dispatchEvent(new Event("change", { bubbles: true }));
    return [events, frames];
}"""
WIDEN = """width => {
    const slider = document.getElementById("width");
    slider.value = width;
    slider.dispatchEvent(new Event("input", { bubbles: true }));
}"""
ANSWERED = "document.documentElement.dataset.answered"
ENDS = "name => { const s = document.getElementById(name); return [Number(s.min), Number(s.max)]; }"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--norm", default="normprop", help="normaliser (default normprop)")
    parser.add_argument(
        "--activations", nargs="+", metavar="NAME", help="some of the menu's (default: all)"
    )
    parser.add_argument(
        "--sliders",
        nargs="+",
        choices=SLIDERS,
        default=SLIDERS,
        metavar="NAME",
        help="some of them",
    )
    parser.add_argument("--out", type=Path, help="a directory for LABORATORY.md (default: none)")


def run(options: argparse.Namespace) -> int:
    if not (SITE / "lab" / "index.html").exists():
        raise ValueError("there is no site: make site")
    with laboratory() as (page, processes):
        memory = memories(page, processes)
        activations = options.activations or page.evaluate(
            "[...document.getElementById('activation').options].map(o => o.value)"
        )
        frames = table(page, options.norm, activations, options.sliders)
    for found in (frames, memory):
        print(found.text(140))
    if options.out is not None:
        write_whole(options.out / "LABORATORY.md", text_of(frames, memory).encode())
    return 0


def text_of(frames: Table, memory: Table) -> str:
    """LABORATORY.md."""
    here = machine()
    return f"""# The laboratory

Written by `python -m benchmarks laboratory` with tinyprop {versions("tinyprop")["tinyprop"]}, on
{here["cpu"]}, {here["cores"]} cores, in headless Chromium. [README.md](README.md) says how.

{frames.markdown()}

{memory.markdown()}
"""


# -- the browser


@contextmanager
def laboratory() -> Iterator[tuple[Any, Path]]:
    """The page, with Python ready, and the folder by which the processes of the browser are
    known."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise ValueError("there is no chromium: apt-get install chromium")
    playwright = import_module("playwright.sync_api").sync_playwright
    temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with served() as address, temporary as folder, playwright() as api:
        context = api.chromium.launch_persistent_context(
            folder, executable_path=program, args=FLAGS, viewport={"width": 1360, "height": 900}
        )
        page = context.new_page()
        page.goto(f"{address}lab/index.html#width={WIDTH}&networks=1")
        wait(page, None)
        yield page, Path(folder)


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing, on the terminal."""


@contextmanager
def served() -> Iterator[str]:
    handler = functools.partial(Handler, directory=str(SITE))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def wait(page: Any, before: str | None) -> None:
    """For the next answer: theory and networks."""
    is_newer = f"before => ({ANSWERED} ?? before) !== before"
    page.wait_for_function(is_newer, arg=before, timeout=LONGEST)


# -- frames


def table(page: Any, norm: str, activations: Sequence[str], sliders: Sequence[str]) -> Table:
    watch = Watch()
    rows = []
    for activation in tqdm(activations, desc="activations", disable=None, leave=False):
        frames = [drag(page, norm, activation, slider) for slider in sliders]
        rows.append([activation, *map(str, frames)])
    others = watch.others()
    busy = "" if others is None else f" Other programs used {others:.2f} of a core."
    note = (
        f"Frames drawn in one second of a drag over the whole range of a slider; {norm}, width "
        f"{WIDTH}, and what the page starts with.{busy}"
    )
    return Table(["activation", *sliders], rows, "Frames while a slider moves", note)


def drag(page: Any, norm: str, activation: str, slider: str) -> int:
    """Frames in a second. Until it begins, networks are narrow, so that none is computed any more
    when it does."""
    before = page.evaluate(ANSWERED)
    setting = f"norm={norm}&activation={activation}&width={NARROW}&networks=1"
    page.evaluate(f"location.hash = '{setting}&now={slider}'")
    wait(page, before)
    low, high = page.evaluate(ENDS, slider)
    page.evaluate(WIDEN, WIDTH)
    _, frames = page.evaluate(DRAG, [slider, low, high])
    return int(frames)


# -- memory


def memories(page: Any, folder: Path) -> Table:
    rows = [["with both workers ready", megabytes(folder)]]
    page.evaluate("document.getElementById('run').click()")
    progress = "/step [1-9]/.test(document.getElementById('progress').textContent)"
    page.wait_for_function(progress, timeout=LONGEST)
    rows.append(["while a network trains", megabytes(folder)])
    page.evaluate("document.getElementById('stop').click()")
    before = page.evaluate(ANSWERED)
    page.evaluate("location.hash = 'width=256&batch=256&depth=50&networks=2'")
    wait(page, before)
    rows.append(["after two networks of the largest size", megabytes(folder)])
    before = page.evaluate(ANSWERED)
    page.evaluate("document.querySelector('#controls [type=reset]').click()")
    wait(page, before)
    note = "Of the process that has the page and its two Pythons (PSS, as Linux counts it)."
    return Table(["the page", "MB"], rows, "Memory", note)


def megabytes(folder: Path) -> str:
    """Of the largest renderer of the browser that has this folder."""
    sizes = [kilobytes(process) for process in PROC.glob("[0-9]*") if is_renderer(process, folder)]
    return f"{max(sizes) / MEGABYTE:.0f}"


def is_renderer(process: Path, folder: Path) -> bool:
    try:
        words = (process / "cmdline").read_text()
    except OSError:  # it has ended
        return False
    return "--type=renderer" in words and str(folder) in words


def kilobytes(process: Path) -> int:
    for line in (process / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0
