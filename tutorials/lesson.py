"""What every lesson shares: the style of its figures, where they go, and its exercises."""

import io
import sys
import warnings
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_svg import RendererSVG
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

import exercises  # noqa: F401  (registers the checkers, with projects)
from checks import check, hint, predict, reveal
from projects import engine, keep
from tinyprop.functional.draw import Drawing
from tinyprop.report.plots import COLORS, GRAY, STYLE, panels

__all__ = [
    "BLACK",
    "BLUE",
    "GRAY",
    "GREEN",
    "ORANGE",
    "PINK",
    "RED",
    "SKY",
    "check",
    "claim",
    "engine",
    "hint",
    "keep",
    "panels",
    "predict",
]
__all__ += ["reveal", "show"]

BLUE, RED, GREEN, PINK, ORANGE, SKY, BLACK = COLORS
matplotlib.rcParams.update(STYLE)
POINTS = 72  # of an inch, as SVG has them
NARROWEST = 160  # points of a piece of a figure

# tqdm would like ipywidgets, which no lesson needs
warnings.filterwarnings("ignore", "IProgress not found")
threadpool_limits(1, "blas")  # so that sums are rounded alike whatever the number of cores

_shown = 0


def claim(sentence: str, holds: Any) -> None:
    """Say whether a sentence of the lesson holds for what has just been computed."""
    print(f"{'holds' if holds else 'DOES NOT HOLD'}: {sentence}")


def show(figure: Any, description: str = "") -> None:
    """Put a figure, or a graph of `tp.draw`, below the cell of a notebook or of a page; of a plain
    script, into runs/tutorials. The description says in words what the figure shows, with its
    numbers."""
    global _shown
    _shown += 1
    svg = figure.svg() if isinstance(figure, Drawing) else svg_of(figure)
    if sys.platform == "emscripten":
        import page  # type: ignore[import-not-found]  # docs/live/page.py

        page.show(svg, description)
    elif "ipykernel" in sys.modules:
        from IPython.display import SVG, display

        display(SVG(svg), metadata={"image/svg+xml": {"alt": description}})
    else:
        path = Path("runs/tutorials", f"{Path(sys.argv[0]).stem}-{_shown}.svg")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(svg, encoding="utf-8")
        print(f"figure: {path}", file=sys.stderr)


def svg_of(figure: Figure) -> str:
    """The figure as SVG: the same text every time, and where a narrow page may cut it."""
    file = io.StringIO()
    figure.set_dpi(POINTS)
    with matplotlib.rc_context({"svg.hashsalt": "lesson"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    places = " ".join(f"{place:.0f}" for place in cuts(figure))
    return file.getvalue().replace("<svg ", f'<svg data-columns="{places}" ', 1)


def cuts(figure: Figure) -> list[float]:
    """Where a figure that has been drawn can be cut from top to bottom between its panels, in
    points, so that no piece is too narrow to stand alone."""
    width, height = POINTS * figure.get_size_inches()
    renderer = RendererSVG(width, height, io.StringIO())
    boxes = [axes.get_tightbbox(renderer) for axes in figure.axes]
    found, start, right = [], 0.0, 0.0
    for box in sorted(boxes, key=lambda box: box.x0):
        place = (right + box.x0) / 2
        is_free = right <= box.x0 + 1
        is_wide = min(place - start, width - place) >= NARROWEST
        if is_free and is_wide:
            found.append(place)
            start = place
        right = max(right, box.x1)
    return found
