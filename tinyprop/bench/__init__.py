"""tinyprop against other frameworks: the same networks and work, in turns; on a GPU, against what it can do at best."""

from . import gpu
from .cases import ENGINES, QUICK_WIDTH, SECTIONS
from .report import Table, about, tables, write
from .runner import run

__all__ = ["ENGINES", "QUICK_WIDTH", "SECTIONS", "Table", "about", "gpu", "run", "tables", "write"]
