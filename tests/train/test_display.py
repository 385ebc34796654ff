"""What a run shows while it trains, and what it says afterwards about how long it took."""

import io
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyprop.train import display as module
from tinyprop.train.display import Curves, Display, Notebook, Terminal, choose_display, filled
from tinyprop.train.log import Log

ROW = {"epoch": 1, "train_loss": 0.5, "test_loss": 0.6, "test_error": 0.25}
ROW |= {"train_error": 0.125, "images_per_second": 1234.5}


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


class Screen(io.StringIO):
    """A terminal that remembers what is written."""

    encoding = "utf-8"

    def isatty(self):
        return True


@given(st.floats(0.0, 1.0), st.integers(1, 100), st.booleans())
def test_a_bar_has_its_width_and_its_fraction(fraction, columns, has_unicode):
    bar = filled(fraction, columns, has_unicode)
    assert len(bar) == columns
    full = sum(block in "█#" for block in bar)
    assert abs(full - fraction * columns) <= 1
    assert filled(1.0, columns, has_unicode).strip("█#") == ""


def test_the_time_left_is_what_the_rest_takes_at_this_speed(clock):
    display = Display(epochs=10, batches=100)
    display.start_epoch(4, 50)  # a resumed run
    assert display.texts(short=False)[0] == " 45%, epoch 5/10, ? left"
    clock.now += 60.0
    display.step(100, 0.5, 80.0)
    assert display.texts(short=False)[0] == " 50%, epoch 5/10, 10:00 left"
    assert display.texts(short=False)[1] == "100%, 100/100, loss 0.500, 80 images/s"
    assert display.texts(short=True) == ("5/10, 10:00 left", "100/100, loss 0.500")
    display.start_task("test error")
    assert display.texts(short=False)[1] == "100%, test error"
    clock.now += 30.0
    display.finish_epoch([{}] * 5)  # half an epoch in 90 seconds
    assert display.texts(short=True)[0] == "6/10, 15:00 left"
    clock.now += 30.0
    display.start_epoch(5, 0)
    display.step(50, 0.5, 80.0)
    assert display.texts(short=True)[0] == "6/10, 13:30 left"


def test_at_the_end_both_bars_are_full(clock):
    display = Display(epochs=2, batches=10)
    display.start_epoch(1, 0)
    clock.now += 5.0
    display.step(10, 0.5, 80.0)
    display.finish_epoch([{}] * 2)
    assert (display.fraction, display.epoch_fraction) == (1.0, 1.0)
    assert display.texts(short=True) == ("2/2, 0:00 left", "10/10, loss 0.500")


def test_an_epoch_that_is_resumed_after_its_last_batch(clock):
    display = Display(epochs=10, batches=100)
    display.start_epoch(4, 100)
    clock.now += 5.0
    display.finish_epoch([{}] * 5)
    assert display.texts(short=True)[0] == "6/10, ? left"


@pytest.mark.parametrize(("columns", "bar"), [(200, 40), (80, 20), (60, 20), (40, 6), (20, 0)])
def test_both_lines_fit_and_have_bars_of_one_width(monkeypatch, clock, columns, bar):
    monkeypatch.setenv("COLUMNS", str(columns))
    with Terminal(epochs=100, batches=1000, stream=Screen()) as display:
        display.start_epoch(49, 0)
        clock.now += 10_000.0
        display.step(990, 12.345, 1234.0)
        lines = [line.desc for line in display.lines]
    for line, name in zip(lines, ("run  ", "epoch"), strict=True):
        assert line.startswith(name)
        assert len(line) < columns
    widths = [len(line.split("|")[1]) if "|" in line else 0 for line in lines]
    assert widths[0] == widths[1] >= bar
    if columns >= 40:
        assert "50/100, 140:19:12 left" in lines[0]
        assert "990/1000, loss 12.345" in lines[1]


def test_lines_are_written_above_the_bars():
    screen = Screen()
    with Terminal(epochs=1, batches=10, stream=screen) as display:
        display.start_epoch(0, 0)
        with display.aside():
            screen.write("a line\n")
    before, _, after = screen.getvalue().partition("a line\n")
    cleared = before.rpartition("0/10")[2]  # both bars, in any order
    assert set(cleared) <= set(" \r\n\x1b[A")
    assert cleared.count(" ") > 100
    assert "run  " in after


def test_a_display_draws_only_now_and_then(clock, monkeypatch):
    drawn = []
    monkeypatch.setattr(Terminal, "draw", lambda display: drawn.append(clock.now))
    with Terminal(epochs=1, batches=1000, stream=Screen()) as display:
        display.start_epoch(0, 0)
        for batch in range(1000):
            clock.now += 0.01
            display.step(batch + 1, 0.5, 1.0)
    assert 45 <= len(drawn) <= 55


