"""Training: one step, whole runs that survive a kill, and evaluation."""

from .config import Config, network
from .run import Run
from .step import TrainingStep, evaluate, keep_freed_memory, logits

__all__ = ["Config", "Run", "TrainingStep", "evaluate", "keep_freed_memory", "logits", "network"]
