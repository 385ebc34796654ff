"""The errors of states, data and training runs; those of the engine are in engine/errors.py."""

from .engine.errors import Explained


class StateError(Explained, ValueError):
    """A saved state that does not match what it is loaded into.

    >>> tp.nn.Flatten().load_state_dict({"weight": tp.tensor([1.0]).data})
    Traceback (most recent call last):
        ...
    tinyprop.StateError: got:  a state with unknown 'weight'
    rule: a state has exactly the names of the network's parameters and buffers
    try:  build the network as it was when the state was saved
    """


class DataError(Explained, ValueError):
    """A data file that is missing, damaged or of the wrong kind; the first part names the file.

    >>> rule, hint = "an image has 3073 of them", "delete it, and load again"
    >>> print(tp.DataError("train.bin of 0 bytes", rule, hint))
    got:  train.bin of 0 bytes
    rule: an image has 3073 of them
    try:  delete it, and load again
    """


class DivergenceError(Explained, ArithmeticError):
    """A training run whose numbers are no longer finite.

    >>> net = tp.nn.Sequential(tp.nn.Linear(1, 2))
    >>> step = tp.train.TrainingStep(net, tp.optim.SGD(net.parameters(), lr=0.1), threads=1)
    >>> step(tp.tensor([[float("nan")]]), [0])
    Traceback (most recent call last):
        ...
    tinyprop.DivergenceError: got:  a loss of nan, first not finite in the input
    rule: loss and gradients are finite numbers; nothing was updated with these
    try:  samples without NaN or infinity
    """