def test_all_drawings_take_a_hundredth_of_the_run_together(clock, monkeypatch):
    """Also where epochs are so short that every step is the end of one."""
    cost = 0.002

    def draw(display):
        clock.now += cost

    monkeypatch.setattr(Terminal, "draw", draw)
    start = clock.now
    with Terminal(epochs=1000, batches=1, stream=Screen()) as display:
        for epoch in range(1000):
            display.start_epoch(epoch, 0)
            clock.now += 0.01
            display.step(1, 0.5, 1.0)
            display.start_task("test error")
            display.finish_epoch([ROW] * (epoch + 1))
    seconds = clock.now - start
    assert 0.009 * seconds < display.spent < 0.01 * seconds + cost


def test_there_are_bars_only_in_terminals(monkeypatch, tmp_path):
    curves = Curves(tmp_path / "curves.png")

    def kind(stream):
        with choose_display(1, 1, curves, stream) as chosen:
            return type(chosen)

    monkeypatch.setenv("TERM", "xterm")
    assert kind(Screen()) is Terminal
    assert kind(io.StringIO()) is Display
    monkeypatch.setenv("TERM", "dumb")
    assert kind(Screen()) is Display


def test_a_terminal_without_unicode_has_bars_of_ascii(monkeypatch):
    monkeypatch.setattr(Screen, "encoding", "ascii")
    with Terminal(epochs=2, batches=2, stream=Screen()) as display:
        assert display.bar(0.5, 10) == "|#####     | "


def test_curves_are_drawn_again_when_this_takes_a_hundredth_of_the_time(
    clock, monkeypatch, tmp_path
):
    drawings = []

    def draw(curves, history):
        clock.now += 0.5
        curves.drawn, curves.seconds = clock.now, 0.5
        drawings.append(clock.now)

    monkeypatch.setattr(Curves, "draw", draw)
    curves = Curves(tmp_path / "curves.png")
    for _ in range(1000):
        clock.now += 1.0
        curves.redraw([ROW])
    assert len(drawings) == 20
    for _ in range(20):
        clock.now += 60.0
        curves.redraw([ROW])
    assert len(drawings) == 40


def test_a_notebook_shows_bars_and_the_newest_curves(clock, monkeypatch):
    places = []

    class Place(list):
        update = list.append

    def new_place(page, display_id):
        places.append(Place())
        return places[-1]

    class IPython:
        HTML = str
        display = staticmethod(new_place)

    monkeypatch.setitem(sys.modules, "IPython", IPython)
    monkeypatch.setitem(sys.modules, "IPython.display", IPython)
    picture = b"PNG"
    pictures = iter([None, picture, picture])
    notebook = Notebook(2, 4, lambda: next(pictures))
    bars, curves = places
    notebook.start_epoch(0, 0)
    assert (len(bars), len(curves)) == (1, 0)
    clock.now += 1.0
    notebook.start_task("a < b")
    assert "a &lt; b" in bars[-1]
    assert bars[-1].count("<progress") == 2
    notebook.close()
    assert len(bars) == 3
    (shown,) = curves  # once
    assert 'src="data:image/png;base64,UE5H"' in shown


def test_the_log_has_the_time_and_the_csv_file_has_not(tmp_path):
    log = Log(tmp_path)
    log.seconds[1] = 61.25
    log.write([ROW], [], durable=False)
    assert log.in_words(ROW, 3) == (
        "epoch 1/3: loss 0.500, error train 12.50%, test 25.00%, 1,234 images/s, 1:01"
    )
    (line,) = (tmp_path / "log.jsonl").read_text().splitlines()
    assert json.loads(line) == ROW | {"seconds": 61.25, "elapsed": 61.25}
    assert "seconds" not in (tmp_path / "log.csv").read_text().replace("per_second", "")
    again = Log(tmp_path)
    again.read(epochs=1)
    again.seconds[2] = 10.0
    again.write([ROW, ROW | {"epoch": 2, "test_loss": float("inf")}], [], durable=True)
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["elapsed"] for row in rows] == [61.25, 71.25]
    assert rows[1]["test_loss"] is None


@pytest.mark.parametrize("content", [None, b"\xff", b"[]\n", b'{"epoch": 1}\n', b"3\n"])
def test_a_log_without_times_is_no_obstacle(tmp_path, content):
    if content is not None:
        (tmp_path / "log.jsonl").write_bytes(content)
    log = Log(tmp_path)
    log.read(epochs=1)
    assert (log.seconds, log.elapsed(1)) == ({}, None)
    log.seconds[2] = 5.0
    rows = log.timed([ROW, ROW | {"epoch": 2}])
    assert [row.get("seconds") for row in rows] == [None, 5.0]
    assert "elapsed" not in rows[1]
    assert log.in_words(ROW, 3).endswith("images/s")
