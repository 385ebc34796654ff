"""Training: one step, whole runs that survive a kill, and evaluation."""

from ..parallel.ranks import Ranks
from .config import Config
from .network import network
from .run import Run
from .saved import SavedRun, load, read
from .step import TrainingStep, evaluate, keep_freed_memory, logits

__all__ = [
    "Config",
    "Ranks",
    "Run",
    "SavedRun",
    "TrainingStep",
    "evaluate",
    "keep_freed_memory",
    "load",
    "logits",
    "network",
    "read",
]
