"""Modules and layers, including those of Normalization Propagation."""

# isort: off
from typing import Any
from ..engine.batch import over_batch
from . import init
from .declare import Rows, Statistics
from .layers import (
    ELU,
    GELU,
    SELU,
    Activation,
    AvgPool2d,
    Conv2d,
    Dropout,
    Flatten,
    GlobalAvgPool2d,
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
from .module import Module, ModuleList, Sequential, evaluating, is_observing
from .normalizers import Normalizer, as_normalizer, normalizers
from .normprop import NormPropConv2d, NormPropLinear
from .residual import Residual, Scale
from .signals import Signal, Signals, signals
from .spec import NIN, build
from .statistics import BatchNorm, Derf, DyT, GroupNorm, LayerNorm, RMSNorm
from .summary import LayerSummary, Summary, summary
from .weights import ScaledWS, WeightNorm

__all__ = [
    "ELU",
    "GELU",
    "NIN",
    "SELU",
    "Activation",
    "AvgPool2d",
    "BatchNorm",
    "Conv2d",
    "Derf",
    "Dropout",
    "DyT",
    "Flatten",
    "GlobalAvgPool2d",
    "GroupNorm",
    "Hardtanh",
    "Identity",
    "LayerNorm",
    "LayerSummary",
    "LeakyReLU",
    "Linear",
    "MaxPool2d",
    "MeasuredConv2d",
    "MeasuredLinear",
    "Module",
    "ModuleList",
    "NormPropConv2d",
    "NormPropLinear",
    "Normalizer",
    "PReLU",
    "RMSNorm",
    "ReLU",
    "Residual",
    "Rows",
    "Scale",
    "ScaledWS",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Signal",
    "Signals",
    "Softplus",
    "Statistics",
    "Summary",
    "Tanh",
    "WeightNorm",
    "as_normalizer",
    "build",
    "evaluating",
    "init",
    "is_observing",
    "normalizers",
    "over_batch",
    "refresh",
    "signals",
    "summary",
]


def __getattr__(name: str) -> Any:
    if name == "NORMS":
        from warnings import warn

        text = "tp.nn.NORMS is now list(tp.nn.normalizers); the next version removes the old name"
        warn(text, DeprecationWarning, stacklevel=2)
        return tuple(normalizers)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
