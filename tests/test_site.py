"""The built site in a real browser: nothing from outside, no errors, and the numbers of native
tinyprop."""

import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers import FULL

SITE = Path(__file__).parent.parent / "site"
COURSE = SITE.parent / "tutorials"
LESSONS = [path.stem for path in sorted(COURSE.glob("[0-9E][0-9]*_*.py"))]
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
MINUTES = 60_000  # milliseconds

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (SITE / "lab" / "index.html").exists(), reason="needs the site: make site"
    ),
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium"),
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def address():
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=SITE)
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    api = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright: pip install -e .[docs]"
    )
    with api.sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"),
            executable_path=CHROMIUM,
            args=FLAGS,
            viewport={"width": 1360, "height": 900},
        )
        yield context
        context.close()


@contextmanager
def watched(browser, address):
    """A page that collects what must not happen: outside requests, failures, messages on the
    console."""
    page, wrong = browser.new_page(), []
    page.on(
        "request", lambda r: r.url.startswith((address, "data:", "blob:")) or wrong.append(r.url)
    )
    page.on("requestfailed", lambda r: wrong.append(f"failed: {r.url}"))
    page.on("response", lambda r: r.status < 400 or wrong.append(f"{r.status}: {r.url}"))
    page.on("console", lambda m: m.type not in ("error", "warning") or wrong.append(m.text))
    page.on("pageerror", lambda e: wrong.append(str(e)))
    yield page
    page.close()
    assert wrong == []


@pytest.fixture
def page(browser, address):
    with watched(browser, address) as page:
        yield page


@pytest.fixture(scope="module")
def laboratory(browser, address):
    """Python starts once."""
    with watched(browser, address) as page:
        page.goto(f"{address}lab/index.html")
        answered(page, None)
        yield page


def answered(page, before):
    """Wait for the next answer of Python."""
    newer = "before => (document.documentElement.dataset.answered ?? before) !== before"
    page.wait_for_function(newer, arg=before, timeout=3 * MINUTES)


def press(page, control, key):
    before = page.evaluate("document.documentElement.dataset.answered")
    page.focus(f"#{control}")
    page.keyboard.press(key)
    answered(page, before)


def columns(page, figure):
    """The table of numbers under a figure."""
    rows = page.eval_on_selector_all(
        f"#{figure} tr", "rows => rows.map(r => [...r.cells].map(c => c.textContent))"
    )
    return {name: [float(x) for x in column if x] for name, *column in zip(*rows, strict=True)}


def native(page, tmp_path):
    """What the program that the page shows prints here."""
    script = tmp_path / "shown.py"
    script.write_text(page.text_content("#code code"))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True, cwd=SITE.parent
    )
    found, panel = {}, ""
    for line in done.stdout.splitlines():
        if key := re.match(r"  (.+?): (.*)", line):
            found[panel, key[1]] = [float(x) for x in key[2].split()] if key[2] != "none" else []
        else:
            panel = line
    return found


def assert_same(page, tmp_path):
    """Curves to 5 digits, what a float32 network computes to 3, and the singular values that are
    not rounding."""
    found = native(page, tmp_path)
    for figure in ("signal", "gradient"):
        table = columns(page, figure)
        assert table.get("theory", []) == pytest.approx(
            found["layers", f"{figure} theory"], rel=1e-5
        )
        assert table["network"] == pytest.approx(found["layers", figure], rel=2e-3)
    assert columns(page, "distribution")["all"] == pytest.approx(
        found["distribution", "all"], abs=0.02
    )
    correlation = columns(page, "correlation")
    assert correlation.get("theory", []) == pytest.approx(found["correlation", "theory"], abs=1e-5)
    assert correlation["network"] == pytest.approx(found["correlation", "mean"], abs=2e-3)
    values = columns(page, "spectrum")["network"]
    large = [v for v in values if v > 1e-2 * values[0]]
    assert large == pytest.approx(found["spectrum", "values"][: len(large)], rel=1e-2)


def test_the_laboratory_computes_what_native_tinyprop_does(laboratory, tmp_path):
    assert_same(laboratory, tmp_path)
    before = columns(laboratory, "signal")["theory"]
    curve = laboratory.get_attribute("#signal .line.theory", "d")
    press(laboratory, "gamma", "PageUp")
    assert float(laboratory.input_value("#gamma")) > 0.9
    # a larger gamma keeps more of the signal
    assert columns(laboratory, "signal")["theory"] > before
    assert laboratory.get_attribute("#signal .line.theory", "d") != curve
    assert_same(laboratory, tmp_path)


