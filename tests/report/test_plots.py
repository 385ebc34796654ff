"""Figures are written with what they show in words."""

import pytest

from tests.helpers import figure_in_words
from tinyprop.report import plots

WORDS = "A line from 1 \N{PLUS-MINUS SIGN} 0.5 to 2."


@pytest.mark.parametrize("name", ["x.png", "x.svg", "x.pdf", "x.jpg"])
def test_a_figure_is_written_with_its_description(name, tmp_path):
    figure, (axes,) = plots.panels(1, 2.0, 1.0)
    axes.plot([1, 2])
    path = plots.save(figure, tmp_path / name, WORDS)
    if path.suffix == ".png":
        assert figure_in_words(path) == WORDS
    elif path.suffix == ".svg":
        assert WORDS in path.read_text(encoding="utf-8")
    elif path.suffix == ".jpg":
        assert path.stat().st_size > 1000  # there is no place for words
    else:
        assert b"/Subject" in path.read_bytes()
