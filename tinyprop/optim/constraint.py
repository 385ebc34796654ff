"""The unit-length constraint of NormProp's weights."""

from ..engine.guard import check_editable
from ..engine.tensor import Tensor
from ..nn.module import Module
from ..nn.normprop import NormProp
from .updates import unit_rows


def normalize_weights(model: Module) -> None:
    """Scale each weight vector or filter of the NormProp layers to unit length, in place (section
    4.4).

    >>> net = tp.nn.Sequential(tp.nn.NormPropLinear(3, 2))
    >>> tp.optim.normalize_weights(net)
    >>> round(float((net[0].weight.data**2).sum()), 5)
    2.0
    """
    normalize(constrained_weights(model))


def constrained_weights(model: Module) -> list[Tensor]:
    """The weights of all NormProp layers, each once."""
    weights = [module.weight for module in model.modules() if isinstance(module, NormProp)]
    return list(dict.fromkeys(weights))


def normalize(weights: list[Tensor]) -> None:
    """Scale each row of these weights to unit length, in place."""
    for weight in weights:
        check_editable(weight, weight.name or "a weight")
    if weights:
        unit_rows([weight._data for weight in weights])