def test_other_networks(page, address, tmp_path):
    """From a link, which is the setting; and the same figure each time."""
    settings = "norm=batch&activation=gelu&depth=6&width=40&batch=16&layer=3&residual=1&seed=2"
    link = f"{address}lab/index.html#{settings}"
    page.goto(link)
    answered(page, None)
    assert_same(page, tmp_path)
    assert page.is_checked("#residual")
    assert len(columns(page, "signal")["network"]) == 7
    figure = page.inner_html("#gradient .plot")
    press(page, "residual", "Space")
    assert "residual=0" in page.url
    assert len(columns(page, "signal")["network"]) == 6
    press(page, "residual", "Space")
    assert page.inner_html("#gradient .plot") == figure
    before = page.evaluate("document.documentElement.dataset.answered")
    page.select_option("#norm", "none/he")
    answered(page, before)
    assert page.is_disabled("#gamma")
    assert_same(page, tmp_path)


def test_the_laboratory_can_be_used_without_a_mouse_and_without_eyes(laboratory):
    controls = laboratory.eval_on_selector_all(
        "select, input", "all => all.map(e => [e.id, e.labels.length])"
    )
    assert len(controls) == 9
    assert [name for name, labels in controls if labels != 1] == []
    described = laboratory.eval_on_selector_all(
        "figure svg", "all => all.map(e => e.getAttribute('aria-label'))"
    )
    assert len(described) == 5
    assert all(re.search(r"\d", text) for text in described)
    assert re.search(
        r"Signal: [\d.]+ .* Gradient .* singular value", laboratory.inner_text("[aria-live=polite]")
    )
    for _ in range(5):
        laboratory.keyboard.press("Tab")
    assert laboratory.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    laboratory.focus("#show")
    laboratory.keyboard.press("Enter")
    assert laboratory.is_visible("#code")
    light = laboratory.evaluate("getComputedStyle(document.body).backgroundColor")
    laboratory.click("#theme")
    assert laboratory.evaluate("getComputedStyle(document.body).backgroundColor") != light
    laboratory.evaluate("localStorage.clear()")


@pytest.mark.parametrize("width", [1360, 390])
def test_pages_fit_and_load_nothing_from_outside(page, address, width):
    page.set_viewport_size({"width": width, "height": 900})
    files = [
        SITE / "index.html",
        *sorted((SITE / "api").glob("*.html"))[:3],
        *[SITE / "tutorials" / f"{lesson}.html" for lesson in LESSONS[:4]],
    ]
    assert len(files) == 8
    formulas = 0
    for file in files:
        page.goto(address + file.relative_to(SITE).as_posix(), wait_until="networkidle")
        assert page.title()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), file
        page.wait_for_function(
            "[...document.querySelectorAll('.math')].every(e => e.querySelector('mjx-container'))"
        )
        formulas += page.locator("mjx-container").count()
    assert formulas > 0


# -- lessons

QUICK = ("01_autograd", "E4_data_parallel")
STATE = "document.documentElement.dataset.live"


def pressed(page, place, wanted="idle"):
    """Press a button that runs cells, and wait for what Python does then."""
    page.evaluate(f"{STATE} = 'pressed'")
    place.click()
    done(page, wanted)


def done(page, wanted):
    page.wait_for_function(f"['idle', 'error'].includes({STATE})", timeout=5 * MINUTES)
    assert page.evaluate(STATE) == wanted, page.locator(".live-error").all_inner_texts()


def cell(page, number):
    return page.locator("article div.cell").nth(number)


def run_button(page, number):
    return cell(page, number).get_by_role("button", name="Run", exact=True)


def type_into(page, number, text):
    """Replace the text of a cell, which may be folded."""
    folded = cell(page, number).locator("details:not([open]) > summary")
    if folded.count():
        folded.click()
    cell(page, number).hover()
    editor = cell(page, number).locator(".cm-content")
    editor.click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(text)


def sources(lesson):
    cells = json.loads((COURSE / f"{lesson}.ipynb").read_text())["cells"]
    return ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]


def source(lesson, number):
    return sources(lesson)[number]


def number_of(lesson, text):
    """The first cell of a lesson with this in it."""
    return next(n for n, code in enumerate(sources(lesson)) if text in code)


