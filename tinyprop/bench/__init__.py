"""tinyprop against other frameworks: the same networks, the same work, in turns."""

from .cases import ENGINES, SECTIONS
from .report import about, tables, write
from .runner import run

__all__ = ["ENGINES", "SECTIONS", "about", "run", "tables", "write"]
