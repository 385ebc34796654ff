"""What every lesson shares: the style of its figures, where they go, and exercises that answer
back."""

import io
import sys
import warnings
from pathlib import Path
from typing import Any

import matplotlib
from threadpoolctl import threadpool_limits

import exercises  # noqa: F401  (registers the checkers)
from checks import check, hint, predict, reveal
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
    "hint",
    "panels",
    "predict",
]
__all__ += ["reveal", "show"]

BLUE, RED, GREEN, PINK, ORANGE, SKY, BLACK = COLORS
matplotlib.rcParams.update(STYLE)
DPI = 110  # 8 inches then fill the column of a code host

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
    in_page = sys.platform == "emscripten"
    file = io.BytesIO()
    if isinstance(figure, Drawing):
        kind = "svg"
        file.write(figure.svg().encode())
    elif in_page:
        kind = "svg"
        figure.savefig(file, format=kind)
    else:
        kind = "png"
        # no version: the same bytes every time
        figure.savefig(file, format=kind, dpi=DPI, metadata={"Software": None})
    content = file.getvalue()
    if in_page:
        import page  # type: ignore[import-not-found]  # docs/live/page.py

        width = None if isinstance(figure, Drawing) else figure.get_figwidth() * DPI
        page.show(content.decode(), width, description)
    elif "ipykernel" in sys.modules:
        from IPython.display import SVG, Image, display

        facts = {f"image/{'svg+xml' if kind == 'svg' else kind}": {"alt": description}}
        display(SVG(content) if kind == "svg" else Image(content), metadata=facts)
    else:
        path = Path("runs/tutorials", f"{Path(sys.argv[0]).stem}-{_shown}.{kind}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        print(f"figure: {path}", file=sys.stderr)
