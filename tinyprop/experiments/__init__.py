"""The paper's experiments: what to run, and what the finished runs say."""

from .beyond import Activations, JacobianFactor, Optimizers, Regularization
from .experiment import Experiment
from .section5 import BatchSize, Convergence, CovariateShift, DataNormalization, Results, Scaling

EXPERIMENTS: dict[str, type[Experiment]] = {
    experiment.name: experiment
    for experiment in (
        DataNormalization, CovariateShift, Convergence, BatchSize, Results, Scaling,
        JacobianFactor, Optimizers, Regularization, Activations,
    )
}  # fmt: skip
