"""Training: one step, whole runs that survive a kill, and evaluation."""

from ..parallel.ranks import Ranks
from .config import Config, network
from .run import Run
from .step import TrainingStep, evaluate, keep_freed_memory, logits

__all__ = [
    "Config",
    "Ranks",
    "Run",
    "TrainingStep",
    "evaluate",
    "keep_freed_memory",
    "logits",
    "network",
]
