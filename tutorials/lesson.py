"""What every lesson shares: the style of its figures, and where they go."""

import io
import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from tinyprop.plots import COLORS, GRAY, STYLE, panels

__all__ = ["BLACK", "BLUE", "GRAY", "GREEN", "ORANGE", "PINK", "RED", "SKY", "panels", "show"]

BLUE, RED, GREEN, PINK, ORANGE, SKY, BLACK = COLORS
matplotlib.rcParams.update(STYLE)
DPI = 110  # 8 inches then fill the column of a code host

threadpool_limits(1, "blas")  # so that sums are rounded alike whatever the number of cores

_shown = 0


def show(figure: Figure) -> None:
    """Put a figure below the cell of a notebook; of a plain script, into runs/tutorials."""
    global _shown
    _shown += 1
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=DPI, metadata={"Software": None})  # no version: the same bytes every time
    if "ipykernel" in sys.modules:
        from IPython.display import Image, display

        display(Image(png.getvalue()))
        return
    path = Path("runs/tutorials", f"{Path(sys.argv[0]).stem}-{_shown}.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png.getvalue())
    print(f"figure: {path}", file=sys.stderr)
