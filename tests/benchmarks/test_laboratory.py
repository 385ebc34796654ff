"""Frames and memory of the laboratory: what can be seen without a browser."""

from pathlib import Path

from benchmarks import laboratory
from benchmarks.__main__ import main
from tinyprop.report.table import Table

PAGE = Path(__file__).parent.parent.parent / "benchmarks" / "LABORATORY.md"
LEAST = 15  # frames a second; nearly all have 20


def test_without_a_site_it_says_how_to_make_one(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(laboratory, "SITE", tmp_path)
    assert main(["laboratory"]) == 1
    assert capsys.readouterr().err == "benchmarks: there is no site: make site\n"


def test_only_renderers_of_the_own_browser_count(tmp_path):
    folder = tmp_path / "profile"
    process = tmp_path / "12"
    process.mkdir()
    (process / "cmdline").write_text(f"chromium\0--type=renderer\0--user-data-dir={folder}\0")
    (process / "smaps_rollup").write_text("00-ff ---p [rollup]\nRss: 9 kB\nPss:    2048 kB\n")
    assert laboratory.is_renderer(process, folder)
    assert not laboratory.is_renderer(process, tmp_path / "other")
    assert not laboratory.is_renderer(tmp_path / "13", folder)
    assert laboratory.kilobytes(process) == 2048


def test_the_page_has_both_tables():
    frames = Table(["activation", "gamma"], [["relu", "46"]], "Frames", "a note")
    memory = Table(["the page", "MB"], [["ready", "360"]], "Memory")
    text = laboratory.text_of(frames, memory)
    assert "| relu | 46 |" in text
    assert "| ready | 360 |" in text


def test_every_published_drag_has_enough_frames():
    rows = [line.split("|")[1:-1] for line in PAGE.read_text().splitlines() if "|" in line]
    frames = [row for row in rows if len(row) == 1 + len(laboratory.SLIDERS)]
    header, _, *drags = frames
    assert [name.strip() for name in header] == ["activation", *laboratory.SLIDERS]
    assert len(drags) >= 15
    slow = [row for row in drags if any(int(cell) < LEAST for cell in row[1:])]
    assert slow == []
