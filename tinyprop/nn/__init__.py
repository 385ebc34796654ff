"""Modules and layers, including those of Normalization Propagation."""

from .batchnorm import BatchNorm
from .layers import (
    ELU,
    GELU,
    SELU,
    Activation,
    AvgPool2d,
    Conv2d,
    Dropout,
    Flatten,
    Hardtanh,
    Identity,
    LeakyReLU,
    Linear,
    MaxPool2d,
    PReLU,
    ReLU,
    Sigmoid,
    SiLU,
    Softplus,
    Tanh,
)
from .module import Module, ModuleList, Sequential, evaluating
from .normalization import NormPropConv2d, NormPropLinear
from .signals import Signal, signals
from .spec import NIN, build

__all__ = [
    "ELU", "GELU", "NIN", "SELU", "Activation", "AvgPool2d", "BatchNorm", "Conv2d", "Dropout", "Flatten", "Hardtanh",
    "Identity", "LeakyReLU", "Linear", "MaxPool2d", "Module", "ModuleList", "NormPropConv2d", "NormPropLinear", "PReLU",
    "ReLU", "Sequential", "SiLU", "Sigmoid", "Signal", "Softplus", "Tanh", "build", "evaluating", "signals",
]  # fmt: skip
