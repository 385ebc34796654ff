"""The paper's experiments as recipes, and some that it does not ask for."""

from . import beyond, section5, table
from .recipe import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for experiment in (*section5.EXPERIMENTS, *table.EXPERIMENTS, *beyond.EXPERIMENTS)
}
