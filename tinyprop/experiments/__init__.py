"""The paper's experiments: what to run, and what the finished runs say."""

from .kinds import EXPERIMENTS

__all__ = ["EXPERIMENTS"]
