"""Error messages with three parts: what was got, which rule it breaks, what to try."""


def explain(got: str, rule: str, hint: str) -> str:
    """The text of an error.

    >>> print(explain("reshape of (2, 3) to (4,)", "the number of elements must stay 6", "reshape(6)"))
    got:  reshape of (2, 3) to (4,)
    rule: the number of elements must stay 6
    try:  reshape(6)
    """
    return f"got:  {got}\nrule: {rule}\ntry:  {hint}"


class Explained(Exception):
    """An error made of the three parts: ShapeError(got, rule, hint)."""

    def __str__(self) -> str:
        return explain(*self.args)


class ShapeError(Explained, ValueError):
    """Shapes that do not go together.

    >>> tp.tensor([1.0, 2.0]).item()
    Traceback (most recent call last):
        ...
    tinyprop.errors.ShapeError: got:  item() of shape (2,)
    rule: only one element is a number
    try:  sum() first, or t[0]
    """


class GradientError(Explained, RuntimeError):
    """A gradient that is wrong, missing, or asked for where there is none.

    >>> tp.tensor([1.0]).backward()
    Traceback (most recent call last):
        ...
    tinyprop.errors.GradientError: got:  a gradient of a tensor of shape (1,) that does not require one
    rule: some input must have requires_grad=True, and no_grad() must not be active
    try:  tp.tensor(..., requires_grad=True)
    """


class StateError(Explained, ValueError):
    """A saved state that does not belong to what it is loaded into.

    >>> tp.nn.Flatten().load_state_dict({"weight": tp.tensor([1.0]).data})
    Traceback (most recent call last):
        ...
    tinyprop.errors.StateError: got:  a state with unknown 'weight'
    rule: a state has exactly the names of the network's parameters and buffers
    try:  build the network as it was when the state was saved
    """


class DataError(Explained, ValueError):
    """A data file that is missing, broken or not what it should be; the first part names the file.

    >>> print(tp.DataError("train.bin of 0 bytes", "an image has 3073 of them", "delete it, and load again"))
    got:  train.bin of 0 bytes
    rule: an image has 3073 of them
    try:  delete it, and load again
    """


class DivergenceError(Explained, ArithmeticError):
    """A training whose numbers are no longer finite.

    >>> net = tp.nn.Sequential(tp.nn.Linear(1, 2))
    >>> step = tp.train.TrainingStep(net, tp.optim.SGD(net.parameters(), lr=0.1), threads=1)
    >>> step(tp.tensor([[float("nan")]]), [0])
    Traceback (most recent call last):
        ...
    tinyprop.errors.DivergenceError: got:  a loss of nan, first not finite in layer 0, Linear
    rule: a loss is a finite number; nothing was updated with this one
    try:  a smaller learning rate; for norm='none' the paper needs 0.0001
    """


class BackendError(RuntimeError):
    """A backend that is not there, or arrays of two backends in one expression.

    >>> tp.use_backend("abacus")
    Traceback (most recent call last):
        ...
    tinyprop.errors.BackendError: There is no backend 'abacus': choose 'numpy' or 'cupy'.
    """
