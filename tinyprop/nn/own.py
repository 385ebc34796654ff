"""What a user wrote: the errors that it raises, in words, and an activation that is to be trained
through."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..engine.arrays import default_backend, float64, host_array, to_backend, to_numpy, use_backend
from ..engine.errors import BackendError, Explained, explain, name_place, parts_of
from ..engine.graph import recording
from ..engine.loading import is_file_reference
from ..engine.tensor import Tensor
from ..functional.activation import Activation, AnyActivation, activations, as_activation
from .declare import is_ours

PLACES = tuple(-3.07 + 0.0965 * i for i in range(65))  # where an activation is tried out
STEP = 1e-5  # to the places beside them


@contextmanager
def raised_by(piece: str, rule: str, hint: str) -> Iterator[None]:
    """Say in three parts what a piece of a user's raises inside the block. What has them already
    gets the name of the piece.

    >>> with raised_by("swish2", "it maps a tensor to a tensor", "u * F.sigmoid(u)"):
    ...     {}["a"]
    Traceback (most recent call last):
        ...
    ValueError: got:  swish2, which raises KeyError: 'a'
    rule: it maps a tensor to a tensor
    try:  u * F.sigmoid(u)
    """
    try:
        yield
    except BackendError:
        raise
    except Exception as error:  # it is a stranger's: it may raise anything
        if parts_of(error) is not None:
            name_place(error, piece)
            raise
        got = f"{piece}, which raises {in_words(error)}"
        raise ValueError(explain(got, rule, hint)) from error


def in_words(error: Exception) -> str:
    """The kind of an error, and what it says; of one with three parts, the first."""
    parts = error.args if isinstance(error, Explained) else parts_of(error)
    said = parts[0] if parts else str(error).partition("\n")[0]
    return f"{type(error).__name__}: {said}"


def trainable_activation(activation: AnyActivation) -> Activation:
    """The record of what a user gives, of a function that can be called, and that gradients pass
    through: not of `lambda u: F.tanh(u.detach())`.

    >>> trainable_activation("tanh").name
    'tanh'
    """
    if is_file_reference(activation):
        activation = activations.from_file(str(activation))
    try:
        record = as_activation(activation)
    except Exception as error:
        if isinstance(activation, str) or parts_of(error) is not None:
            raise
        name = getattr(activation, "__name__", "an activation")
        rule = "an activation is a function of a tensor of any shape, and maps each element"
        hint = "write it with tp.functional and operators: u * F.sigmoid(u)"
        with raised_by(name, rule, hint):
            raise
    if not is_ours(record.function):
        try:
            with use_backend("numpy"):
                refuse_cut_gradient(record)
        except BackendError:  # it uses tensors that are elsewhere
            refuse_cut_gradient(record)
    return record


def refuse_cut_gradient(activation: Activation) -> None:
    """Refuse a function without a graph from its output to its input. A step function has none, but
    its derivative is 0: it does not change between places that are close together."""
    places = host_array(PLACES, float64)
    u = Tensor(to_backend(places, default_backend()), requires_grad=True)
    with recording(True):
        value = activation(u)
    if value.requires_grad:
        return
    beside = activation(Tensor(to_backend(places + STEP, default_backend())))
    if (to_numpy(beside.data) != to_numpy(value.data)).any():
        got = f"{activation.name}, whose output has no gradient, although it depends on its input"
        rule = "an activation is differentiable, so that the layers in front of it are trained"
        hint = "write it with tp.functional and operators, on u itself: not on u.data or u.numpy()"
        raise ValueError(explain(got, rule, hint))