@pytest.mark.parametrize("lesson", LESSONS if FULL else QUICK)
def test_a_lesson_runs_from_its_first_to_its_last_cell(page, address, lesson):
    page.goto(f"{address}tutorials/{lesson}.html")
    count = page.locator("article div.cell").count()
    assert page.get_by_role("button", name="Run", exact=True).count() == count
    pressed(page, page.get_by_role("button", name="Run all", exact=True))
    assert page.locator("[data-ran=good]").count() == count
    assert page.locator(".live-error").count() == 0
    if lesson == "E4_data_parallel":
        assert page.locator(".live-threads").count() > 0
    else:
        assert page.locator(".live-output img").count() > 0
        assert page.locator(".live-threads").count() == 0
    page.evaluate("localStorage.clear()")


def test_a_lesson_answers_its_reader(page, address):
    """Changes, errors, exercises, predictions, and what is kept of them."""
    lesson = "02_network"
    page.goto(f"{address}tutorials/{lesson}.html")
    assert "a network that says 1/3 for each class has a loss of 1.10" not in page.content()
    training = number_of(lesson, "range(150)")
    pressed(page, run_button(page, training))
    picture = cell(page, training).locator(".live-output img").screenshot()
    type_into(page, training, source(lesson, training).replace("range(150)", "range(1)"))
    pressed(page, run_button(page, training))
    assert cell(page, training).locator(".live-output img").screenshot() != picture
    type_into(page, training, source(lesson, training))

    exercise = number_of(lesson, 'check("2.3"')
    wrong = "def momentum_step(w, v, g, rate, momentum):\n    return w, v\n"
    right = wrong.replace("return w, v", "v = momentum * v + g\n    return w - rate * v, v")
    for text, says in ((wrong, "2.3 not yet"), (right, "2.3 is right")):
        type_into(page, exercise, text + '\ncheck("2.3", momentum_step)')
        pressed(page, run_button(page, exercise))
        assert says in cell(page, exercise).locator(".live-output").inner_text()

    locked = cell(page, number_of(lesson, "reveal("))
    assert not locked.locator(".live-output").is_visible()
    locked.get_by_label("Your guess").fill("1.5")
    pressed(page, locked.get_by_role("button", name="Guess"))
    assert "you said 1.5" in locked.locator(".live-output").inner_text()

    type_into(page, 1, "a = 1\nb = a / 0\n")
    pressed(page, run_button(page, 1), "error")
    error = cell(page, 1).locator(".live-error").inner_text()
    assert "b = a / 0" in error
    assert "ZeroDivisionError" in error
    assert "page.py" not in error

    page.reload()
    cell(page, 1).locator(".cm-content").wait_for()
    assert "b = a / 0" in cell(page, 1).inner_text()
    with page.expect_download() as download:
        page.get_by_role("button", name="Hand in").click()
    handed_in = json.loads(Path(download.value.path()).read_text())
    assert handed_in["lesson"] == lesson
    assert handed_in["answers"]["2.3"]["right"] is True
    assert handed_in["answers"]["2.3"]["tries"] == 2
    assert 'check("2.3"' in handed_in["cells"][exercise]["source"]
    assert handed_in["guesses"] == {"loss before training": 1.5}
    cell(page, 1).get_by_role("button", name="Reset").click()
    assert "b = a / 0" not in cell(page, 1).inner_text()
    page.evaluate("localStorage.clear()")


def test_a_lesson_runs_without_a_server(browser):
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=SITE)
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/tutorials/01_autograd.html"
    page = browser.new_page()
    sizes = []
    page.on("requestfinished", lambda r: sizes.append(r.sizes()["responseBodySize"]))
    page.goto(address, wait_until="networkidle")
    assert sum(sizes) < 3_000_000
    assert page.evaluate("navigator.serviceWorker.getRegistration().then(r => !r)")
    drawing = number_of("01_autograd", "show(")
    pressed(page, run_button(page, drawing))
    page.evaluate("navigator.serviceWorker.ready.then(() => true)")
    page.wait_for_function(
        "caches.open('tinyprop-pages').then(c => c.match(location.href)).then(r => !!r)"
    )
    server.shutdown()
    server.server_close()
    page.reload()
    pressed(page, run_button(page, drawing))
    assert cell(page, drawing).locator(".live-output").inner_html()
    page.close()
