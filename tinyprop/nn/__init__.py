"""Modules and layers, including those of Normalization Propagation."""

# isort: off
from . import init
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
from .measured import MeasuredConv2d, MeasuredLinear, refresh
from .module import Module, ModuleList, Sequential, evaluating
from .normprop import NormPropConv2d, NormPropLinear
from .residual import Residual, Scale
from .signals import Signal, signals
from .spec import NIN, NORMS, build
from .statistics import BatchNorm, Derf, DyT, GroupNorm, LayerNorm, RMSNorm
from .weights import ScaledWS, WeightNorm

__all__ = [
    "ELU",
    "GELU",
    "NIN",
    "NORMS",
    "SELU",
    "Activation",
    "AvgPool2d",
    "BatchNorm",
    "Conv2d",
    "Derf",
    "Dropout",
    "DyT",
    "Flatten",
    "GroupNorm",
    "Hardtanh",
    "Identity",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "MaxPool2d",
    "MeasuredConv2d",
    "MeasuredLinear",
    "Module",
    "ModuleList",
    "NormPropConv2d",
    "NormPropLinear",
    "PReLU",
    "RMSNorm",
    "ReLU",
    "Residual",
    "Scale",
    "ScaledWS",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Signal",
    "Softplus",
    "Tanh",
    "WeightNorm",
    "build",
    "evaluating",
    "init",
    "refresh",
    "signals",
]
