"""The paper's experiments: what to run, and what the finished runs say."""

from .kinds import EXPERIMENTS, experiments_at

__all__ = ["EXPERIMENTS", "experiments_at"]
